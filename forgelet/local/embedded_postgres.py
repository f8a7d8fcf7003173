"""A PostgreSQL server of our own in a folder: created if missing, started, stopped, recovered after a crash.

It listens on a Unix socket in a folder that is closed to other accounts, never on TCP, and asks for a password.
PostgreSQL refuses to run as root, so root runs it as an existing unprivileged account.

An earlier server on the same data is ended or waited for, and its lock files are removed. PostgreSQL relies on process
ids in its lock files, but ids are used again: in a container at every start. So there is also a lock (flock) on a file
beside the data. A server and all its processes inherit it, so it ends with the last of them, in whichever container
they run.
"""

import contextlib
import fcntl
import locale
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from common.config_errors import first_line
from forgelet.local import postgres_binaries
from forgelet.local.data_directory import DataDirectory
from forgelet.local.postgres_binaries import Binaries
from forgelet.local.processes import Account, CannotStart, Child, StartWait, end_processes_in, make_passable

#: The folder for clusters of root whose owner cannot enter the data directory. A symbolic link in the data directory
#: leads here.
ROOTS_CLUSTERS = Path("/var/lib/forgelet")


def make_folder(path: Path) -> Path:
    """Create the folder of a cluster at `path` if it is missing, and return where it really is.

    For root it belongs to an unprivileged account. If that account cannot reach `path`, the folder is below
    /var/lib/forgelet, and `path` is a symbolic link to it. Existing folders keep their permissions.
    """
    if path.exists():
        return path.resolve()
    if os.geteuid() != 0:
        path.mkdir(mode=0o700)
        return path
    account = Account.named("postgres", "nobody")
    if account.may_enter(path.parent):
        path.mkdir(mode=0o700)
        give_folder(path, account)
        return path
    make_passable(ROOTS_CLUSTERS)
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=ROOTS_CLUSTERS))
    give_folder(folder, account)
    path.unlink(missing_ok=True)
    path.symlink_to(folder)
    return folder


def temporary_root() -> str:
    """Return the machine's temporary folder, or /tmp if an unprivileged account cannot enter that one."""
    usual = tempfile.gettempdir()
    if os.geteuid() != 0 or Account.named("postgres", "nobody").may_enter(Path(usual)):
        return usual
    return "/tmp"


def give_folder(path: Path, account: Account) -> None:
    """Make `account` the owner, unless that is our own account."""
    if not account.is_ours:
        os.chown(path, account.uid, account.gid)


#: Prefix of the folders below /tmp for sockets whose path beside the data would be too long.
SOCKET_FOLDER_PREFIX = "forgelet-pg-"
#: Seconds that an earlier server may take to end.
TIMEOUT = 10.0


