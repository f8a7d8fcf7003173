"""`POST /jobs/:id/artifacts` and `GET /jobs/:id/artifacts`: runners bring artifacts, and fetch those of other jobs."""

import attrs
from aiohttp import web

from api_server.ci.jobs.artifacts.answer import archive_of, send_artifact
from api_server.ci.pipelines.states import EXECUTING
from api_server.ci.runners import job_token_queries
from api_server.ci.runners.artifact_quota import room_of
from api_server.ci.runners.artifact_storing import store
from api_server.ci.runners.job_token import OneJob, job_of_token, job_token, protocol_headers, running_job
from api_server.ci.runners.multipart import too_large
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.auth import acknowledge_job
from api_server.web.errors import forbidden
from api_server.web.routes import ANYONE, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class Authorize(OneJob):
    filesize: int | None = None


@routes.post("/jobs/{id}/artifacts/authorize", access=ANYONE)
async def authorize_upload(request: web.Request, wanted: Authorize) -> web.Response:
    """Whether a file of `filesize` bytes would be taken."""
    job = await running_job(request, wanted)
    limit = context.settings(request).artifact_limit
    if (wanted.filesize or 0) > limit:
        raise too_large()
    with await room_of(request, job.project_id) as room:
        room.grow(wanted.filesize or 0)
    most = limit if room.left is None else min(limit, room.left)
    return json_value({"MaximumSize": most}, headers=protocol_headers(job))


@routes.post("/jobs/{id}/artifacts", access=ANYONE, streams_body="multipart/form-data")
async def upload_artifact(request: web.Request, wanted: OneJob) -> web.Response:
    """201. The same file again is 201 too; another one of a type that the job has is refused with 400."""
    job = await running_job(request, wanted)
    await store(request, job)
    return web.Response(status=201, text="201", headers=protocol_headers(job))


@routes.get("/jobs/{id}/artifacts", access=ANYONE)
async def download_artifacts(request: web.Request, wanted: OneJob) -> web.StreamResponse:
    """The archive, for the job itself and for running jobs of the same pipeline."""
    await _check_may_download(request, wanted)
    return await send_artifact(request, await archive_of(request, wanted.id))


async def _check_may_download(request: web.Request, wanted: OneJob) -> None:
    token = digest(job_token(request, wanted))
    neighbour = await job_token_queries.find_neighbour(context.database(request), token, wanted.id)
    if neighbour is None:
        await job_of_token(request, wanted)
    elif neighbour.status not in EXECUTING:
        raise forbidden("Job is not running")
    elif neighbour.unacknowledged and not await acknowledge_job(request, token):
        raise forbidden()
