"""Which runner a request means: by its own token, or by its id for those who may look after it."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from api_server.ci.runners import queries
from api_server.state.database import Row
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import caller


async def runner_of_token(request: web.Request, token: str | None) -> Row:
    """The runner that calls, by the token in its parameters or in `RUNNER-TOKEN`. Raises 403."""
    sent = token or request.headers.get("RUNNER-TOKEN")
    runner = await queries.runner_of_token(context.database(request), digest(sent)) if sent else None
    if runner is None:
        raise forbidden()
    return runner


async def find_runner(request: web.Request, runner_id: int, *, to_change: bool = False) -> Row:
    """The runner, where the caller may look after it; instance runners may be looked at by everybody.

    Raises 404 where there is none and 403.
    """
    who = caller(request)
    runner = await queries.find_runner(context.database(request), runner_id, who.user_id)
    if runner is None:
        raise not_found("Runner")
    if not (who.admin or looks_after(runner) or (runner.runner_type == "instance_type" and not to_change)):
        raise forbidden()
    return runner


def looks_after(runner: Row) -> bool:
    """Whether the user of `queries.find_runner` maintains one of the runner's projects or owns its group."""
    return bool(runner.project_role >= Role.MAINTAINER or runner.group_role >= Role.OWNER)


def machine(request: web.Request, system_id: str | None, info: Mapping[str, Any]) -> dict[str, str | None]:
    """What a runner says of the machine it is on, in the columns of runner_managers."""
    names = ("version", "revision", "platform", "architecture", "executor")
    told = {name: text if isinstance(text := info.get(name), str) else None for name in names}
    plain = {name: text.replace("\0", "")[:255] if text else None for name, text in told.items()}
    return {**plain, "system_id": (system_id or "")[:255], "ip_address": request.remote}
