# mypy: disable-error-code="empty-body"
"""Statements about status check services and their answers."""

import datetime
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Quota, entity_statement, read_sql

_SERVICE = read_sql("api_server.status_checks")["service"]

LISTING = ListQuery(
    _SERVICE, "SELECT checks.id FROM external_status_checks checks WHERE checks.project_id = %(project_id)s"
)


async def list_services(database: Executor, page: Page, project_id: int) -> ListPage:
    return await LISTING.read(database, page, project_id=project_id, shows_secrets=True)


_ONE = (
    "FROM external_status_checks checks WHERE checks.id = %(check_id)s AND checks.project_id = %(project_id)s"
)


@statement(entity_statement(_SERVICE, f"SELECT checks.id {_ONE}"))
async def show(database: Executor, project_id: int, check_id: int, *, shows_secrets: bool) -> str:
    """Return the service's entity, with the parts of its URL that may be secrets only if it `shows_secrets`. Raise
    NotFound."""


@attrs.frozen(kw_only=True)
class Service:
    """The attributes of a status check service that rules use. `shared_secret` is encrypted by the vault."""

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


@statement(_FIND, prepared=True)
async def find(database: Executor, project_id: int, check_id: int) -> Service:
    """Return the service. Raise NotFound, also if it belongs to another project."""


@statement(f"{_FIND} FOR UPDATE")
async def lock(transaction: Transaction, project_id: int, check_id: int) -> Service:
    """Lock and return the service until the transaction ends. Raise NotFound, also if it belongs to another
    project."""


@statement(f"{_FIND} FOR KEY SHARE")
async def hold(transaction: Transaction, project_id: int, check_id: int) -> Service:
    """Return the service, and prevent others from deleting it until the transaction ends. Raise NotFound, also if it
    belongs to another project."""


@attrs.frozen
class Duplicates:
    """Whether another check of the project has the name, and whether another has the URL."""

    name: bool
    external_url: bool


@statement("""
    SELECT coalesce(bool_or(checks.name = %(name)s), false) AS name,
        coalesce(bool_or(checks.external_url = %(external_url)s), false) AS external_url
    FROM external_status_checks checks
    WHERE checks.project_id = %(project_id)s AND checks.id IS DISTINCT FROM %(check_id)s::bigint
    """)
async def find_duplicates(
    transaction: Transaction, project_id: int, check_id: int | None, *, name: str, external_url: str
) -> Duplicates: ...


QUOTA = Quota("external_status_checks", "project_id")


@statement("""
    INSERT INTO external_status_checks (project_id, name, external_url, shared_secret, created_at, updated_at)
    VALUES (%(project_id)s, %(name)s, %(external_url)s, %(shared_secret)s, %(now)s, %(now)s)
    RETURNING id
""")
async def create(transaction: Transaction, **values: Any) -> int:
    """Store a check and return its id. Raise Conflict on `external_status_checks_name` or
    `external_status_checks_url`."""


@statement("""
    UPDATE external_status_checks SET name = %(name)s, external_url = %(external_url)s,
        shared_secret = %(shared_secret)s, updated_at = %(now)s,
        failing_since = CASE WHEN external_url = %(external_url)s THEN failing_since END,
        problem = CASE WHEN external_url = %(external_url)s THEN problem END
    WHERE id = %(check_id)s
""")
async def update(transaction: Transaction, check_id: int, **values: Any) -> None:
    """Change a check. What is known about its receiver is forgotten if the URL changes. Raise Conflict on
    `external_status_checks_name` or `external_status_checks_url`."""


@statement("""
    DELETE FROM external_status_checks WHERE id = %(check_id)s
""")
async def delete(transaction: Transaction, check_id: int) -> None: ...


@attrs.frozen
class ProtectedBranch:
    """A protected branch to which a check can be limited. Its name may contain wildcards."""

    id: int
    project_id: int
    name: str


@statement("""
    SELECT branches.id, branches.project_id, branches.name FROM protected_branches branches
    WHERE branches.id = ANY (%(ids)s::bigint[]) ORDER BY branches.id FOR KEY SHARE
    """)
async def protected_branches(transaction: Transaction, ids: list[int]) -> list[ProtectedBranch]:
    """Return the existing protected branches with these ids, and prevent others from deleting them until the
    transaction ends."""


@statement("""
    SELECT branches.id, branches.project_id, branches.name FROM external_status_check_branches scope
    JOIN protected_branches branches ON branches.id = scope.protected_branch_id
    WHERE scope.check_id = %(check_id)s ORDER BY branches.id
    """)
async def scope(transaction: Transaction, check_id: int) -> list[ProtectedBranch]:
    """Return the protected branches to which the check is limited; none if it applies to all branches."""


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
class UnlimitedCheck:
    """A check from whose scope a protected branch was removed. `applies_to_all`: the scope has no branch left."""

    id: int
    name: str
    is_paused: bool
    applies_to_all: bool


@statement("""
    WITH past AS (
        DELETE FROM external_status_check_branches WHERE protected_branch_id = %(branch_id)s RETURNING check_id
    )
    SELECT checks.id, checks.name, checks.paused_at IS NOT NULL AS is_paused,
        NOT EXISTS (
            SELECT FROM external_status_check_branches scope
            WHERE scope.check_id = checks.id AND scope.protected_branch_id <> %(branch_id)s
        ) AS applies_to_all
    FROM past JOIN external_status_checks checks ON checks.id = past.check_id ORDER BY checks.id
    """)
