"""Statements about status check services, and about their results for merge requests."""

import datetime
from typing import Any

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Statement

_ENTITIES = read_sql("api_server.status_checks")

# --- services --------------------------------------------------------------------------------------------------------

SERVICES = Listing(
    _ENTITIES["service"],
    "SELECT checks.id FROM external_status_checks checks WHERE checks.project_id = %(project_id)s",
)

SHOW_SERVICE = one(
    _ENTITIES["service"], "SELECT checks.id FROM external_status_checks checks WHERE checks.id = %(id)s"
)


async def show_service(database: Executor, check_id: int) -> str:
    return await database.entity(SHOW_SERVICE, id=check_id)


FIND_SERVICE = Statement("""
    SELECT checks.* FROM external_status_checks checks
    WHERE checks.id = %(id)s AND checks.project_id = %(project_id)s
""")


async def find_service(database: Executor, project_id: int, check_id: int) -> Row | None:
    return await database.row(FIND_SERVICE, id=check_id, project_id=project_id)


LOCK_SERVICE = """
    SELECT checks.* FROM external_status_checks checks
    WHERE checks.id = %(id)s AND checks.project_id = %(project_id)s FOR UPDATE
"""


async def lock_service(transaction: Transaction, project_id: int, check_id: int) -> Row | None:
    return await transaction.row(LOCK_SERVICE, id=check_id, project_id=project_id)


TAKEN = """
    SELECT coalesce(bool_or(checks.name = %(name)s), false) AS name,
        coalesce(bool_or(checks.external_url = %(external_url)s), false) AS external_url
    FROM external_status_checks checks
    WHERE checks.project_id = %(project_id)s AND checks.id IS DISTINCT FROM %(id)s::bigint
"""


async def taken(
    transaction: Transaction, project_id: int, check_id: int | None, *, name: str, external_url: str
) -> Row:
    """Which of the two another check of the project has."""
    return await transaction.row(
        TAKEN, project_id=project_id, id=check_id, name=name, external_url=external_url
    )


CREATE_SERVICE = """
    INSERT INTO external_status_checks (project_id, name, external_url, shared_secret, all_branches)
    VALUES (%(project_id)s, %(name)s, %(external_url)s, %(shared_secret)s, %(all_branches)s)
    RETURNING id
"""


async def create_service(transaction: Transaction, **values: Any) -> int:
    """Raises Conflict on `external_status_checks_name` and `external_status_checks_url`."""
    return int(await transaction.value(CREATE_SERVICE, **values))


UPDATE_SERVICE = """
    UPDATE external_status_checks SET name = %(name)s, external_url = %(external_url)s,
        shared_secret = %(shared_secret)s, all_branches = %(all_branches)s, updated_at = now()
    WHERE id = %(id)s
"""


async def update_service(transaction: Transaction, check_id: int, **values: Any) -> None:
    """Raises Conflict as `create_service`."""
    await transaction.row(UPDATE_SERVICE, id=check_id, **values)


DELETE_SERVICE = """
    DELETE FROM external_status_checks WHERE id = %(id)s
"""


async def delete_service(transaction: Transaction, check_id: int) -> None:
    await transaction.row(DELETE_SERVICE, id=check_id)


BRANCHES = """
    SELECT branches.id, branches.project_id, branches.name FROM protected_branches branches
    WHERE branches.id = ANY (%(ids)s::bigint[]) ORDER BY branches.id
"""


async def protected_branches(transaction: Transaction, ids: list[int]) -> list[Row]:
    """id, project_id and name of those that exist."""
    return await transaction.rows(BRANCHES, ids=ids)


SCOPE = """
    SELECT branches.id, branches.name FROM external_status_check_branches scope
    JOIN protected_branches branches ON branches.id = scope.protected_branch_id
    WHERE scope.check_id = %(id)s ORDER BY branches.id
"""


async def scope(transaction: Transaction, check_id: int) -> list[Row]:
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
    await transaction.row(CLEAR_SCOPE, id=check_id)
    await transaction.row(SET_SCOPE, id=check_id, branch_ids=branch_ids)


PAUSE = """
    UPDATE external_status_checks SET paused_at = %(now)s, pause_reason = %(reason)s
    WHERE id = %(id)s AND paused_at IS NULL
    RETURNING id, name, project_id, (SELECT projects.full_path FROM projects WHERE projects.id = project_id)
"""


