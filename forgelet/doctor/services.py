"""Checks of what the service uses: database, mail server and object stores."""

import asyncio
import math
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiosmtplib

from api_server.outbound.mail import SmtpServer, open_outbox
from api_server.settings import Settings
from api_server.state import migrate, secrets
from api_server.state.errors import Unavailable
from api_server.state.migrate import OLDEST_POSTGRESQL, Inspected
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from common.config_errors import ConfigError, check_object_store, require_obstore
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

#: Seconds by which clocks may differ.
CLOCKS_DIFFER = 2.0
#: Connections of one process in addition to its pool: the queue's, the listeners', and one for a command like this.
_BESIDE_THE_POOL = 6


async def database(instance: DiagnosedInstance) -> list[Finding]:
    """Check everything that one connection shows of the database."""
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
        return [ok("there is no secret key yet, and nothing that one has sealed: the first start makes one")]
    return [ok("the secret key is the one that the database's secrets are sealed under")]


def _connections(inspected: Inspected, settings: Settings) -> Finding:
    needed = settings.database_pool + _BESIDE_THE_POOL
    if inspected.connections < needed:
        return warning(
            f"PostgreSQL gives {inspected.connections} connections, one server may want {needed}",
            "raise max_connections (or the role's or database's CONNECTION LIMIT), or lower database_pool",
        )
    return ok(f"PostgreSQL gives {inspected.connections} connections, one server wants at most {needed}")


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
#: Compared as words, because keys and ports have all kinds of digits.
_NOT_ALLOWED = ("AccessDenied", "Forbidden", "Unauthorized", "InvalidAccessKeyId", "SignatureDoesNotMatch")


async def mail(instance: DiagnosedInstance) -> list[Finding]:
    """Check that the mail server accepts us. No mail is sent."""
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
                "mend its certificate, or the scheme and port of smtp_url",
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
    """Check the service's object store by putting, reading and removing an object. Without an external store, it is the
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
    what = f"{title} {location} cannot be used: {cause[:300]}"
    if any(sign in cause for sign in _NOT_ALLOWED):
        return failed(
            what, "mend its credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they may do"
        )
    if "NoSuchBucket" in cause:
        return failed(what, "make the bucket, or mend the setting's URL")
    if "No space" in cause:
        return failed(what, "make room")
    return failed(what, "start it, or mend the setting's URL, AWS_ENDPOINT_URL, or what the folder allows")