async def leave_branch(transaction: Transaction, branch_id: int) -> list[UnlimitedCheck]:
    """Remove the protected branch from the scope of all checks, and return the checks that had it there."""


@attrs.frozen
class PausedCheck:
    """A check that has just been paused, and its project."""

    id: int
    name: str
    project_id: int
    full_path: str


@statement("""
    UPDATE external_status_checks checks SET paused_at = %(now)s, pause_reason = %(reason)s FROM projects
    WHERE checks.id = %(check_id)s AND checks.paused_at IS NULL AND projects.id = checks.project_id
    RETURNING checks.id, checks.name, checks.project_id, projects.full_path
    """)
async def pause(transaction: Transaction, check_id: int, reason: str) -> PausedCheck | None:
    """Pause the check and return it, or None if it was paused already."""


@statement("""
    UPDATE external_status_checks SET paused_at = NULL, pause_reason = NULL, failing_since = NULL
    WHERE id = %(check_id)s
""")
async def unpause(transaction: Transaction, check_id: int) -> None: ...


_ENTITIES = read_sql("api_server.status_checks")

CHECKS = ListQuery(
    _ENTITIES["check"],
    """
    SELECT results.* FROM merge_requests CROSS JOIN status_check_results(merge_requests) results
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = %(iid)s::bigint
    """,
    planned_once=True,
)


async def list_checks(
    database: Executor, page: Page, project_id: int, iid: int, *, shows_url: bool
) -> ListPage:
    """Return a page of the checks that apply to a merge request, each with its result for the present head. The page is
    empty if there is no such merge request."""
    return await CHECKS.read(database, page, project_id=project_id, iid=iid, shows_url=shows_url)


RESPONSES = ListQuery(
    _ENTITIES["response"],
    """
    SELECT answers.* FROM status_check_responses answers
    WHERE answers.merge_request_id = %(merge_request_id)s AND answers.check_id = %(check_id)s
    """,
)


async def list_responses(database: Executor, page: Page, merge_request_id: int, check_id: int) -> ListPage:
    return await RESPONSES.read(database, page, merge_request_id=merge_request_id, check_id=check_id)


@attrs.frozen
class NewAnswer:
    """An answer about the head `sha` that has just been recorded, with the values for its audit event: the check's
    name, the merge request and its project."""

    id: int
    check_id: int
    merge_request_id: int
    sha: str
    status: str
    name: str
    iid: int
    title: str
    project_id: int
    full_path: str


_NEW_ANSWER = """
    RETURNING made.id, made.check_id, made.merge_request_id, made.sha, made.status,
        (SELECT checks.name FROM external_status_checks checks WHERE checks.id = made.check_id) AS name,
        (SELECT m.iid FROM merge_requests m WHERE m.id = made.merge_request_id) AS iid,
        (SELECT m.title FROM merge_requests m WHERE m.id = made.merge_request_id) AS title,
        (SELECT m.project_id FROM merge_requests m WHERE m.id = made.merge_request_id) AS project_id,
        (SELECT projects.full_path FROM merge_requests m JOIN projects ON projects.id = m.project_id
        WHERE m.id = made.merge_request_id) AS full_path
"""


@statement(f"""
    INSERT INTO status_check_responses AS made (check_id, merge_request_id, sha, status, description, target_url,
        user_id, created_at)
    VALUES (%(check_id)s, %(merge_request_id)s, %(sha)s, %(status)s, %(description)s, %(target_url)s, %(user_id)s,
        %(now)s)
    {_NEW_ANSWER}
    """)
async def respond(transaction: Transaction, **values: Any) -> NewAnswer:
    """Store an answer and return it. Raise NotFound if the check or the merge request no longer exists."""


@attrs.frozen
class Answer:
    """A stored answer of a service."""

    id: int
    status: str


@statement("""
    SELECT answers.id, answers.status FROM status_check_responses answers
    WHERE answers.check_id = %(check_id)s AND answers.merge_request_id = %(merge_request_id)s
        AND answers.sha = %(sha)s
    ORDER BY answers.id DESC LIMIT 1
    FOR UPDATE
    """)
async def lock_newest_response(
    transaction: Transaction, check_id: int, merge_request_id: int, sha: str
) -> Answer | None: ...


@statement("""
    UPDATE status_check_responses SET retried_at = %(now)s WHERE id = %(response_id)s
""")
async def note_retry(transaction: Transaction, response_id: int) -> None: ...


@statement(f"""
    INSERT INTO status_check_responses AS made (check_id, merge_request_id, sha, status, description, created_at)
    SELECT answers.check_id, answers.merge_request_id, answers.sha, 'failed', %(description)s, %(now)s
    FROM status_check_responses answers JOIN merge_requests m ON m.id = answers.merge_request_id
    WHERE answers.status = 'pending' AND answers.created_at < %(before)s
        AND m.state = 'opened' AND m.head_sha = answers.sha
        AND NOT EXISTS (
            SELECT FROM status_check_responses newer
            WHERE newer.merge_request_id = answers.merge_request_id AND newer.check_id = answers.check_id
                AND newer.sha = answers.sha AND newer.id > answers.id)
    {_NEW_ANSWER}
    """)
async def time_out(transaction: Transaction, before: datetime.datetime, description: str) -> list[NewAnswer]:
    """Add a `failed` answer to each pending result that is older than `before` and the newest for the present head of
    an open merge request. Return the new answers."""
