"""Statements about the results of status checks for merge requests: the answers of services."""

import datetime
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, read_sql
from api_server.state.statements import Query

_ENTITIES = read_sql("api_server.status_checks")

CHECKS = Listing(
    _ENTITIES["check"],
    """
    SELECT results.* FROM merge_requests CROSS JOIN status_check_results(merge_requests) results
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = %(iid)s::bigint
    """,
    planned_once=True,
)


async def list_checks(
    database: Executor, page: Page, project_id: int, iid: int, *, shows_url: bool
) -> Listed:
    """Those that apply to a merge request, each with its result for the present head; none where it is not there."""
    return await CHECKS.read(database, page, project_id=project_id, iid=iid, shows_url=shows_url)


RESPONSES = Listing(
    _ENTITIES["response"],
    """
    SELECT answers.id FROM status_check_responses answers
    WHERE answers.merge_request_id = %(merge_request_id)s AND answers.check_id = %(check_id)s
    """,
)


async def list_responses(database: Executor, page: Page, merge_request_id: int, check_id: int) -> Listed:
    return await RESPONSES.read(database, page, merge_request_id=merge_request_id, check_id=check_id)


@attrs.frozen
class NewAnswer:
    """An answer that has just been recorded; `sha` is the head that it is about. With it what an audit event says: the
    check's name, the merge request and its project."""

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

RESPOND = Query(
    f"""
    INSERT INTO status_check_responses AS made (check_id, merge_request_id, sha, status, description, target_url,
        user_id, created_at)
    VALUES (%(check_id)s, %(merge_request_id)s, %(sha)s, %(status)s, %(description)s, %(target_url)s, %(user_id)s,
        %(now)s)
    {_NEW_ANSWER}
    """,
    NewAnswer,
)


async def respond(transaction: Transaction, **values: Any) -> NewAnswer:
    """Raises NotFound."""
    return await transaction.one(RESPOND, **values)


@attrs.frozen
class Answer:
    """An answer that a service has given."""

    id: int
    status: str


NEWEST_RESPONSE = Query(
    """
    SELECT answers.id, answers.status FROM status_check_responses answers
    WHERE answers.check_id = %(check_id)s AND answers.merge_request_id = %(merge_request_id)s
        AND answers.sha = %(sha)s
    ORDER BY answers.id DESC LIMIT 1
    FOR UPDATE
    """,
    Answer,
)


async def lock_newest_response(
    transaction: Transaction, check_id: int, merge_request_id: int, sha: str
) -> Answer | None:
    return await transaction.row(
        NEWEST_RESPONSE, check_id=check_id, merge_request_id=merge_request_id, sha=sha
    )


NOTE_RETRY = """
    UPDATE status_check_responses SET retried_at = %(now)s WHERE id = %(id)s
"""


async def note_retry(transaction: Transaction, response_id: int) -> None:
    await transaction.run(NOTE_RETRY, id=response_id)


TIME_OUT = Query(
    f"""
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
    """,
    NewAnswer,
)


async def time_out(transaction: Transaction, before: datetime.datetime, description: str) -> list[NewAnswer]:
    """Fails the pending results that are older than `before` and still the newest for their head."""
    return await transaction.rows(TIME_OUT, before=before, description=description)