async def pause(transaction: Transaction, check_id: int, now: datetime.datetime, reason: str) -> Row | None:
    """id, name, project_id and the project's full_path; None where it was paused already."""
    return await transaction.row(PAUSE, id=check_id, now=now, reason=reason)


UNPAUSE = """
    UPDATE external_status_checks SET paused_at = NULL, pause_reason = NULL, failing_since = NULL WHERE id = %(id)s
"""


async def unpause(transaction: Transaction, check_id: int) -> None:
    await transaction.row(UNPAUSE, id=check_id)


# --- results ---------------------------------------------------------------------------------------------------------

CHECKS = Listing(
    _ENTITIES["check"],
    """
    SELECT checks.id, checks.name, checks.external_url, status_check_result(checks.id, m) AS status
    FROM external_status_checks checks JOIN merge_requests m ON m.id = %(merge_request_id)s
    WHERE checks.project_id = m.project_id AND status_check_applies(checks, m.target_branch)
    """,
)

RESPONSES = Listing(
    _ENTITIES["response"],
    """
    SELECT answers.id FROM status_check_responses answers
    WHERE answers.merge_request_id = %(merge_request_id)s AND answers.check_id = %(check_id)s
    """,
)


async def read(listing: Listing, database: Executor, page: Page, **filters: Any) -> Listed:
    return await listing.read(database, page, **filters)


RESPOND = """
    INSERT INTO status_check_responses (check_id, merge_request_id, sha, status, description, target_url, user_id)
    VALUES (%(check_id)s, %(merge_request_id)s, %(sha)s, %(status)s, %(description)s, %(target_url)s, %(user_id)s)
    RETURNING id
"""


async def respond(transaction: Transaction, **values: Any) -> int:
    return int(await transaction.value(RESPOND, **values))


NEWEST_RESPONSE = """
    SELECT answers.id, answers.status FROM status_check_responses answers
    WHERE answers.check_id = %(check_id)s AND answers.merge_request_id = %(merge_request_id)s
        AND answers.sha = %(sha)s
    ORDER BY answers.id DESC LIMIT 1
    FOR UPDATE
"""

NOTE_RETRY = """
    UPDATE status_check_responses SET retried_at = %(now)s WHERE id = %(id)s
"""


async def lock_newest_response(
    transaction: Transaction, check_id: int, merge_request_id: int, sha: str
) -> Row | None:
    return await transaction.row(
        NEWEST_RESPONSE, check_id=check_id, merge_request_id=merge_request_id, sha=sha
    )


async def note_retry(transaction: Transaction, response_id: int, now: datetime.datetime) -> None:
    await transaction.row(NOTE_RETRY, id=response_id, now=now)


TIME_OUT = """
    INSERT INTO status_check_responses (check_id, merge_request_id, sha, status, description)
    SELECT answers.check_id, answers.merge_request_id, answers.sha, 'failed', %(description)s
    FROM status_check_responses answers JOIN merge_requests m ON m.id = answers.merge_request_id
    WHERE answers.status = 'pending' AND answers.created_at < %(before)s
        AND m.state = 'opened' AND m.head_sha = answers.sha
        AND NOT EXISTS (
            SELECT FROM status_check_responses newer
            WHERE newer.merge_request_id = answers.merge_request_id AND newer.check_id = answers.check_id
                AND newer.sha = answers.sha AND newer.id > answers.id)
    RETURNING check_id, merge_request_id, sha, status
"""


async def time_out(transaction: Transaction, before: datetime.datetime, description: str) -> list[Row]:
    """Fails the pending results that are older than `before` and still the newest for their head."""
    return await transaction.rows(TIME_OUT, before=before, description=description)


ABOUT_RESPONSE = """
    SELECT checks.name, m.id AS merge_request_id, m.iid, m.title, m.project_id, projects.full_path
    FROM external_status_checks checks, merge_requests m JOIN projects ON projects.id = m.project_id
    WHERE checks.id = %(check_id)s AND m.id = %(merge_request_id)s
"""


async def about_response(transaction: Transaction, check_id: int, merge_request_id: int) -> Row:
    """What an audit event says of an answer: the check's name, the merge request and its project."""
    return await transaction.row(ABOUT_RESPONSE, check_id=check_id, merge_request_id=merge_request_id)
