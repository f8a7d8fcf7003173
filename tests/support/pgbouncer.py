"""A PgBouncer of our own in transaction mode, if it is installed (Debian: apt-get install pgbouncer)."""

import contextlib
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from forgelet.local import embedded_postgres
from forgelet.local.processes import Child
from tests.support.ports import free_port, is_listened_on

READY_SECONDS = 60.0


def program() -> str | None:
    """Return the path of the program, or None. Debian installs it where administrators' programs are."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def command(folder: Path, database_url: str, port: int, **settings: object) -> list[str]:
    """Return the command that runs PgBouncer on that port of loopback, for the role and the PostgreSQL on a Unix
    socket at `database_url`. As root, it runs as PostgreSQL's account, because only that account may enter the
    socket's folder."""
    parts = urlsplit(database_url)
    sockets = Path(parse_qs(parts.query)["host"][0])
    users, configuration = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text(f'"{parts.username}" "{unquote(parts.password or "")}"\n')
    chosen = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": users,
        "pool_mode": "transaction",
        "server_login_retry": 1,
        **({"user": pwd.getpwuid(sockets.stat().st_uid).pw_name} if os.geteuid() == 0 else {}),
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in chosen.items()]
    configuration.write_text("\n".join(["[databases]", f"* = host={sockets}", "[pgbouncer]", *lines, ""]))
    if os.geteuid() == 0:
        for path in (folder, users, configuration):
            os.chown(path, sockets.stat().st_uid, -1)
    return [str(program()), str(configuration)]


def through(database_url: str, port: int) -> str:
    """Return the URL with which clients connect to PgBouncer."""
    parts = urlsplit(database_url)
    return parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}", query="").geturl()


@contextlib.contextmanager
def running(database_url: str, **settings: object) -> Iterator[str]:
    """Run PgBouncer with these settings; yield the URL through it when it accepts connections."""
    port = free_port()
    root = embedded_postgres.temporary_root()
    with tempfile.TemporaryDirectory(prefix="forgelet-pgbouncer-", dir=root) as folder:
        log = Path(folder, "pgbouncer.log")
        child = Child("PgBouncer", command(Path(folder), database_url, port, **settings), log=log)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not is_listened_on(port):
                assert not child.has_ended(), log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            yield through(database_url, port)
        finally:
            child.stop()
