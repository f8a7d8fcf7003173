"""The data of a server for tests, which is in memory while it runs; its database is copied from a template.

The copy saves initdb and all migrations. Templates are in the user's cache, in folders named after the PostgreSQL and
the schema. The cache may be deleted: that costs only time.
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
from forgelet.local import embedded_postgres
from forgelet.local.data_directory import DataDirectory, cache_folder
from forgelet.local.embedded_postgres import Binaries, Cluster, temporary_root
from forgelet.local.processes import CannotStart, end_processes_in

SHARED_MEMORY = Path("/dev/shm")
#: Minimum free space in bytes. Containers often have only 64 MiB of shared memory, which one PostgreSQL fills.
MIN_FREE_BYTES = 512 * 2**20
_PREFIX = "forgelet-testing-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-[0-9a-f]{{16}}")
#: Seconds after which the process that created a folder holds it or has ended. Later its id may belong to another
#: process.
_UNHELD = 60.0
#: Maximum number of seconds for ending the processes that a killed server has left.
_TIMEOUT = 2.0


@contextlib.contextmanager
def passing_data() -> Iterator[DataDirectory]:
    """Yield a data directory that does not exist yet, and remove it at the end. Before that, remove the directories of
    killed processes. The logs of a failed start are kept until the next one, because its error names them."""
    usual = Path(temporary_root())
    for folder in {SHARED_MEMORY, usual}:
        _remove_leftovers(folder)
    parent = SHARED_MEMORY if _has_room(SHARED_MEMORY) else usual
    data = DataDirectory(parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
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
    return os.access(folder, os.W_OK | os.X_OK) and disk.f_bavail * disk.f_frsize >= MIN_FREE_BYTES


def _remove_leftovers(folder: Path) -> None:
    """Remove the directories of this account that belong to no living process. Several processes may do this at
    once."""
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
            return not DataDirectory(path).is_held()  # its process may be in another container
    return False


#: Number of templates that are kept, of about 50 MB each. Creating another one removes the least recently used.
MAX_TEMPLATES = 3
#: The roles of a template and of its copies have one password. Their sockets are closed to other accounts.
_PASSWORD = "postgres-password"


def templated_cluster(data: DataDirectory) -> Cluster:
    """Return the cluster of `data`, fast instead of durable, already migrated if a template can be used."""
    binaries = embedded_postgres.preferred()
    template = None
    with contextlib.suppress(OSError, ConfigError):
        folder = cache_folder("clusters")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():  # another account could choose what PostgreSQL runs
            password = _password(folder)
            data.write_secret(_PASSWORD, password)
            template = Template(folder / _name(binaries, password), data, binaries)
    return embedded_postgres.cluster_of(data, durable=False, binaries=binaries, template=template)


def _password(folder: Path) -> str:
    """Return the password of all templates. It is generated once, and again if a full disk or a crash has lost it."""
    file = folder / _PASSWORD
    with _alone(folder):
        if not file.exists() or not file.read_text():
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe(24))
        return file.read_text()


def _name(binaries: Binaries, password: str) -> str:
    """Return a folder name that differs if anything differs on which the content of a cluster depends."""
    from importlib import metadata  # imported here, because `up` imports this module before anything else

    import api_server.state

    digest = hashlib.sha256()
    for part in (password, binaries.directory, *map(metadata.version, ("forgelet", "procrastinate"))):
        digest.update(f"{part}\n".encode())
    for file in sorted(Path(api_server.state.__path__[0]).rglob("*.sql")):
        digest.update(file.name.encode() + b"\n" + file.read_bytes())
    return f"{binaries.major}-{digest.hexdigest()[:24]}"


@attrs.frozen
class Template:
    """The template at `path`, which may not exist yet, for the database of `data`."""

    path: Path
    _data: DataDirectory
    _binaries: Binaries

    def fill(self, target: Path) -> None:
        """Copy the template to `target`. Create it first if it is missing. Raise `OSError`."""
        with _alone(self.path.parent) as lock:
            if self.path.is_dir():
                os.utime(self.path)
            else:
                _make(self.path, self._data, self._binaries)
            fcntl.flock(lock, fcntl.LOCK_SH)  # others may copy at the same time, but nobody may remove it
            _copy(self.path, target)

    def discard(self) -> None:
        """Remove the template, so that the next start creates another one."""
        with contextlib.suppress(OSError), _alone(self.path.parent):
            _remove(self.path)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[IO[str]]:
    """Prevent other processes from creating or removing templates for the duration of the block. Yield the lock."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _make(template: Path, data: DataDirectory, binaries: Binaries) -> None:
    """Create a cluster in the folder of `data`, because PostgreSQL's account can reach that, and move it here."""
    from api_server.state.migrate import migrate  # imported here, because this takes long

    cluster = embedded_postgres.cluster_of(data, durable=False, binaries=binaries)
    cluster.start(data.log("postgres"))
    try:
        migrate(cluster.url())
    finally:
        cluster.stop()
    scratch = template.with_name("new")
    shutil.rmtree(scratch, ignore_errors=True)
    _copy(cluster.data, scratch)
    subprocess.run(["sync", "-f", str(scratch)], capture_output=True, check=False)  # before it gets its name
    shutil.rmtree(cluster.data)
    scratch.rename(template)
    keep_few(template.parent)


def keep_few(folder: Path) -> None:
    """Remove all templates but the `MAX_TEMPLATES` last used ones."""
    templates = [template for template in folder.iterdir() if template.is_dir()]
    for old in sorted(templates, key=lambda template: template.stat().st_mtime, reverse=True)[MAX_TEMPLATES:]:
        _remove(old)


def _remove(template: Path) -> None:
    """Remove a template. If this process is killed, the rest is not mistaken for a complete template."""
    scratch = template.with_name("old")
    shutil.rmtree(scratch, ignore_errors=True)
    template.rename(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _copy(cluster: Path, target: Path) -> None:
    """Copy a cluster with its owner, by shared blocks if the file system supports that. Raise `OSError`."""
    result = subprocess.run(["cp", "-pR", str(cluster), str(target)], capture_output=True, check=False)
    if result.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        raise OSError(result.stderr.decode(errors="replace"))
