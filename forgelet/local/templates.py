"""Databases that are made already: a server for tests begins with a copy instead of initdb and all migrations.

A template lies in the user's cache, below a name that says of which PostgreSQL and schema it is. Nothing but time is
lost with it: the folder may be deleted.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

import attrs

from common.mistakes import Mistake
from forgelet.local import embedded_postgres, postgres_binaries
from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import Cluster
from forgelet.local.places import cache
from forgelet.local.postgres_binaries import Binaries

#: Those used last, of some 50 MB each; older ones go when another one is made.
KEPT = 3
#: A template's roles have one password, and so have its copies; their sockets are closed to other accounts.
_PASSWORD = "postgres-password"


def cluster(data: DataDirectory) -> Cluster:
    """As `embedded_postgres.of`, quick instead of durable, and begun with all migrations where that can be had."""
    binaries = postgres_binaries.preferred()
    template = None
    with contextlib.suppress(OSError, Mistake):
        folder = cache("clusters")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():  # another account's says what PostgreSQL is to run
            password = _password(folder)
            data.write_secret(_PASSWORD, password)
            template = Template(folder / _name(binaries, password), data, binaries)
    return embedded_postgres.of(data, durable=False, binaries=binaries, template=template)


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
    import api_server.state

    told = hashlib.sha256()
    for part in (password, binaries.directory, *map(metadata.version, ("forgelet", "procrastinate"))):
        told.update(f"{part}\n".encode())
    for file in sorted(Path(api_server.state.__path__[0]).rglob("*.sql")):
        told.update(file.name.encode() + b"\n" + file.read_bytes())
    return f"{binaries.major}-{told.hexdigest()[:24]}"


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

    made = embedded_postgres.of(data, durable=False, binaries=binaries)
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
