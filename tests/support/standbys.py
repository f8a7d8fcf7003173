"""PostgreSQL servers of a test's own that follow one another: a primary, and standbys made by pg_basebackup."""

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
    """The pg_basebackup beside the server that the tests start; the one of a Python package has none."""
    found = embedded_postgres.preferred().directory / "pg_basebackup"
    return found if found.exists() else None


def until(condition: Callable[[], bool], what: str) -> None:
    """Looks again until it holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


@attrs.define
class Standby:
    """A server in `folder`, which is where its socket is."""

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
        """Has all of its processes do nothing any more, or go on."""
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
        """Until it takes writes."""
        assert self.run("SELECT pg_promote()")

    def _answers(self) -> bool:
        assert self.child is not None
        assert not self.child.has_ended()
        with contextlib.suppress(psycopg2.OperationalError):
            return self.run("SELECT 1") == 1
        return False


def url_of(sockets: Path, password: str, database: str = "postgres", role: str = "postgres") -> str:
    """Of the server whose socket is in this folder."""
    return f"postgresql://{role}:{quote(password)}@/{database}?host={quote(str(sockets), safe='')}"


def copied(primary_url: str, folder: Path) -> None:
    """What the server on a Unix socket at `primary_url` has, a superuser's, in `folder`/data, for a standby of its with
    the name `standby`; made by the folder's owner."""
    url = urlsplit(primary_url)
    host, password = parse_qs(url.query)["host"][0], unquote(url.password or "")
    wanted = f"host={host} user={url.username}"  # no name yet: a copy under way would count as a standby
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
    """Commits of the role `forgelet` are told of when the standby of this one has them on its disk."""
    url = primary.url("postgres", "postgres")
    run(url, "ALTER ROLE forgelet SET synchronous_commit = 'on'")
    run(url, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    run(url, "SELECT pg_reload_conf()")
    until(lambda: run(url, "SELECT sync_state FROM pg_stat_replication") == "sync", "a synchronous standby")


def command(folder: Path, *options: str) -> list[str]:
    """What starts a server on `folder`/data, whose socket is in `folder`."""
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
    """The first value of what a superuser's statement gives."""
    with contextlib.closing(psycopg2.connect(url, connect_timeout=10)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


@contextlib.contextmanager
def standby_of(primary: embedded_postgres.Cluster) -> Iterator[Standby]:
    """One that follows `primary`, with the name `standby`."""
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
    """A URL that names the hosts of all of these, for the role and the database of the first."""
    hosts = ",".join(parse_qs(urlsplit(url).query)["host"][0] for url in urls)
    return urlsplit(urls[0])._replace(query=f"host={quote(hosts, safe='')}&{asked}").geturl()


def kill(primary: embedded_postgres.Cluster) -> None:
    """As if its machine had lost its power: nothing is written down or said any more."""
    assert primary._server is not None
    pid = primary._server.process.pid
    for one in [pid, *children_of(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    primary._server.process.wait()
