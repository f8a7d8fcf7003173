"""Which runner a request means: by its own token, or by its id for those who may look after it."""

import functools

from aiohttp import web

from api_server.ci.runners import queries
from api_server.ci.runners.queries import CallingRunner, Runner, RunnerOfUser
from api_server.state.secrets import digest
from api_server.web import context, grounds
from api_server.web.errors import forbidden, not_found
from api_server.web.grounds import Ground
from api_server.web.routes import Role, caller


async def runner_of_token(request: web.Request, token: str | None) -> CallingRunner:
    """The runner that calls, by the token in its parameters or in `RUNNER-TOKEN`. Raises 403."""
    sent = token or request.headers.get("RUNNER-TOKEN")
    runner = await queries.runner_of_token(context.database(request), digest(sent)) if sent else None
    if runner is None:
        raise forbidden()
    return runner


async def runner_alone(request: web.Request, token: str | None) -> Runner:
    """Likewise, for what one request at a time does to a runner, and none with a token that another has replaced."""
    runner = await runner_of_token(request, token)
    read = functools.partial(queries.runner_of_token, digest=runner.token_digest)
    name = f"runner:{runner.id}"
    grounds.rely_on(request, Ground((name,), runner, read))
    grounds.end(request, name)
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
    user_id = caller(request).user_id
    runner = await queries.find_runner(context.database(request), runner_id, user_id)
    if runner is None:
        raise not_found("Runner")
    names = (f"user:{user_id}", f"runner:{runner.id}", *(f"project:{one}" for one in runner.project_ids))
    read = functools.partial(queries.find_runner, runner_id=runner_id, user_id=user_id)
    grounds.rely_on(request, Ground(names, runner, read))
    return runner


def _looks_after(request: web.Request, runner: RunnerOfUser) -> bool:
    """Whether the caller maintains one of the runner's projects or owns its group."""
    return caller(request).admin or runner.project_role >= Role.MAINTAINER or runner.group_role >= Role.OWNER