@contextlib.contextmanager
def clear_leftovers(data: Path, sockets: Path, timeout: float = TIMEOUT) -> Iterator[int]:
    """End earlier servers on `data`, and let nobody start one as long as the block lasts. Yield the open file that the
    new server has to inherit. Raise `CannotStart` if an earlier one cannot be ended from here."""
    # Never through a link: the folder may belong to another account.
    lock = os.open(data.with_name("server.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        pid_file = data / "postmaster.pid"
        if pid_file.exists() or not _is_ours(lock):
            end_processes_in(data, stop_signal=signal.SIGINT, timeout=timeout)
        deadline = time.monotonic() + timeout
        while not _is_ours(lock):
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"A PostgreSQL that cannot be seen from here uses {data}, perhaps in another container: stop that"
                )
            time.sleep(0.05)
        _remove_files_of_ended(pid_file, sockets)
        yield lock
    finally:
        os.close(lock)


def _is_ours(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_files_of_ended(pid_file: Path, sockets: Path) -> None:
    for lock in sockets.glob(".s.PGSQL.*.lock"):
        lock.unlink(missing_ok=True)
    if not pid_file.exists():
        return
    lines = pid_file.read_text().splitlines()
    if (
        len(lines) > 4
        and lines[4].startswith(f"/tmp/{SOCKET_FOLDER_PREFIX}")
        and "/" not in lines[4][5:]
        and lines[4] != str(sockets)
    ):
        shutil.rmtree(lines[4], ignore_errors=True)
    pid_file.unlink(missing_ok=True)


DATABASE = ROLE = "forgelet"
SUPERUSER = "postgres"
#: A socket address holds 107 bytes, and PostgreSQL adds `/.s.PGSQL.5432.lock` to the folder.
_LONGEST_SOCKET_FOLDER = 80
_QUICK_AND_FORGETFUL = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_wal_size=64MB",
    "dynamic_shared_memory_type=mmap",  # in the data folder, so that it is removed with that, however the server ends
)


class Template(Protocol):
    """A faster way than initdb to create missing data."""

    def fill(self, target: Path) -> None:
        """Create the data in `target`. Raise `OSError` if that fails."""

    def discard(self) -> None:
        """Forget this template, because PostgreSQL did not start with its data."""


class Cluster:
    """PostgreSQL's data in `directory`. The owner of the directory runs the server, one at a time."""

    def __init__(
        self,
        directory: Path,
        password: str,
        *,
        durable: bool,
        binaries: Binaries | None = None,
        template: Template | None = None,
        auth: str = "scram-sha-256",
    ) -> None:
        """`auth` is the authentication method of new data, in initdb's words."""
        self.data = directory / "data"
        self._directory = directory
        self._password = password
        self._durable = durable
        self._template = template
        self._auth = auth
        self._account = Account.of(directory.stat().st_uid)
        chosen = binaries or postgres_binaries.preferred(_major_of(self.data))
        self._binaries = postgres_binaries.runnable_by(self._account, chosen)
        self._sockets: Path | None = None
        self._server: Child | None = None

    @property
    def log(self) -> Path:
        """The log of the running server."""
        assert self._server is not None
        return self._server.log

    def start(self, log: Path, wait: StartWait | None = None) -> Child:
        """Return a server that accepts connections and has the role and database `forgelet`. Raise `CannotStart` also
        if that takes longer than `wait`, by default a minute."""
        wait = wait or StartWait()
        copied = self._copied()  # which may start and stop another server here
        with clear_leftovers(self.data, self._sockets or self._directory) as lock:
            if copied is None:
                return self._started(log, lock, wait)
            try:
                return self._started(log, lock, wait)
            except CannotStart:
                copied.discard()
                shutil.rmtree(self.data)
                return self._started(log, lock, wait)

    def _copied(self) -> Template | None:
        """Copy missing data from the template. Return the template if that was done."""
        with contextlib.suppress(OSError):
            if self._template is not None and not self.data.exists():
                self._template.fill(self.data)
                return self._template
        return None

    def _started(self, log: Path, lock: int, wait: StartWait) -> Child:
        if not self.data.exists():
            self._initialise(log.with_name("initdb.log"), wait)
        options = [
            "listen_addresses=",
            'unix_socket_directories="{}"'.format(str(self._socket_folder()).replace('"', '""')),
            "unix_socket_permissions=0700",
            *(() if self._durable else _QUICK_AND_FORGETFUL),
        ]
        self._server = Child(
            "PostgreSQL",
            [str(self._binaries.postgres), "-D", str(self.data), *(f"--{option}" for option in options)],
            log=log,
            account=self._account,
            stop_signal=signal.SIGINT,
            inherits=[lock],
        )
        self._wait_until_ready(self._server, wait)
        self._ensure_database()
        return self._server

    def stop(self, timeout: float = 5.0, hurried: Callable[[], bool] = lambda: False) -> None:
        """End the server by a fast shutdown within seconds, or at once as soon as `hurried` returns true; no data is
        lost either way."""
        if self._server is not None:
            self._server.stop(timeout, hurried)
        if self._sockets not in (None, self._directory):
            shutil.rmtree(self._sockets, ignore_errors=True)

    def url(self, database: str = DATABASE, role: str = ROLE) -> str:
        """Return a libpq URL with the password. The role `forgelet` may create databases, `postgres` may do
        everything."""
        host = quote(str(self._socket_folder()), safe="")
        return f"postgresql://{role}:{quote(self._password)}@/{quote(database)}?host={host}"

    def _initialise(self, log: Path, wait: StartWait) -> None:
        """Run initdb in another folder and rename it, so that an incomplete cluster is never mistaken for a complete
        one."""
        scratch = self._directory / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        password_file = self._directory / "password"
        self._write_password(password_file)
        command = [
            *(str(self._binaries.initdb), "--pgdata", str(scratch), "--username", SUPERUSER),
            *("--pwfile", str(password_file), f"--auth={self._auth}", "--encoding=UTF8", "--no-instructions"),
            *("--locale=C", f"--lc-ctype={_unicode_locale()}"),
            *(() if self._durable else ("--no-sync",)),
        ]
        child = Child("initdb", command, log=log, account=self._account)
        try:
            while not child.has_ended():
                wait.check("PostgreSQL's initdb", log)
                time.sleep(0.01)
            if child.process.returncode != 0:
                raise CannotStart(f"PostgreSQL's initdb failed with {child.account_of_end()}")
        finally:
            child.stop()
            password_file.unlink()
        scratch.rename(self.data)

    def _write_password(self, path: Path) -> None:
        """Write the file, but never through a link: the folder may belong to another account."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            if not self._account.is_ours:
                os.fchown(descriptor, self._account.uid, self._account.gid)
            file.write(f"{self._password}\n")

    def _socket_folder(self) -> Path:
        """Return the folder of the sockets. It never changes, so running servers find a database that was started
        again."""
        if self._sockets is None:
            path = str(self._directory)
            if len(path.encode()) <= _LONGEST_SOCKET_FOLDER and "," not in path:
                self._sockets = self._directory
            else:
                self._sockets = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX, dir="/tmp"))
                give_folder(self._sockets, self._account)
        return self._sockets

    def _wait_until_ready(self, server: Child, wait: StartWait) -> None:
        status_file = self.data / "postmaster.pid"
        try:
            while not _is_ready(status_file, server.process.pid):
                if server.has_ended():
                    raise CannotStart(f"PostgreSQL stopped while starting with {server.account_of_end()}")
                wait.check("PostgreSQL", server.log)
                time.sleep(0.01)
        except CannotStart:
            server.stop()
            raise

    def _ensure_database(self) -> None:
        import psycopg2  # imported while the server starts

        try:
            with contextlib.closing(psycopg2.connect(self.url("postgres", SUPERUSER))) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE])
                    if cursor.fetchone() is None:
                        cursor.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD %s", [self._password])
                    cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                    if cursor.fetchone() is None:
                        cursor.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
                    # Failing statements, which contain people's data, must not be logged.
                    cursor.execute(f"GRANT SET ON PARAMETER log_min_error_statement TO {ROLE}")
                    if not self._durable:  # a server for tests restores its tables
                        cursor.execute(f"GRANT SET ON PARAMETER session_replication_role TO {ROLE}")
        except psycopg2.OperationalError as problem:
            raise CannotStart(f"PostgreSQL in {self.data} refuses us: {first_line(problem)}") from None


def cluster_of(
    data: DataDirectory,
    *,
    durable: bool = True,
    binaries: Binaries | None = None,
    template: Template | None = None,
) -> Cluster:
    """Return the PostgreSQL cluster of `data`, not started. `data` has to be `opened`."""
    password = data.secret("postgres-password")
    directory = make_folder(data.path / "postgres")
    return Cluster(directory, password, durable=durable, binaries=binaries, template=template)


@contextlib.contextmanager
def temporary_cluster(binaries: Binaries | None = None) -> Iterator[Cluster]:
    """Yield a started cluster for tests, fast instead of durable, which leaves nothing behind.

    Use it like this: `with temporary_cluster() as cluster: connect(cluster.url())`.
    """
    with tempfile.TemporaryDirectory(prefix=SOCKET_FOLDER_PREFIX, dir=temporary_root()) as name:
        outside = Path(name)
        outside.chmod(0o711)
        directory = make_folder(outside / "cluster")
        # Nobody else reaches the socket, and SCRAM costs 2 ms of processor time for each connection.
        cluster = Cluster(directory, secrets.token_urlsafe(16), durable=False, binaries=binaries, auth="md5")
        try:
            cluster.start(outside / "server.log")
            yield cluster
        finally:
            cluster.stop()


def _is_ready(status_file: Path, pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        lines = status_file.read_text().splitlines()
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
    return False


def _major_of(data: Path) -> int | None:
    version = data / "PG_VERSION"
    return int(version.read_text()) if version.exists() else None


def _unicode_locale() -> str:
    """Return a locale with the character classes of Unicode, so that searches ignore case; C if there is none."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        return locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        return "C"
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
