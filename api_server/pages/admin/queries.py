# mypy: disable-error-code="empty-body"
"""Statements of the admin area that no API route needs: lists over the whole instance, and periodic tasks."""

import datetime
from typing import Any, Literal

import attrs

from api_server.ci.runners.queries import ENTITIES as RUNNERS
from api_server.mirrors.running import LOCK_PREFIX
from api_server.state.database import Executor
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, read_sql
from api_server.state.statements import Query

_ENTITIES = read_sql("api_server.pages.admin")

_MIRRORS = "SELECT remote_mirrors.* FROM remote_mirrors"
MIRRORS = {
    None: ListQuery(_ENTITIES["mirror"], _MIRRORS),
    "failing": ListQuery(
        _ENTITIES["mirror"],
        f"{_MIRRORS} WHERE remote_mirrors.last_error IS NOT NULL AND remote_mirrors.enabled",
    ),
}


async def list_mirrors(database: Executor, page: Page, state: Literal["failing"] | None) -> ListPage:
    """List all mirrors of the instance, or with `failing` those that are enabled and whose last run has failed."""
    return await MIRRORS[state].read(database, page, lock_prefix=LOCK_PREFIX)


DeliveryState = Literal["queued", "delivered", "failed"]
_DELIVERIES = "SELECT deliveries.id FROM status_check_deliveries deliveries"
DELIVERIES = {
    None: ListQuery(_ENTITIES["delivery"], _DELIVERIES),
    "queued": ListQuery(_ENTITIES["delivery"], f"{_DELIVERIES} WHERE deliveries.status = 'queued'"),
    "delivered": ListQuery(_ENTITIES["delivery"], f"{_DELIVERIES} WHERE deliveries.status = 'delivered'"),
    "failed": ListQuery(_ENTITIES["delivery"], f"{_DELIVERIES} WHERE deliveries.status = 'failed'"),
}


async def list_deliveries(database: Executor, page: Page, state: DeliveryState | None) -> ListPage:
    return await DELIVERIES[state].read(database, page)


@attrs.frozen
class DeliveryCheck:
    """The status check of a delivery, and its project."""

    project_id: int
    check_id: int


@statement("""
    SELECT checks.project_id, checks.id AS check_id
    FROM status_check_deliveries deliveries JOIN external_status_checks checks ON checks.id = deliveries.check_id
    WHERE deliveries.id = %(delivery_id)s
    """)
async def check_of_delivery(database: Executor, delivery_id: int) -> DeliveryCheck:
    """Return the check of the delivery. Raise NotFound if there is no such delivery."""


TokenState = Literal["active", "expired", "revoked"]
_TOKENS = "SELECT tokens.* FROM personal_access_tokens tokens"
_OF_USER = (
    "tokens.user_id = (SELECT users.id FROM users WHERE lower(users.username) = lower(%(username)s::text))"
)
_TOKEN_STATES = {
    None: "true",
    "active": "NOT tokens.revoked AND NOT has_expired(tokens.expires_at, %(now)s)",
    "expired": "NOT tokens.revoked AND has_expired(tokens.expires_at, %(now)s)",
    "revoked": "tokens.revoked",
}
TOKENS = {
    (of_user, state): ListQuery(
        _ENTITIES["token"], f"{_TOKENS} WHERE {condition}" + (f" AND {_OF_USER}" if of_user else "")
    )
    for state, condition in _TOKEN_STATES.items()
    for of_user in (True, False)
}


async def list_tokens(
    database: Executor, page: Page, *, username: str | None, state: TokenState | None
) -> ListPage:
    """List personal access tokens with their owners, of all users or of one."""
    conditions = {"username": username} if username is not None else {}
    return await TOKENS[username is not None, state].read(database, page, **conditions)


RunnerStatus = Literal["online", "offline", "stale", "never_contacted"]
RUNNERS_IN_DETAIL = ListQuery(
    RUNNERS["runner_details"],
    """
    SELECT runners.* FROM runners
    WHERE (%(runner_type)s::text IS NULL OR runners.runner_type = %(runner_type)s)
        AND (%(paused)s::boolean IS NULL OR runners.active <> %(paused)s)
        AND (%(status)s::text IS NULL
            OR contact_status(runners.contacted_at, runners.created_at, %(now)s) = %(status)s)
    """,
)


async def list_runners(database: Executor, page: Page, **filters: Any) -> ListPage:
    """List runners with their details. `filters` are runner_type, paused and status; None accepts any."""
    return await RUNNERS_IN_DETAIL.read(database, page, **filters)


@attrs.frozen
class ProjectWithFiles:
    """A project that may have files."""

    id: int
    full_path: str
    default_branch: str


_PROJECTS_WITH_FILES = """
    SELECT projects.id, projects.full_path, projects.default_branch FROM projects
    WHERE projects.repository_access_level = 'enabled' AND projects.visibility = %(visibility)s
    ORDER BY projects.id DESC LIMIT %(limit)s::integer
"""


@statement(_PROJECTS_WITH_FILES)
async def projects_with_files(database: Executor, visibility: str, limit: int) -> list[ProjectWithFiles]:
    """Return the newest projects of that visibility whose repository is open to all who see them."""


@attrs.frozen
class QueuedTask:
    """The time at which a periodic task was last queued, in seconds since 1970."""

    name: str
    timestamp: int

    @property
    def moment(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.timestamp, datetime.UTC)


LAST_DEFERRED = Query(
    """
    SELECT known.name, last.defer_timestamp AS timestamp FROM unnest(%(names)s::text[]) AS known (name)
    CROSS JOIN LATERAL (
        SELECT defers.defer_timestamp FROM procrastinate_periodic_defers defers
        WHERE defers.task_name = known.name ORDER BY defers.defer_timestamp DESC LIMIT 1) last
    """,
    QueuedTask,
)


async def last_deferred(database: Executor, names: list[str]) -> dict[str, datetime.datetime]:
    """Return when each of the periodic tasks was last queued. Tasks that never were are missing."""
    return {row.name: row.moment for row in await database.rows(LAST_DEFERRED, names=names)}
