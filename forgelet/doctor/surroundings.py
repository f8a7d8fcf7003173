"""Checks of the service's surroundings: the machine (programs, clock, disks, folders, access to files with secrets),
the database, the mail server and the object stores.
"""

import asyncio
import contextlib
import math
import os
import platform
import pwd
import re
import shutil
import ssl
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiosmtplib
import attrs

from api_server.git.processes import OLDEST as OLDEST_GIT
from api_server.git.processes import check_git
from api_server.outbound.mail import SmtpServer, open_outbox
from api_server.settings import Settings
from api_server.state import migrate, secrets
from api_server.state.errors import Unavailable
from api_server.state.migrate import OLDEST_POSTGRESQL, Inspected
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from common.config_errors import ConfigError, check_object_store, require_obstore
from common.settings import SETTINGS_FILE_VARIABLE, secret_in
from forgelet.doctor.findings import (
    REQUEST_SECONDS,
    DiagnosedInstance,
    Finding,
    failed,
    from_error,
    in_thread,
    ok,
    warning,
)

OLDEST_PYTHON = (3, 11)
#: A disk is nearly full if less than this share of its space or of its inodes is free.
NEARLY_FULL = 0.05
#: Number of bytes that are written as a trial, more than a full disk has left.
_TRIAL_BYTES = 64 * 1024
#: A line of a settings file that contains a token or a password.
_SECRET = re.compile(r"^\s*\w*[-_]token\s*=|://[^/\s:]*:[^/\s]+@", re.MULTILINE)
#: Seconds by which a file may be newer than the present time.
_FROM_THE_FUTURE = 60.0


async def versions(instance: DiagnosedInstance) -> list[Finding]:  # noqa: ARG001 - all checks get it
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
    """Check that folders can be written and that their disks have space. If the edge has an account of its own, only
    the edge can find that out for its directory; its readiness says so."""
    folders = [("the folder for temporary files", Path(tempfile.gettempdir()), 0)]
    edge = instance.edge
    if edge is not None and edge.data_dir is not None and not _is_of_another_account(edge.data_dir):
        folders.insert(0, ("the edge's directory", edge.data_dir, 0))
    if instance.api is not None:
        folders.insert(0, ("the data directory", instance.api.data_dir, instance.api.disk_reserve))
    findings = []
    for title, folder, reserve in folders:
        try:
            findings += await in_thread(_folder, title, folder)
            findings += await in_thread(_free_space, title, folder, reserve)
        except OSError as problem:  # this account cannot even find out whether the folder exists
            reason = problem.strerror or type(problem).__name__
            findings.append(failed(f"{title} cannot be used: {reason}: {folder}", _letting_in(folder)))
    return findings


def _is_of_another_account(folder: Path) -> bool:
    """Return whether neither this account nor root owns the folder, as under systemd (`DynamicUser`)."""
    try:
        return folder.stat().st_uid not in (0, os.geteuid())
    except PermissionError:
        return True
    except OSError:
        return False


def _letting_in(folder: Path) -> str:
    return f"let account {_name_of(os.geteuid())} enter and write to {folder}"


def _folder(title: str, folder: Path) -> list[Finding]:
    if not folder.exists():
        above = _nearest(folder)
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return [ok(f"{title} {folder} is not there yet: the first start makes it")]
        return [failed(f"{title} {folder} cannot be made", f"make it, or let this account write to {above}")]
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, and is removed when it is closed
            file.write(b"\0" * _TRIAL_BYTES)
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
    """Return the owner of the folder if everybody may write to it, otherwise None."""
    state = folder.stat()
    return state.st_uid if state.st_mode & stat.S_IWOTH else None


def _remedy_of_folder(folder: Path) -> str:
    if not folder.is_dir():
        return "name a folder"
    if shutil.disk_usage(folder).free < _TRIAL_BYTES:
        return "make room on its disk"
    return _letting_in(folder)


def _free_space(title: str, folder: Path, reserve: int) -> list[Finding]:
    existing = _nearest(folder)
    usage, names = shutil.disk_usage(existing), os.statvfs(existing)
    free = f"{_size(usage.free)} of {_size(usage.total)} are free on the disk of {title}"
    if usage.free < max(reserve, _TRIAL_BYTES):
        reserved = (
            f", {_size(reserve)} are kept free (disk_reserve): nothing is stored any more" if reserve else ""
        )
        return [failed(f"{free}{reserved}", "make room")]
    if usage.free < max(2 * reserve, NEARLY_FULL * usage.total):
        return [warning(free, "make room soon")]
    if names.f_files and names.f_favail < NEARLY_FULL * names.f_files:
        return [warning(f"{names.f_favail} more files fit on the disk of {title}", "make room soon (df -i)")]
    return [ok(free)]


