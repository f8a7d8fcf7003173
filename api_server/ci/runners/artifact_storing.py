"""What becomes of an uploaded file: an object, and the row that names it."""

import datetime
from collections import Counter
from typing import Literal

import attrs
from aiohttp import web

from api_server.ci.config import checks
from api_server.ci.config.execution import REPORTS
from api_server.ci.jobs.artifacts import queries
from api_server.ci.runners import dotenv
from api_server.ci.runners.artifact_quota import ARRIVING, Room, room_of
from api_server.ci.runners.job_token_queries import HeldJob
from api_server.ci.runners.multipart import Received, receive, too_large
from api_server.state.errors import Conflict, Unavailable
from api_server.state.objects import OBJECTS
from api_server.web import context
from api_server.web.context import SETTINGS
from api_server.web.errors import bad_request, forbidden
from api_server.web.params import structure
from api_server.zip_files.directory import Limits, TooMuchError
from api_server.zip_files.members import ZIP_FILES, ZipFiles, with_indices

Format = Literal["zip", "gzip", "raw"]
FILE_TYPES = frozenset({"archive", "metadata", *REPORTS})


def setup(app: web.Application) -> None:
    settings = app[SETTINGS]
    limits = Limits(settings.artifact_members_limit, settings.artifact_unpacked_limit)
    app[ZIP_FILES] = ZipFiles(app[OBJECTS], limits)
    app[ARRIVING] = Counter()


@attrs.frozen(kw_only=True)
class Upload:
    """What is said of a file, in the query or in the form's fields."""

    artifact_type: str = "archive"
    artifact_format: Format | None = None
    expire_in: str | None = None


async def store(request: web.Request, job: HeldJob) -> None:
    """The request's file becomes an artifact of the job, unless it has this very file already. Raises 400, 403 and 413,
    and keeps nothing then."""
    objects = request.config_dict[OBJECTS]
    folder = f"projects/{job.project_id}/jobs/{job.id}"
    limit = context.settings(request).artifact_limit
    with await room_of(request, job.project_id) as room:

        def grow(size: int) -> None:
            if size > limit:
                raise too_large()
            room.grow(size)

        received = await receive(request, objects, folder, grow)
        try:
            added = await _add(request, job, received, room)
        except Unavailable:  # its row may be there even so; if not, the object is swept
            raise
        except Exception:
            await objects.discard(with_indices([received.key]))
            raise
        if not added:
            await objects.discard(with_indices([received.key]))


async def _add(request: web.Request, job: HeldJob, received: Received, room: Room) -> bool:
    """False where the job has this very file already. Raises 400, 403 and 413."""
    said = structure({**received.fields, **request.query}, Upload)
    if said.artifact_type not in FILE_TYPES:
        raise bad_request(f"{said.artifact_type} is no type of artifact")
    variables = await _report(request, received) if said.artifact_type == "dotenv" else {}
    if said.artifact_type == "archive":
        await _index(request, received)
    try:
        async with context.database(request).transaction() as transaction:
            added = await queries.add_artifact(
                transaction,
                job.id,
                file_type=said.artifact_type,
                file_format=said.artifact_format or REPORTS.get(said.artifact_type, ("", "zip"))[1],
                filename=received.filename,
                size=received.size,
                object_key=received.key,
                sha256=received.sha256,
                expire_at=_expire_at(request, said.expire_in),
            )
            if not added:
                raise forbidden("Job is not running")
            await room.settled(transaction)
            if variables:
                vault = context.vault(request)
                sealed = {key: vault.encrypt(value) for key, value in variables.items()}
                await queries.set_report_variables(transaction, job.id, sealed)
    except Conflict:
        known = await queries.find_artifact(context.database(request), job.id, said.artifact_type)
        if known is None or known.sha256 != received.sha256:
            raise bad_request("another artifact of the same type already exists") from None
        return False
    return True


async def _index(request: web.Request, received: Received) -> None:
    try:
        await request.config_dict[ZIP_FILES].make_index(received.key)
    except TooMuchError as problem:
        raise too_large(f"The archive has more than {problem}") from None


async def _report(request: web.Request, received: Received) -> dict[str, str]:
    objects = request.config_dict[OBJECTS]
    if received.size > dotenv.MAX_BYTES * 2:
        raise bad_request(f"Dotenv Artifact Too Big. Maximum Allowable Size: {dotenv.MAX_BYTES}")
    content = b"".join([piece async for piece in objects.read(received.key, 0, received.size)])
    try:
        return dotenv.parse(content)
    except dotenv.InvalidReport as problem:
        raise bad_request(str(problem)) from None


def _expire_at(request: web.Request, expire_in: str | None) -> datetime.datetime | None:
    """`expire_in` as CI files say it (`1 week`, `never`, seconds); without it, what the setting says."""
    seconds = context.settings(request).artifacts_expire_in
    try:
        if expire_in:
            seconds = checks.parse_duration(expire_in)
        return context.now(request) + datetime.timedelta(seconds=seconds) if seconds else None
    except (ValueError, OverflowError):  # no duration, or one that ends after the year 9999
        raise bad_request("expire_in is not a duration") from None
