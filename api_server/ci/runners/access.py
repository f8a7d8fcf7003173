"""Authentication of runners: the runner that makes a request, the job for which it makes it, and its
machine."""

import functools
from collections.abc import Mapping
from typing import Any

import attrs
from aiohttp import web

from api_server.ci.pipelines.states import EXECUTING
from api_server.ci.runners import job_queries, queries
from api_server.ci.runners.job_queries import AssignedJob
from api_server.ci.runners.queries import CallingRunner, Machine, Runner, RunnerOfUser
from api_server.services import Services
from api_server.state.preconditions import Precondition
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.auth import Actor, acknowledge_job
from api_server.web.errors import ApiError, forbidden, not_found
from api_server.web.request_data import merged
from api_server.web.routes import Role


async def runner_of_token(request: web.Request, token: str | None) -> CallingRunner:
    """Return the calling runner, identified by the token in its parameters or in `RUNNER-TOKEN`. Raise
    403."""
    text = token or request.headers.get("RUNNER-TOKEN")
    runner = await queries.runner_of_token(context.services(request).database, digest(text)) if text else None
    if runner is None:
        raise forbidden()
    return runner


async def runner_alone(request: web.Request, token: str | None) -> Runner:
    """Return the calling runner for a request that changes it: such requests run one at a time, and none with
    a token that has been replaced meanwhile."""
    services = context.services(request)
    runner = await runner_of_token(request, token)
    read = functools.partial(queries.runner_of_token, digest=runner.token_digest)
    name = f"runner:{runner.id}"
    services.require_unchanged(Precondition((name,), runner, read))
    services.revoke(name)
    return runner


async def find_own_runner(services: Services, actor: Actor, runner_id: int) -> Runner:
    """Return a runner that the caller may manage. Raise 404 and 403."""
    runner = await _find_as_caller(services, actor, runner_id)
    if not _looks_after(actor, runner):
        raise forbidden()
    return runner


async def find_runner(services: Services, actor: Actor, runner_id: int) -> Runner:
    """Return a runner that the caller may see: one that she may manage, or one of the instance. Raise 404 and
    403."""
    runner = await _find_as_caller(services, actor, runner_id)
    if not (runner.runner_type == "instance_type" or _looks_after(actor, runner)):
        raise forbidden()
    return runner


async def _find_as_caller(services: Services, actor: Actor, runner_id: int) -> RunnerOfUser:
    user_id = actor.user_id
    runner = await queries.find_runner(services.database, runner_id, user_id)
    if runner is None:
        raise not_found("Runner")
    names = (
        f"user:{user_id}",
        f"runner:{runner.id}",
        *(f"project:{project_id}" for project_id in runner.project_ids),
    )
    read = functools.partial(queries.find_runner, runner_id=runner_id, user_id=user_id)
    services.require_unchanged(Precondition(names, runner, read))
    return runner


def _looks_after(actor: Actor, runner: RunnerOfUser) -> bool:
    """Return whether the caller maintains one of the runner's projects or owns its group."""
    return actor.admin or runner.project_role >= Role.MAINTAINER or runner.group_role >= Role.OWNER


#: Seconds between two pieces of a log, while somebody is watching it and otherwise.
WATCHED_INTERVAL, INTERVAL = 3, 60


@attrs.frozen(kw_only=True)
class HeldJobParams:
    """The parameters of all requests for a job; the token may be in `JOB-TOKEN` instead."""

    id: int
    token: str | None = None


def job_token(request: web.Request, params: HeldJobParams) -> str:
    """Return the token that was sent, or an empty text."""
    return request.headers.get("JOB-TOKEN") or params.token or ""


async def job_of_token(request: web.Request, params: HeldJobParams) -> AssignedJob:
    """Return the job whose token was sent, and record that its runner has responded.

    Raise 403, also if there is no such job or it has been taken back.
    """
    token = digest(job_token(request, params))
    services = context.services(request)
    job = await job_queries.find_assigned_job(services.database, params.id)
    if job is None or job.token_digest != token:
        raise _refused("403 Forbidden")
    if job.unacknowledged and not await acknowledge_job(services, token):
        raise _refused("403 Forbidden")
    return job


async def running_job(request: web.Request, params: HeldJobParams) -> AssignedJob:
    """Return the job like `job_of_token`, if its runner still executes it. Raise 403 with the reason, and the
    status in `Job-Status`."""
    job = await job_of_token(request, params)
    if job.erased_at is not None:
        raise _refused("403 Forbidden - Job has been erased!", job)
    if job.status not in EXECUTING:
        raise _refused("403 Forbidden - Job is not running", job)
    return job


def protocol_headers(job: AssignedJob) -> dict[str, str]:
    """Return the headers that runners read: the job's status (a runner stops a canceled job), and the
    interval for sending the log."""
    interval = str(WATCHED_INTERVAL if job.watched else INTERVAL)
    return {
        "Job-Status": job.status,
        "X-GitLab-Trace-Update-Interval": interval,
        "X-Service-Trace-Update-Interval": interval,
    }


def _refused(text: str, job: AssignedJob | None = None) -> ApiError:
    return ApiError(403, {"message": text}, {"Job-Status": job.status} if job is not None else {})


@attrs.frozen
class Contact:
    """The runner manager that makes the request."""

    manager_id: int
    #: Whether it supports the status `canceling`.
    cancels_gracefully: bool
    #: Whether it supports steps other than `script` and `after_script`, such as `release`.
    takes_steps: bool


async def note_contact(request: web.Request, runner: Runner, system_id: str | None) -> Contact:
    """Record a contact with the runner. Its parameter `info` may have any form: parts of another form are
    ignored."""
    info = _mapping((await merged(request)).get("info"))
    manager_id = await queries.note_manager_contact(
        context.services(request).database, runner.id, _machine(system_id, info, request.remote)
    )
    features = _mapping(info.get("features"))
    return Contact(
        manager_id,
        cancels_gracefully=features.get("cancel_gracefully") is True,
        takes_steps=features.get("multi_build_steps") is True,
    )


def _mapping(reported: Any) -> Mapping[str, Any]:
    return reported if isinstance(reported, dict) else {}


def _machine(system_id: str | None, info: Mapping[str, Any], ip_address: str | None) -> Machine:
    return Machine(
        system_id=system_id or "",
        version=_text(info.get("version")),
        revision=_text(info.get("revision")),
        platform=_text(info.get("platform")),
        architecture=_text(info.get("architecture")),
        executor=_text(info.get("executor")),
        ip_address=ip_address,
    )


def _text(reported: Any) -> str | None:
    return reported.replace("\0", "")[:255] or None if isinstance(reported, str) else None
