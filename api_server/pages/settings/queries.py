# mypy: disable-error-code="empty-body"
"""Statements of the pages of settings, for facts that the API does not show."""

import datetime

import attrs

from api_server.ci.runners.queries import ENTITIES as RUNNERS
from api_server.ci.runners.queries import OF_GROUP, OF_PROJECT
from api_server.mirrors.running import LOCK_PREFIX
from api_server.state.database import Executor
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page


@attrs.frozen
class QueuedRun:
    """A queued run of a mirror. `scheduled_at` is None if it begins as soon as a worker is free."""

    mirror_id: int
    scheduled_at: datetime.datetime | None


@statement(f"""
    SELECT mirrors.id AS mirror_id, queued.scheduled_at
    FROM remote_mirrors mirrors JOIN procrastinate_jobs queued
        ON queued.queueing_lock = '{LOCK_PREFIX}' || mirrors.id AND queued.status = 'todo'
    WHERE mirrors.project_id = %(project_id)s
    """)
async def queued_runs(database: Executor, project_id: int) -> list[QueuedRun]:
    """Return the queued runs of the project's mirrors."""


_DETAILS, _RUNNERS = RUNNERS["runner_details"], "SELECT runners.* FROM runners WHERE"
RUNNERS_OF_PROJECT = ListQuery(_DETAILS, f"{_RUNNERS} {OF_PROJECT}")
RUNNERS_OF_GROUP = ListQuery(_DETAILS, f"{_RUNNERS} {OF_GROUP}")


async def list_runners(
    database: Executor, page: Page, *, project_id: int | None = None, namespace_id: int | None = None
) -> ListPage:
    """List the runners that may run jobs of the project, or of all projects in the group, with their details."""
    if project_id is not None:
        return await RUNNERS_OF_PROJECT.read(database, page, project_id=project_id)
    return await RUNNERS_OF_GROUP.read(database, page, namespace_id=namespace_id)
