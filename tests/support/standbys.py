"""PostgreSQL servers of a test's own: a primary, and standbys that pg_basebackup creates."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import attrs
import psycopg2

from forgelet.local import embedded_postgres
from forgelet.local.processes import Account, Child
from tests.support.processes import children_of

SECONDS = 60.0


def program() -> Path | None:
    """Return the pg_basebackup of the PostgreSQL that the tests start, or None: the PostgreSQL of a Python package has
    none."""
    found = embedded_postgres.preferred().directory / "pg_basebackup"
    return found if found.exists() else None


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition is true; fail after a minute."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"this did not happen in time: {what}"
        time.sleep(0.02)


@attrs.define
class Standby:
    """A server in `folder`, where its socket is too."""

    folder: Path
    password: str
    account: Account
    child: Child | None = None

    def start(self) -> None:
        log = self.folder.parent / "standby.log"
        self.child = Child(
            "standby",
            command(self.folder, "fsync=off"),
            log=log,
            account=self.account,
            stop_signal=signal.SIGINT,
        )
        until(self._answers, f"a standby starts: {log.read_text()}")

    def stop(self) -> None:
        if self.child is not None:
            self.pause(stopped=False)
            self.child.stop()
            self.child = None

    def pause(self, *, stopped: bool = True) -> None:
        """Stop all of its processes for a while, or let them go on."""
        assert self.child is not None
        if not self.child.has_ended():
            for pid in [*children_of(self.child.process.pid), self.child.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)

    def url(self, database: str = "postgres", role: str = "postgres") -> str:
        return url_of(self.folder, self.password, database, role)

    def run(self, statement: str) -> object:
        return run(self.url(), statement)

    def promote(self) -> None:
        """Promote the standby and wait until it accepts writes."""
        assert self.run("SELECT pg_promote()")

    def _answers(self) -> bool:
        assert self.child is not None
        assert not self.child.has_ended()
        with contextlib.suppress(psycopg2.OperationalError):
            return self.run("SELECT 1") == 1
        return False


def url_of(sockets: Path, password: str, database: str = "postgres", role: str = "postgres") -> str:
    """Return the URL of the server whose socket is in this folder."""
    return f"postgresql://{role}:{quote(password)}@/{database}?host={quote(str(sockets), safe='')}"


def copied(primary_url: str, folder: Path) -> None:
    """Copy the server at `primary_url` (a superuser's, on a Unix socket) to `folder`/data as a standby with the name
    `standby`. The folder's owner runs the copy."""
    url = urlsplit(primary_url)
    host, password = parse_qs(url.query)["host"][0], unquote(url.password or "")
    wanted = f"host={host} user={url.username}"  # without a name, because an unfinished copy would count as a standby
    options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
    subprocess.run(
        [str(program()), *options, "--pgdata", str(folder / "data"), "--dbname", wanted],
        env={"PGPASSWORD": password, "PATH": os.environ["PATH"]},
        cwd="/",
        check=True,
        capture_output=True,
        **Account.of(folder.stat().st_uid).popen_arguments(),
    )
    with (folder / "data" / "postgresql.auto.conf").open("a") as configuration:
        configuration.write("cluster_name = 'standby'\n")


def have_commits_wait(primary: embedded_postgres.Cluster) -> None:
    """Let commits of the role `forgelet` wait until the standby has written them to its disk."""
    url = primary.url("postgres", "postgres")
    run(url, "ALTER ROLE forgelet SET synchronous_commit = 'on'")
    run(url, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    run(url, "SELECT pg_reload_conf()")
    until(lambda: run(url, "SELECT sync_state FROM pg_stat_replication") == "sync", "a synchronous standby")


def command(folder: Path, *options: str) -> list[str]:
    """Return the command that starts a server on `folder`/data, with its socket in `folder`."""
    given = [
        "listen_addresses=",
        f'unix_socket_directories="{folder}"',
        "unix_socket_permissions=0700",
        "shared_buffers=32MB",
        "dynamic_shared_memory_type=mmap",
        *options,
    ]
    program = str(embedded_postgres.preferred().postgres)
    return [program, "-D", str(folder / "data"), *(f"--{option}" for option in given)]


def run(url: str, statement: str) -> object:
    """Run a statement; return the first value of its result."""
    with contextlib.closing(psycopg2.connect(url, connect_timeout=10)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


@contextlib.contextmanager
def standby_of(primary: embedded_postgres.Cluster) -> Iterator[Standby]:
    """Run a standby of `primary` with the name `standby`."""
    with tempfile.TemporaryDirectory(prefix="forgelet-pg-", dir=embedded_postgres.temporary_root()) as name:
        Path(name).chmod(0o711)
        folder = embedded_postgres.make_folder(Path(name) / "standby")
        url = primary.url("postgres", "postgres")
        copied(url, folder)
        password = unquote(urlsplit(url).password or "")
        standby = Standby(folder, password, Account.of(folder.stat().st_uid))
        try:
            standby.start()
            yield standby
        finally:
            standby.stop()
            shutil.rmtree(folder, ignore_errors=True)


def several_hosts(*urls: str, asked: str = "target_session_attrs=read-write") -> str:
    """Return a URL with the hosts of all of these URLs, and with the role and the database of the first."""
    hosts = ",".join(parse_qs(urlsplit(url).query)["host"][0] for url in urls)
    return urlsplit(urls[0])._replace(query=f"host={quote(hosts, safe='')}&{asked}").geturl()


def kill(primary: embedded_postgres.Cluster) -> None:
    """Kill the server as a power failure would: it writes and sends nothing more."""
    assert primary._server is not None
    pid = primary._server.process.pid
    for one in [pid, *children_of(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    primary._server.process.wait()