async def modes(instance: DiagnosedInstance) -> list[Finding]:
    """Check that other accounts cannot read files with secrets."""
    files = list(dict.fromkeys(_secret_files(instance)))
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


#: Seconds by which clocks may differ.
CLOCKS_DIFFER = 2.0
#: Number of connections of one process in addition to its pool: for the queue, for listeners, and for a command.
_BESIDE_THE_POOL = 6


async def database(instance: DiagnosedInstance) -> list[Finding]:
    """Check everything about the database that one connection shows."""
    findings: list[Finding] = []
    serves = False
    try:
        if instance.api is not None:
            inspected = await in_thread(_inspect, instance.api)
            serves = inspected.serves
            findings = [_version(inspected), *_suitability(inspected)]
            if inspected.version >= OLDEST_POSTGRESQL:
                findings += [
                    _schema(inspected),
                    *_key(inspected),
                    _connections(inspected, instance.api),
                    _clock(inspected),
                ]
    except ConfigError as error:
        remedy = "start PostgreSQL, or mend database_url: host, port, name, role, password"
        findings = [from_error(error.message, remedy)]
    finally:
        instance.database_serves.set_result(serves)
    return findings


def _inspect(settings: Settings) -> Inspected:
    return migrate.inspect(
        settings.database_url, settings.data_dir, connect_timeout=math.ceil(REQUEST_SECONDS)
    )


def _version(inspected: Inspected) -> Finding:
    if inspected.version < OLDEST_POSTGRESQL:
        return failed(
            f"PostgreSQL is {inspected.version_text}, {OLDEST_POSTGRESQL // 10000} is needed", "upgrade it"
        )
    return ok(f"PostgreSQL {inspected.version_text}: database {inspected.database} as role {inspected.role}")


def _suitability(inspected: Inspected) -> list[Finding]:
    findings = []
    if inspected.read_only:
        findings.append(
            failed(
                "the database is read-only",
                "name the primary server in database_url, or set default_transaction_read_only to off",
            )
        )
    if inspected.encoding != "UTF8":
        findings.append(
            failed(
                f"the database's encoding is {inspected.encoding}, texts need UTF8",
                "make a database with ENCODING 'UTF8'",
            )
        )
    return findings


def _schema(inspected: Inspected) -> Finding:
    if inspected.schema is not None:
        return from_error(inspected.schema)
    if inspected.to_migrate:
        return warning(
            "the database is not of this version's schema yet",
            "back it up; the next start brings it up to date, or run `forgelet migrate`",
        )
    if inspected.lacking:
        return failed(
            f"role {inspected.role} lacks rights ({', '.join(inspected.lacking)})",
            f"run `forgelet migrate --grant-to {inspected.role}` as the role that owns the tables",
        )
    return ok("the schema is this version's, and the role has its rights")


def _key(inspected: Inspected) -> list[Finding]:
    if inspected.key is not None:
        return [from_error(inspected.key)]
    if not inspected.serves:
        return []  # the database's part of the key cannot be read
    if not inspected.has_key:
        return [ok("there is no secret key yet, and nothing encrypted: the first start makes one")]
    return [ok("the secret key is the one that the database's secrets are encrypted with")]


def _connections(inspected: Inspected, settings: Settings) -> Finding:
    needed = settings.database_pool + _BESIDE_THE_POOL
    if inspected.connections < needed:
        return warning(
            f"PostgreSQL allows {inspected.connections} connections, one server may need {needed}",
            "raise max_connections (or the role's or database's CONNECTION LIMIT), or lower database_pool",
        )
    return ok(f"PostgreSQL allows {inspected.connections} connections, one server needs at most {needed}")


def _clock(inspected: Inspected) -> Finding:
    ahead = inspected.clock_ahead
    if abs(ahead) > CLOCKS_DIFFER:
        return warning(
            f"the database's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
            "keep both right (NTP)",
        )
    return ok(f"this machine's clock and the database's agree within {CLOCKS_DIFFER:.0f} s")


