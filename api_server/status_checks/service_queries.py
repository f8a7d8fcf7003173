"""Statements about status check services."""

import datetime
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, Quota, one, read_sql
from api_server.state.statements import Query, Statement

_SERVICE = read_sql("api_server.status_checks")["service"]

LISTING = Listing(
    _SERVICE, "SELECT checks.id FROM external_status_checks checks WHERE checks.project_id = %(project_id)s"
)


async def list_services(database: Executor, page: Page, project_id: int) -> Listed:
    return await LISTING.read(database, page, project_id=project_id)


_ONE = "FROM external_status_checks checks WHERE checks.id = %(id)s AND checks.project_id = %(project_id)s"

SHOW = one(_SERVICE, f"SELECT checks.id {_ONE}")


async def show(database: Executor, project_id: int, check_id: int) -> str:
    """Raises NotFound."""
    return await database.entity(SHOW, id=check_id, project_id=project_id)


@attrs.frozen(kw_only=True)
class Service:
    """A status check service, as far as rules look at it; `shared_secret` is sealed by the vault."""

    id: int
    name: str
    external_url: str
    shared_secret: bytes | None = attrs.field(repr=False)
    paused_at: datetime.datetime | None
    updated_at: datetime.datetime


_FIND = f"""
    SELECT checks.id, checks.name, checks.external_url, checks.shared_secret, checks.paused_at, checks.updated_at
    {_ONE}
"""
FIND = Statement(_FIND, Service)
LOCK = Query(f"{_FIND} FOR UPDATE", Service)
HOLD = Query(f"{_FIND} FOR KEY SHARE", Service)


async def find(database: Executor, project_id: int, check_id: int) -> Service:
    """Raises NotFound, also for another project's."""
    return await database.one(FIND, id=check_id, project_id=project_id)


async def lock(transaction: Transaction, project_id: int, check_id: int) -> Service:
    """As it is until the transaction ends. Raises as `find`."""
    return await transaction.one(LOCK, id=check_id, project_id=project_id)


async def hold(transaction: Transaction, project_id: int, check_id: int) -> Service:
    """One that nobody removes before the transaction ends. Raises as `find`."""
    return await transaction.one(HOLD, id=check_id, project_id=project_id)


@attrs.frozen
class Taken:
    """Whether another check of the project has that name, or that URL."""

    name: bool
    external_url: bool


TAKEN = Query(
    """
    SELECT coalesce(bool_or(checks.name = %(name)s), false) AS name,
        coalesce(bool_or(checks.external_url = %(external_url)s), false) AS external_url
    FROM external_status_checks checks
    WHERE checks.project_id = %(project_id)s AND checks.id IS DISTINCT FROM %(id)s::bigint
    """,
    Taken,
)


async def taken(
    transaction: Transaction, project_id: int, check_id: int | None, *, name: str, external_url: str
) -> Taken:
    return await transaction.one(
        TAKEN, project_id=project_id, id=check_id, name=name, external_url=external_url
    )


QUOTA = Quota("external_status_checks", "project_id")

CREATE = """
    INSERT INTO external_status_checks (project_id, name, external_url, shared_secret, created_at, updated_at)
    VALUES (%(project_id)s, %(name)s, %(external_url)s, %(shared_secret)s, %(now)s, %(now)s)
    RETURNING id
"""


async def create(transaction: Transaction, **values: Any) -> int:
    """Raises Conflict on `external_status_checks_name` and `external_status_checks_url`."""
    return int(await transaction.value(CREATE, **values))


UPDATE = """
    UPDATE external_status_checks SET name = %(name)s, external_url = %(external_url)s,
        shared_secret = %(shared_secret)s, updated_at = %(now)s
    WHERE id = %(id)s
"""


async def update(transaction: Transaction, check_id: int, **values: Any) -> None:
    """Raises Conflict as `create`."""
    await transaction.run(UPDATE, id=check_id, **values)


