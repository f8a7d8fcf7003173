"""Checks of the machine: programs, clock, disks, folders, and access to files with secrets."""

import contextlib
import os
import platform
import pwd
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs

from api_server.git.processes import OLDEST as OLDEST_GIT
from api_server.git.processes import check_git
from api_server.state import secrets
from common.config_errors import ConfigError
from common.settings import SETTINGS_FILE_VARIABLE, secret_in
from forgelet.doctor.findings import DiagnosedInstance, Finding, failed, from_error, in_thread, ok, warning

OLDEST_PYTHON = (3, 11)
#: A disk is nearly full if less than this share of its space or of its inodes is free.
NEARLY_FULL = 0.05
#: Bytes that are written as a trial: more than a full disk has left.
_TRIED = 64 * 1024
#: A line of a settings file that has a token or a password.
_SECRET = re.compile(r"^\s*\w*[-_]token\s*=|://[^/\s:]*:[^/\s]+@", re.MULTILINE)
#: Seconds by which a file may be newer than the clock says.
_FROM_THE_FUTURE = 60.0


async def versions(instance: DiagnosedInstance) -> list[Finding]:  # noqa: ARG001 - of this program
    """Check this program, Python and git."""
    try:
        git = f"git {await in_thread(check_git)}"
    except ConfigError as error:
        return [from_error(error.message)]
    if sys.version_info < OLDEST_PYTHON:
        return [failed(f"Python is {platform.python_version()}", "run it with Python 3.11 or newer")]
    oldest = ".".join(map(str, OLDEST_GIT))
    return [ok(f"forgelet {program()}, Python {platform.python_version()}, {git} ({oldest} is needed)")]


def program() -> str:
    """Return this program's version."""
    try:
        return version("forgelet")
    except PackageNotFoundError:
        return "of a checkout"


async def clock(instance: DiagnosedInstance) -> list[Finding]:
    """Check that no file is newer than now. The examination itself notices a clock that jumps."""
    folders = [
        settings.data_dir
        for settings in (instance.api, instance.edge)
        if settings is not None and settings.data_dir
    ]
    files = [Path(__file__), *folders, *(folder / secrets.KEY_FILE for folder in folders)]
    ahead = 0.0
    for file in files:
        with contextlib.suppress(OSError):
            ahead = max(ahead, file.stat().st_mtime - time.time())
    if ahead > _FROM_THE_FUTURE:
        remedy = "set it right (NTP): tokens, caches and schedules go by it"
        return [
            failed(f"this machine's clock is behind: files here were written {ahead:.0f} s later", remedy)
        ]
    return []


async def disks(instance: DiagnosedInstance) -> list[Finding]:
    """Check that folders can be written and that their disks have space."""
    folders = [("the folder for temporary files", Path(tempfile.gettempdir()), 0)]
    if instance.edge is not None and instance.edge.data_dir is not None:
        folders.insert(0, ("the edge's directory", instance.edge.data_dir, 0))
    if instance.api is not None:
        folders.insert(0, ("the data directory", instance.api.data_dir, instance.api.disk_reserve))
    findings = []
    for title, folder, reserve in folders:
        try:
            findings += await in_thread(_folder, title, folder)
            findings += await in_thread(_room, title, folder, reserve)
        except OSError as problem:  # this account may not even look for it
            reason = problem.strerror or type(problem).__name__
            findings.append(failed(f"{title} cannot be used: {reason}: {folder}", _letting_in(folder)))
    return findings


def _letting_in(folder: Path) -> str:
    return f"let account {_name_of(os.geteuid())} enter and write to {folder}"


def _folder(title: str, folder: Path) -> list[Finding]:
    if not folder.exists():
        above = _nearest(folder)
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return [ok(f"{title} {folder} is not there yet: the first start makes it")]
        return [failed(f"{title} {folder} cannot be made", f"make it, or let this account write to {above}")]
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, and is gone when it is closed
            file.write(b"\0" * _TRIED)
            file.flush()
    except OSError as problem:
        reason = os.strerror(problem.errno or 0)
        return [failed(f"{title} cannot be written: {reason}: {folder}", _remedy_of_folder(folder))]
    owner = folder.stat().st_uid
    if os.geteuid() == 0 and owner not in (0, _any_bodies(folder)):
        return [
            warning(
                f"{title} {folder} belongs to {_name_of(owner)}, and this is root, who may write everywhere",
                f"run the doctor as {_name_of(owner)}",
            )
        ]
    return [ok(f"{title} {folder} can be written")]


def _any_bodies(folder: Path) -> int | None:
    """Return the owner of a folder that everybody may write to, otherwise None."""
    state = folder.stat()
    return state.st_uid if state.st_mode & stat.S_IWOTH else None


def _remedy_of_folder(folder: Path) -> str:
    if not folder.is_dir():
        return "name a folder"
    if shutil.disk_usage(folder).free < _TRIED:
        return "make room on its disk"
    return _letting_in(folder)


def _room(title: str, folder: Path, reserve: int) -> list[Finding]:
    existing = _nearest(folder)
    usage, names = shutil.disk_usage(existing), os.statvfs(existing)
    free = f"{_size(usage.free)} of {_size(usage.total)} are free on the disk of {title}"
    if usage.free < max(reserve, _TRIED):
        kept = (
            f", {_size(reserve)} are kept free (disk_reserve): nothing is stored any more" if reserve else ""
        )
        return [failed(f"{free}{kept}", "make room")]
    if usage.free < max(2 * reserve, NEARLY_FULL * usage.total):
        return [warning(free, "make room soon")]
    if names.f_files and names.f_favail < NEARLY_FULL * names.f_files:
        return [warning(f"{names.f_favail} more files fit on the disk of {title}", "make room soon (df -i)")]
    return [ok(free)]


async def modes(instance: DiagnosedInstance) -> list[Finding]:
    """Check that other accounts cannot read files with secrets."""
    files = list(_secret_files(instance))
    open_ones = [file for file in files if _others_may_read(file)]
    if files and not open_ones:
        return [ok("files with secrets are closed to other accounts")]
    return [
        failed(f"other accounts of this machine may read {file}, in which secrets are", f"chmod 600 {file}")
        for file in open_ones
    ]


def _secret_files(instance: DiagnosedInstance) -> Iterator[Path]:
    for settings in filter(None, (instance.api, instance.edge)):
        for field in attrs.fields(type(settings)):
            file = getattr(settings, field.name)
            if file is not None and (secret_in(field) or field.name == "tls_key"):
                yield file
    if instance.api is not None:
        yield instance.api.data_dir / secrets.KEY_FILE
    if path := instance.environment.get(SETTINGS_FILE_VARIABLE):
        file = Path(path)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if _SECRET.search(file.read_text()):
                yield file


def _others_may_read(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & (stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH))
    except OSError:
        return False


def _nearest(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _size(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
