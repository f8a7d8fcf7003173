"""What a server for tests keeps: data in memory for as long as it runs, and a database copied from a template.

The copy spares initdb and all migrations. A template lies in the user's cache, below a name that says of which
PostgreSQL and schema it is. Nothing but time is lost with it: the folder may be deleted.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import attrs

from common.config_errors import ConfigError
from forgelet.local import embedded_postgres, postgres_binaries
from forgelet.local.data_directory import DataDirectory, cache_folder
from forgelet.local.embedded_postgres import Cluster, temporary_root
from forgelet.local.postgres_binaries import Binaries
from forgelet.local.processes import CannotStart, end_processes_in

SHARED_MEMORY = Path("/dev/shm")
#: Containers often have 64 MiB there, which one PostgreSQL fills.
ROOM = 512 * 2**20
_PREFIX = "forgelet-testing-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-[0-9a-f]{{16}}")
#: Seconds after which whoever has made a folder holds it, or has ended: its number may be another process's by now.
_UNHELD = 60.0
#: Seconds that what a killed one has left may take to end.
_TIMEOUT = 2.0


@contextlib.contextmanager
def passing_data() -> Iterator[DataDirectory]:
    """A data directory that is not there yet, and is removed in the end; those of killed processes are at once. Of a
    start that fails the logs stay until the next one, since the sentence about it names them."""
    usual = Path(temporary_root())
    for folder in {SHARED_MEMORY, usual}:
        _remove_leftovers(folder)
    place = SHARED_MEMORY if _has_room(SHARED_MEMORY) else usual
    data = DataDirectory(place / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    names_logs = False
    try:
        yield data
    except CannotStart as problem:
        names_logs = str(data.path) in str(problem)
        raise
    finally:
        for path in data.path.glob("*") if names_logs else [data.path]:
            if path.name != "logs":
                shutil.rmtree(path, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK) and disk.f_bavail * disk.f_frsize >= ROOM


def _remove_leftovers(folder: Path) -> None:
    """What belongs to this account and to no process that lives. Two at once may do it."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_PREFIX}*"):
            name = _NAME.fullmatch(path.name)
            if name and _is_left(path, int(name[1])):
                parts = [path / "api", path / "edge", path / "postgres/data"]
                end_processes_in(*parts, stop_signal=signal.SIGKILL, timeout=_TIMEOUT)
                shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        status = path.stat()
        is_new = Path(f"/proc/{pid}").exists() and time.time() - status.st_mtime < _UNHELD
        if status.st_uid == os.geteuid() and not is_new:
            return not DataDirectory(path).is_held()  # whose process may be one of another container
    return False


#: Those used last, of some 50 MB each; older ones go when another one is made.
KEPT = 3
#: A template's roles have one password, and so have its copies; their sockets are closed to other accounts.
_PASSWORD = "postgres-password"


def templated_cluster(data: DataDirectory) -> Cluster:
    """As `embedded_postgres.of`, quick instead of durable, and begun with all migrations where that can be had."""
    binaries = postgres_binaries.preferred()
    template = None
    with contextlib.suppress(OSError, ConfigError):
        folder = cache_folder("clusters")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():  # another account's says what PostgreSQL is to run
            password = _password(folder)
            data.write_secret(_PASSWORD, password)
            template = Template(folder / _name(binaries, password), data, binaries)
    return embedded_postgres.cluster_of(data, durable=False, binaries=binaries, template=template)


def _password(folder: Path) -> str:
    """Drawn by the first, for all; again where a full disk or a loss of power has left none."""
    kept = folder / _PASSWORD
    with _alone(folder):
        if not kept.exists() or not kept.read_text():
            kept.touch(mode=0o600)
            kept.write_text(secrets.token_urlsafe(24))
        return kept.read_text()


def _name(binaries: Binaries, password: str) -> str:
    """What a cluster depends on, as a name for a folder."""
    from importlib import metadata  # `up` imports this module before anything else

    import api_server.state

    digest = hashlib.sha256()
    for part in (password, binaries.directory, *map(metadata.version, ("forgelet", "procrastinate"))):
        digest.update(f"{part}\n".encode())
    for file in sorted(Path(api_server.state.__path__[0]).rglob("*.sql")):
        digest.update(file.name.encode() + b"\n" + file.read_bytes())
    return f"{binaries.major}-{digest.hexdigest()[:24]}"


@attrs.frozen
class Template:
    """The one at `path`, which need not be there yet; `data` is whose database is wanted."""

    path: Path
    _data: DataDirectory
    _binaries: Binaries

    def fill(self, target: Path) -> None:
        """Makes `target` a copy, and the template before it where it is missing. Raises `OSError`."""
        with _alone(self.path.parent) as lock:
            if self.path.is_dir():
                os.utime(self.path)
            else:
                _make(self.path, self._data, self._binaries)
            fcntl.flock(lock, fcntl.LOCK_SH)  # others may copy too, and nobody removes it
            _copy(self.path, target)

    def discard(self) -> None:
        """Has the next start make another one."""
        with contextlib.suppress(OSError), _alone(self.path.parent):
            _remove(self.path)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[IO[str]]:
    """Of those who start at the same moment one makes what is missing, and the others wait."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _make(template: Path, data: DataDirectory, binaries: Binaries) -> None:
    """In the place where the copy is wanted, whose account can reach it; then it is brought here."""
    from api_server.state.migrate import migrate  # takes longer than all else here

    made = embedded_postgres.cluster_of(data, durable=False, binaries=binaries)
    made.start(data.log("postgres"))
    try:
        migrate(made.url())
    finally:
        made.stop()
    scratch = template.with_name("new")
    shutil.rmtree(scratch, ignore_errors=True)
    _copy(made.data, scratch)
    subprocess.run(["sync", "-f", str(scratch)], capture_output=True, check=False)  # before it has its name
    shutil.rmtree(made.data)
    scratch.rename(template)
    keep_few(template.parent)


def keep_few(folder: Path) -> None:
    """Removes all templates but those used last."""
    found = [one for one in folder.iterdir() if one.is_dir()]
    for old in sorted(found, key=lambda one: one.stat().st_mtime, reverse=True)[KEPT:]:
        _remove(old)


def _remove(template: Path) -> None:
    """What is left of it, if we are killed, is not taken for a whole one."""
    scratch = template.with_name("old")
    shutil.rmtree(scratch, ignore_errors=True)
    template.rename(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _copy(cluster: Path, target: Path) -> None:
    """With its owner, and by shared blocks where the file system has them. Raises `OSError`."""
    done = subprocess.run(["cp", "-pR", str(cluster), str(target)], capture_output=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        raise OSError(done.stderr.decode(errors="replace"))
