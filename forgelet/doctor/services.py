"""What the service uses of others: the mail server and the object stores."""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiosmtplib

from api_server.outbound.mail import SmtpServer, open_outbox
from api_server.state import secrets
from api_server.state.errors import Unavailable
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from common.mistakes import Mistake, check_object_store, require_obstore
from forgelet.doctor.findings import Finding, failed, of_mistake, ok
from forgelet.doctor.patient import REQUEST_SECONDS, Patient, in_thread

#: What is put, read and removed again; the sweep takes away what a killed doctor leaves.
_PROBE, _BYTES = "projects/0/doctor-", b"forgelet doctor\n"
#: In words: keys and ports have digits of all kinds.
_NOT_ALLOWED = ("AccessDenied", "Forbidden", "Unauthorized", "InvalidAccessKeyId", "SignatureDoesNotMatch")


async def mail(patient: Patient) -> list[Finding]:
    """The mail server takes us; nothing is sent."""
    if patient.api is None:
        return []
    outbox = open_outbox(patient.api)
    if not isinstance(outbox, SmtpServer):
        return [ok(f"mail is written to files, smtp_url is not set: {patient.api.data_dir / 'mail'}")]
    place = f"the mail server {outbox.hostname}:{outbox.port}"
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            await outbox.greet()
    except aiosmtplib.SMTPAuthenticationError as problem:
        return [
            failed(f"{place} refuses our name and password: {problem.message}", "mend the user in smtp_url")
        ]
    except ssl.SSLError as problem:
        return [
            failed(
                f"{place} does not speak TLS with us: {problem.reason or problem}",
                "mend its certificate, or the scheme and port of smtp_url",
            )
        ]
    except (aiosmtplib.SMTPException, OSError) as problem:
        return [
            failed(
                f"{place} does not take us: {str(problem) or 'it does not answer in time'}",
                "start it, or mend smtp_url",
            )
        ]
    signed_in = " and takes our name and password" if outbox.username else ""
    return [ok(f"{place} answers{signed_in}")]


async def object_store(patient: Patient) -> list[Finding]:
    """The service's store: an object is put, read and removed. The folder below the data directory is no store that
    anybody has set: it is looked at with that."""
    settings = patient.api
    if settings is None:
        return []
    has_begun = (settings.data_dir / secrets.KEY_FILE).exists()
    return await _store("the object store", settings.object_store_url, settings.data_dir, has_begun=has_begun)


async def shared_store(patient: Patient) -> list[Finding]:
    """The second tier of the edge of these settings."""
    edge = patient.edge
    if edge is None or not edge.shared_store_url:
        return []
    title = "the edge's shared store"
    try:
        require_obstore(title)
    except Mistake as mistake:
        return [of_mistake(mistake.message)]
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
    place = f"{parts.scheme}://{parts.hostname}{parts.path}" if url else str(data_dir / "objects")
    try:
        if url:
            await in_thread(check_object_store, title, url)
        await _try_out(open_objects(url, data_dir, timeout=REQUEST_SECONDS))
    except Mistake as mistake:
        return [of_mistake(mistake.message)]
    except Unavailable as problem:
        return [_unusable(title, place, problem)]
    return [ok(f"{title} {place} takes, gives and removes objects")]


async def _try_out(objects: Objects) -> None:
    key = f"{_PROBE}{uuid.uuid4().hex}"

    async def chunks() -> AsyncIterator[bytes]:
        yield _BYTES

    try:
        await objects.put(key, chunks())
        found = b"".join([chunk async for chunk in objects.read(key, 0, len(_BYTES))])
    except FileNotFoundError as problem:
        raise Unavailable("the object store") from problem
    finally:
        await objects.delete([key])
    if found != _BYTES:
        raise Unavailable("the object store") from EOFError("it gives other bytes than it has taken")


def _unusable(title: str, place: str, problem: Unavailable) -> Finding:
    cause = str(problem.cause)
    what = f"{title} {place} cannot be used: {cause[:300]}"
    if any(sign in cause for sign in _NOT_ALLOWED):
        return failed(
            what, "mend its credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they may do"
        )
    if "NoSuchBucket" in cause:
        return failed(what, "make the bucket, or mend the setting's URL")
    if "No space" in cause:
        return failed(what, "make room")
    return failed(what, "start it, or mend the setting's URL, AWS_ENDPOINT_URL, or what the folder allows")
