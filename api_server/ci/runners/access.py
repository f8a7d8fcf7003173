"""Which runner a request means: by its own token, or by its id for those who may look after it."""

from aiohttp import web

from api_server.ci.runners import queries
from api_server.ci.runners.queries import Runner, RunnerOfUser
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import caller


async def runner_of_token(request: web.Request, token: str | None) -> Runner:
    """The runner that calls, by the token in its parameters or in `RUNNER-TOKEN`. Raises 403."""
    sent = token or request.headers.get("RUNNER-TOKEN")
    runner = await queries.runner_of_token(context.database(request), digest(sent)) if sent else None
    if runner is None:
        raise forbidden()
    return runner


async def find_own_runner(request: web.Request, runner_id: int) -> Runner:
    """A runner that the caller may look after. Raises 404 and 403."""
    runner = await _find(request, runner_id)
    if not _looks_after(request, runner):
        raise forbidden()
    return runner


async def find_runner(request: web.Request, runner_id: int) -> Runner:
    """A runner that the caller may look at: one of her own, or the instance's. Raises 404 and 403."""
    runner = await _find(request, runner_id)
    if not (runner.runner_type == "instance_type" or _looks_after(request, runner)):
        raise forbidden()
    return runner


async def _find(request: web.Request, runner_id: int) -> RunnerOfUser:
    runner = await queries.find_runner(context.database(request), runner_id, caller(request).user_id)
    if runner is None:
        raise not_found("Runner")
    return runner


def _looks_after(request: web.Request, runner: RunnerOfUser) -> bool:
    """Whether the caller maintains one of the runner's projects or owns its group."""
    return caller(request).admin or runner.project_role >= Role.MAINTAINER or runner.group_role >= Role.OWNER