#: The object that is put, read and removed. The sweep removes what a killed doctor leaves.
_PROBE, _BYTES = "projects/0/doctor-", b"forgelet doctor\n"
#: Words are searched for, not numbers of statuses, because keys and ports may contain the same digits.
_NOT_ALLOWED = ("AccessDenied", "Forbidden", "Unauthorized", "InvalidAccessKeyId", "SignatureDoesNotMatch")


async def mail(instance: DiagnosedInstance) -> list[Finding]:
    """Check that the mail server accepts a connection and the credentials. No mail is sent."""
    if instance.api is None:
        return []
    outbox = open_outbox(instance.api)
    if not isinstance(outbox, SmtpServer):
        return [ok(f"mail is written to files, smtp_url is not set: {instance.api.data_dir / 'mail'}")]
    server = f"the mail server {outbox.hostname}:{outbox.port}"
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            await outbox.greet()
    except aiosmtplib.SMTPAuthenticationError as problem:
        return [
            failed(f"{server} refuses our name and password: {problem.message}", "mend the user in smtp_url")
        ]
    except ssl.SSLError as problem:
        return [
            failed(
                f"{server} does not speak TLS with us: {problem.reason or problem}",
                "let this machine trust its certificate, or mend the scheme, host and port of smtp_url",
            )
        ]
    except (aiosmtplib.SMTPException, OSError) as problem:
        return [
            failed(
                f"{server} does not take us: {str(problem) or 'it does not answer in time'}",
                "start it, or mend smtp_url",
            )
        ]
    signed_in = " and takes our name and password" if outbox.username else ""
    return [ok(f"{server} answers{signed_in}")]


async def object_store(instance: DiagnosedInstance) -> list[Finding]:
    """Check the service's object store by writing, reading and removing an object. Without an external store, it is the
    folder below the data directory."""
    settings = instance.api
    if settings is None:
        return []
    has_begun = (settings.data_dir / secrets.KEY_FILE).exists()
    return await _store("the object store", settings.object_store_url, settings.data_dir, has_begun=has_begun)


async def shared_store(instance: DiagnosedInstance) -> list[Finding]:
    """Check the edge's shared store."""
    edge = instance.edge
    if edge is None or not edge.shared_store_url:
        return []
    title = "the edge's shared store"
    try:
        require_obstore(title)
    except ConfigError as error:
        return [from_error(error.message)]
    return await _store(title, edge.shared_store_url, Path(), has_begun=False)


async def _store(title: str, url: str, data_dir: Path, *, has_begun: bool) -> list[Finding]:
    parts = urlsplit(url)
    if parts.scheme != "s3":
        folder = Path(unquote(parts.path)) if url else data_dir / "objects"
        if not folder.is_dir():
            if has_begun:
                return [
                    failed(
                        f"{title} is gone: there is no folder {folder}",
                        "mount it, or restore it from a backup",
                    )
                ]
            return [ok(f"{title} {folder} is not there yet: the first start makes it")]
    location = f"{parts.scheme}://{parts.hostname}{parts.path}" if url else str(data_dir / "objects")
    try:
        if url:
            await in_thread(check_object_store, title, url)
        await _try_out(open_objects(url, data_dir, timeout=REQUEST_SECONDS))
    except ConfigError as error:
        return [from_error(error.message)]
    except Unavailable as problem:
        return [_unusable(title, location, problem)]
    return [ok(f"{title} {location} takes, gives and removes objects")]


async def _try_out(objects: Objects) -> None:
    key = f"{_PROBE}{uuid.uuid4().hex}"

    async def chunks() -> AsyncIterator[bytes]:
        yield _BYTES

    try:
        await objects.put(key, chunks())
        content = b"".join([chunk async for chunk in objects.read(key, 0, len(_BYTES))])
    except FileNotFoundError as problem:
        raise Unavailable("the object store") from problem
    finally:
        await objects.delete([key])
    if content != _BYTES:
        raise Unavailable("the object store") from EOFError("it gives other bytes than it has taken")


def _unusable(title: str, location: str, problem: Unavailable) -> Finding:
    cause = str(problem.cause)
    text = f"{title} {location} cannot be used: {cause[:300]}"
    if any(sign in cause for sign in _NOT_ALLOWED):
        return failed(
            text, "mend its credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they may do"
        )
    if "NoSuchBucket" in cause:
        return failed(text, "make the bucket, or mend the setting's URL")
    if "No space" in cause:
        return failed(text, "make room")
    return failed(text, "start it, or mend the setting's URL, AWS_ENDPOINT_URL, or what the folder allows")
