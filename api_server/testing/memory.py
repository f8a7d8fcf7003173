"""What the process remembers of the state beside the database and the folders, and forgets when that is another one."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from api_server.audit.tasks import HEAD_KEPT
from api_server.ci.jobs.handlers import JOBS_LIMIT
from api_server.ci.pipelines import planning
from api_server.code.housekeeping import UNPACKED
from api_server.code.quotas import QUOTAS
from api_server.code.refs import UNSETTLED
from api_server.operations.figures import FIGURES
from api_server.operations.watch import WATCH
from api_server.pages import sign_in
from api_server.pages.account import password, passwords
from api_server.static_objects import limits as static_object_limits
from api_server.static_objects.archive_builds import ARCHIVES
from api_server.status_checks.tasks import DISPATCHER
from api_server.web.context import DATABASE
from api_server.web.rate_limits import THROTTLE

Forget = Callable[[Any], Awaitable[None] | None]

#: Who has asked how often.
LIMITERS: Mapping[web.AppKey[Any], Forget] = {
    key: lambda limiter: limiter.forget()
    for key in (
        JOBS_LIMIT,
        THROTTLE,
        planning.LIMITS,
        static_object_limits.LIMITS,
        sign_in.BY_ADDRESS,
        sign_in.BY_LOGIN,
        sign_in.UNKNOWN,
        password.BY_USER,
        passwords.BY_ADDRESS,
    )
}
#: All that outlives a request, by where it stands in the application. What looks things up in the database again when
#: `note_change` says so (`LookupCache`) is none of it, nor what only counts what is under way.
REMEMBERED: Mapping[web.AppKey[Any], Forget] = {
    **LIMITERS,
    DATABASE: lambda database: database.note_change(),
    QUOTAS: lambda quotas: quotas.forget(),
    UNSETTLED: lambda unsettled: unsettled.clear(),
    UNPACKED: lambda unpacked: unpacked.clear(),
    ARCHIVES: lambda archives: archives.forget(),
    DISPATCHER: lambda dispatcher: dispatcher.drop(),
    FIGURES: lambda figures: figures.forget(),
    WATCH: lambda watch: watch.forget(),
    HEAD_KEPT: lambda kept: kept.forget(),
}


async def forget(app: web.Application) -> None:
    """The process knows nothing of what was."""
    for key, forget_it in REMEMBERED.items():
        done = forget_it(app[key])
        if inspect.isawaitable(done):
            await done


def forget_who_asked(app: web.Application) -> None:
    """Nobody has asked too often."""
    for key, forget_it in LIMITERS.items():
        forget_it(app[key])
