"""Lists over the whole instance that no route of the API has: mirrors, deliveries, tokens with their owners, runners
with their details. A filter that is chosen stands in the statement as it is, so that the index of just those serves it.
"""

from typing import Any, Literal

import attrs

from api_server.ci.runners.queries import ENTITIES as RUNNERS
from api_server.mirrors.running import LOCK_PREFIX
from api_server.state.database import Executor
from api_server.state.listing import Listed, Listing, Page, read_sql
from api_server.state.statements import Query

_ENTITIES = read_sql("api_server.pages.admin")

_MIRRORS = "SELECT remote_mirrors.* FROM remote_mirrors"
MIRRORS = {
    None: Listing(_ENTITIES["mirror"], _MIRRORS),
    "failing": Listing(
        _ENTITIES["mirror"],
        f"{_MIRRORS} WHERE remote_mirrors.last_error IS NOT NULL AND remote_mirrors.enabled",
    ),
}


async def list_mirrors(database: Executor, page: Page, state: Literal["failing"] | None) -> Listed:
    """All of the instance, or those whose last run has failed."""
    return await MIRRORS[state].read(database, page, lock_prefix=LOCK_PREFIX)


DeliveryState = Literal["queued", "delivered", "failed"]
_DELIVERIES = "SELECT deliveries.id FROM status_check_deliveries deliveries"
DELIVERIES = {
    None: Listing(_ENTITIES["delivery"], _DELIVERIES),
    "queued": Listing(_ENTITIES["delivery"], f"{_DELIVERIES} WHERE deliveries.status = 'queued'"),
    "delivered": Listing(_ENTITIES["delivery"], f"{_DELIVERIES} WHERE deliveries.status = 'delivered'"),
    "failed": Listing(_ENTITIES["delivery"], f"{_DELIVERIES} WHERE deliveries.status = 'failed'"),
}


async def list_deliveries(database: Executor, page: Page, state: DeliveryState | None) -> Listed:
    return await DELIVERIES[state].read(database, page)


@attrs.frozen
class Place:
    """Where a delivery belongs."""

    project_id: int
    check_id: int


DELIVERY_PLACE = Query(
    """
    SELECT checks.project_id, checks.id AS check_id
    FROM status_check_deliveries deliveries JOIN external_status_checks checks ON checks.id = deliveries.check_id
    WHERE deliveries.id = %(id)s
    """,
    Place,
)


async def place_of_delivery(database: Executor, delivery_id: int) -> Place:
    """Raises NotFound."""
    return await database.one(DELIVERY_PLACE, id=delivery_id)


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
    (of_user, state): Listing(
        _ENTITIES["token"], f"{_TOKENS} WHERE {condition}" + (f" AND {_OF_USER}" if of_user else "")
    )
    for state, condition in _TOKEN_STATES.items()
    for of_user in (True, False)
}


async def list_tokens(
    database: Executor, page: Page, *, username: str | None, state: TokenState | None
) -> Listed:
    """Personal access tokens with their owners, of all users or of one."""
    given = {"username": username} if username is not None else {}
    return await TOKENS[username is not None, state].read(database, page, **given)


RunnerStatus = Literal["online", "offline", "stale", "never_contacted"]
RUNNERS_IN_DETAIL = Listing(
    RUNNERS["runner_details"],
    """
    SELECT runners.* FROM runners
    WHERE (%(runner_type)s::text IS NULL OR runners.runner_type = %(runner_type)s)
        AND (%(paused)s::boolean IS NULL OR runners.active <> %(paused)s)
        AND (%(status)s::text IS NULL
            OR contact_status(runners.contacted_at, runners.created_at, %(now)s) = %(status)s)
    """,
)


async def list_runners(database: Executor, page: Page, **filters: Any) -> Listed:
    """All runners with their details. `filters` are runner_type, paused and status; None is any."""
    return await RUNNERS_IN_DETAIL.read(database, page, **filters)