DELETE = """
    DELETE FROM external_status_checks WHERE id = %(id)s
"""


async def delete(transaction: Transaction, check_id: int) -> None:
    await transaction.run(DELETE, id=check_id)


@attrs.frozen
class ProtectedBranch:
    """A rule that a check can be limited to; its name may have wildcards."""

    id: int
    project_id: int
    name: str


BRANCHES = Query(
    """
    SELECT branches.id, branches.project_id, branches.name FROM protected_branches branches
    WHERE branches.id = ANY (%(ids)s::bigint[]) ORDER BY branches.id FOR KEY SHARE
    """,
    ProtectedBranch,
)


async def protected_branches(transaction: Transaction, ids: list[int]) -> list[ProtectedBranch]:
    """Those that exist, and that nobody removes before the transaction ends."""
    return await transaction.rows(BRANCHES, ids=ids)


SCOPE = Query(
    """
    SELECT branches.id, branches.project_id, branches.name FROM external_status_check_branches scope
    JOIN protected_branches branches ON branches.id = scope.protected_branch_id
    WHERE scope.check_id = %(id)s ORDER BY branches.id
    """,
    ProtectedBranch,
)


async def scope(transaction: Transaction, check_id: int) -> list[ProtectedBranch]:
    """The protected branches that the check is limited to."""
    return await transaction.rows(SCOPE, id=check_id)


CLEAR_SCOPE = """
    DELETE FROM external_status_check_branches WHERE check_id = %(id)s
"""

SET_SCOPE = """
    INSERT INTO external_status_check_branches (check_id, protected_branch_id)
    SELECT %(id)s, unnest(%(branch_ids)s::bigint[])
"""


async def set_scope(transaction: Transaction, check_id: int, branch_ids: list[int]) -> None:
    await transaction.run(CLEAR_SCOPE, id=check_id)
    await transaction.run(SET_SCOPE, id=check_id, branch_ids=branch_ids)


@attrs.frozen
class Unlimited:
    """A check that is not limited to a certain protected branch any more, and whether it is to none at all."""

    id: int
    name: str
    is_paused: bool
    applies_to_all: bool


LEAVE_BRANCH = Query(
    """
    WITH past AS (
        DELETE FROM external_status_check_branches WHERE protected_branch_id = %(branch_id)s RETURNING check_id
    )
    SELECT checks.id, checks.name, checks.paused_at IS NOT NULL AS is_paused,
        NOT EXISTS (
            SELECT FROM external_status_check_branches scope
            WHERE scope.check_id = checks.id AND scope.protected_branch_id <> %(branch_id)s
        ) AS applies_to_all
    FROM past JOIN external_status_checks checks ON checks.id = past.check_id ORDER BY checks.id
    """,
    Unlimited,
)


async def leave_branch(transaction: Transaction, branch_id: int) -> list[Unlimited]:
    """The checks that were limited to the protected branch, which they are no more."""
    return await transaction.rows(LEAVE_BRANCH, branch_id=branch_id)


@attrs.frozen
class Paused:
    """A check that has just been paused, and its project."""

    id: int
    name: str
    project_id: int
    full_path: str


PAUSE = Query(
    """
    UPDATE external_status_checks checks SET paused_at = %(now)s, pause_reason = %(reason)s FROM projects
    WHERE checks.id = %(id)s AND checks.paused_at IS NULL AND projects.id = checks.project_id
    RETURNING checks.id, checks.name, checks.project_id, projects.full_path
    """,
    Paused,
)


async def pause(transaction: Transaction, check_id: int, reason: str) -> Paused | None:
    """None where it was paused already."""
    return await transaction.row(PAUSE, id=check_id, reason=reason)


UNPAUSE = """
    UPDATE external_status_checks SET paused_at = NULL, pause_reason = NULL, failing_since = NULL WHERE id = %(id)s
"""


async def unpause(transaction: Transaction, check_id: int) -> None:
    await transaction.run(UNPAUSE, id=check_id)
