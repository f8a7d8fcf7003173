"""`POST /jobs/:id/artifacts` and `GET /jobs/:id/artifacts`: runners bring artifacts, and fetch those of other jobs."""

import datetime
from typing import Literal, get_args

import attrs
from aiohttp import web

from api_server.ci.config import durations
from api_server.ci.config.errors import ConfigError
from api_server.ci.config.keywords import REPORTS
from api_server.ci.jobs.artifacts import queries
from api_server.ci.jobs.artifacts.answer import send_artifact
from api_server.ci.pipelines.states import EXECUTING
from api_server.ci.runners import dotenv
from api_server.ci.runners.artifact_receiving import Received, receive, too_large
from api_server.ci.runners.current_job import job_of_token, protocol_headers, running_job
from api_server.state.database import Conflict, Row
from api_server.state.objects import OBJECTS
from api_server.state.secrets import digest
from api_server.state.statements import Statement
from api_server.web import context
from api_server.web.access import ANYONE
from api_server.web.answers import json_value
from api_server.web.errors import bad_request, forbidden, not_found
from api_server.web.params import parse, parse_query, structure
from api_server.web.routes import Routes

routes = Routes()

Format = Literal["zip", "gzip", "raw"]
FORMATS: tuple[Format, ...] = get_args(Format)
FILE_TYPES = frozenset({"archive", "metadata", *REPORTS})


@attrs.frozen(kw_only=True)
class JobToken:
    id: int
    token: str | None = None


@attrs.frozen(kw_only=True)
class Authorize(JobToken):
    filesize: int | None = None


@attrs.frozen(kw_only=True)
class Upload:
    """What is said of a file, in the query or in the form's fields."""

    artifact_type: str = "archive"
    artifact_format: Format | None = None
    expire_in: str | None = None


@routes.post("/jobs/{id}/artifacts/authorize", access=ANYONE)
async def authorize_upload(request: web.Request) -> web.Response:
    """Whether a file of `filesize` bytes would be taken."""
    wanted = await parse(request, Authorize)
    job = await running_job(request, wanted.id, wanted.token)
    limit = context.settings(request).artifact_limit
    if (wanted.filesize or 0) > limit:
        raise too_large()
    return json_value({"MaximumSize": limit}, headers=protocol_headers(job))


@routes.post("/jobs/{id}/artifacts", access=ANYONE, streams_body=True)
async def upload_artifact(request: web.Request) -> web.Response:
    """201. The same file again is 201 too; another one of a type that the job has is refused with 400."""
    sent = parse_query(request, JobToken)
    job = await running_job(request, sent.id, sent.token)
    objects = request.config_dict[OBJECTS]
    folder = f"projects/{job.project_id}/jobs/{job.id}"
    received = await receive(request, objects, folder, context.settings(request).artifact_limit)
    try:
        added = await _add(request, job, received)
    except BaseException:
        await objects.delete([received.key])
        raise
    if not added:
        await objects.delete([received.key])
    return web.Response(status=201, text="201", headers=protocol_headers(job))


async def _add(request: web.Request, job: Row, received: Received) -> bool:
    """False where the job has this very file already. Raises 400 and 403."""
    said = structure({**received.fields, **request.query}, Upload)
    if said.artifact_type not in FILE_TYPES:
        raise bad_request(f"{said.artifact_type} is no type of artifact")
    variables = await _report(request, received) if said.artifact_type == "dotenv" else {}
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
            if variables:
                vault = context.vault(request)
                sealed = {key: vault.encrypt(value) for key, value in variables.items()}
                await queries.set_report_variables(transaction, job.id, sealed)
    except Conflict:
        known = await queries.find_artifact(context.database(request), job.id, said.artifact_type)
        if known is None or bytes(known.sha256) != received.sha256:
            raise bad_request("another artifact of the same type already exists") from None
        return False
    return True


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
    seconds: int | None = context.settings(request).artifacts_expire_in
    if expire_in:
        try:
            seconds = durations.parse(expire_in)
        except (ConfigError, ValueError):
            raise bad_request("expire_in is not a duration") from None
    if not seconds:
        return None
    return context.now(request) + datetime.timedelta(seconds=seconds)


@routes.get("/jobs/{id}/artifacts", access=ANYONE)
async def download_artifacts(request: web.Request) -> web.StreamResponse:
    """The archive, for the job itself and for running jobs of the same pipeline."""
    wanted = await parse(request, JobToken)
    await _check_may_download(request, wanted)
    archive = await queries.find_artifact(context.database(request), wanted.id)
    if archive is None:
        raise not_found("Artifacts")
    return await send_artifact(request, archive)


SHARES_PIPELINE = Statement("""
    SELECT asking.status FROM jobs asking JOIN jobs asked ON asked.pipeline_id = asking.pipeline_id
    WHERE asking.token_digest = %(digest)s AND asking.erased_at IS NULL AND asked.id = %(id)s AND asking.id <> asked.id
""")


async def _check_may_download(request: web.Request, wanted: JobToken) -> None:
    token = request.headers.get("JOB-TOKEN") or wanted.token or ""
    status = await context.database(request).value(SHARES_PIPELINE, digest=digest(token), id=wanted.id)
    if status is None:
        await job_of_token(request, wanted.id, wanted.token)
    elif status not in EXECUTING:
        raise forbidden("Job is not running")
