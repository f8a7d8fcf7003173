"""Statements about merging and rebasing."""

from typing import Literal

import attrs

from api_server.merge_requests.queries import COLUMNS, UNDER_REBASE, MergeRequest
from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query


@attrs.frozen(kw_only=True)
class MergeStatus:
    """Why a merge request cannot be merged, in GitLab's names, or `mergeable`; what the pipeline of its head, if there
    is one, says of that, asked for or not; whether one may be about to be made; and how its project merges."""

    detailed_merge_status: str
    pipeline: Literal["mergeable", "ci_still_running", "ci_must_pass"] | None
    pipeline_is_queued: bool
    merge_method: Literal["merge", "rebase_merge", "ff"]
    squash_option: Literal["never", "always", "default_on", "default_off"]


MERGE_STATUS = Query(
    """
    SELECT detailed_merge_status(merge_requests, projects) AS detailed_merge_status,
        CASE WHEN head_pipeline_id(merge_requests) IS NOT NULL
            THEN ci_merge_status(merge_requests, projects) END AS pipeline,
        EXISTS (
            SELECT FROM procrastinate_jobs queued
            WHERE queued.status IN ('todo', 'doing') AND (
                queued.task_name = 'create_pushed_pipeline' AND queued.args ->> 'sha' = merge_requests.head_sha
                    AND queued.args ->> 'project_id' = merge_requests.project_id::text
                OR queued.task_name = 'create_merge_request_pipeline'
                    AND queued.args ->> 'merge_request_id' = merge_requests.id::text)
        ) AS pipeline_is_queued,
        projects.merge_method, projects.squash_option
    FROM merge_requests JOIN projects ON projects.id = merge_requests.project_id
    WHERE merge_requests.id = %(id)s
    """,
    MergeStatus,
)


async def merge_status(database: Executor, merge_request_id: int) -> MergeStatus:
    """Raises NotFound."""
    return await database.one(MERGE_STATUS, id=merge_request_id)


@attrs.frozen
class Author:
    name: str
    email: str


AUTHOR = Query(
    """
    SELECT users.name, users.email FROM merge_requests JOIN users ON users.id = merge_requests.author_id
    WHERE merge_requests.id = %(id)s
    """,
    Author,
)


async def author_of(database: Executor, merge_request_id: int) -> Author | None:
    """None where she is gone."""
    return await database.row(AUTHOR, id=merge_request_id)


NOTE_SQUASH = """
    UPDATE merge_requests SET squash = true, squash_commit_sha = %(sha)s WHERE id = %(id)s AND head_sha = %(head_sha)s
        AND state = 'opened'
"""


async def note_squash(transaction: Transaction, merge_request_id: int, head_sha: str, sha: str) -> None:
    """The open merge request will be merged when the commit `sha`, which has all of `head_sha`, arrives in its
    target."""
    await transaction.run(NOTE_SQUASH, id=merge_request_id, head_sha=head_sha, sha=sha)


SQUASH_NOTED = """
    SELECT merge_requests.squash_commit_sha FROM merge_requests WHERE merge_requests.id = %(id)s
"""


async def squash_noted(database: Executor, merge_request_id: int) -> str | None:
    """The one that `note_squash` has noted last."""
    found: str | None = await database.value(SQUASH_NOTED, id=merge_request_id)
    return found


SET_AUTO_MERGE = """
    UPDATE merge_requests SET auto_merge = %(how)s, merge_user_id = %(user_id)s, merge_error = NULL,
        squash = coalesce(%(squash)s, squash), updated_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = %(id)s
"""


async def set_auto_merge(
    transaction: Transaction, merge_request_id: int, user_id: int, how: str, *, squash: bool | None
) -> None:
    """`how` is JSON."""
    await transaction.run(SET_AUTO_MERGE, id=merge_request_id, user_id=user_id, how=how, squash=squash)


END_AUTO_MERGE = """
    UPDATE merge_requests SET auto_merge = NULL, merge_user_id = NULL, merge_error = %(error)s, updated_at = %(now)s
    WHERE id = %(id)s AND state = 'opened' AND auto_merge IS NOT NULL
        AND merge_user_id IS NOT DISTINCT FROM %(user_id)s
"""


async def end_auto_merge(
    transaction: Transaction, merge_request_id: int, user_id: int | None, error: str | None = None
) -> None:
    """It is not to be merged by itself any more, as `user_id` had asked for; `error` says why, where that is a surprise
    for her."""
    await transaction.run(END_AUTO_MERGE, id=merge_request_id, user_id=user_id, error=error)


FIND = Query(
    f"SELECT {COLUMNS} FROM merge_requests WHERE merge_requests.id = %(id)s AND merge_requests.state = 'opened'",
    MergeRequest,
)


async def find_open(database: Executor, merge_request_id: int) -> MergeRequest | None:
    return await database.row(FIND, id=merge_request_id)


IS_WAITING = """
    SELECT EXISTS (
        SELECT FROM merge_requests WHERE merge_requests.id = %(id)s AND merge_requests.auto_merge IS NOT NULL)
"""


async def is_waiting(database: Executor, merge_request_id: int) -> bool:
    """Whether it is to be merged by itself."""
    return bool(await database.value(IS_WAITING, id=merge_request_id))


WAITING_FOR = """
    SELECT coalesce(array_agg(merge_requests.id ORDER BY merge_requests.id), '{}')
    FROM pipelines JOIN merge_requests
        ON merge_requests.project_id = pipelines.project_id AND merge_requests.head_sha = pipelines.sha
    WHERE pipelines.id = %(pipeline_id)s AND merge_requests.auto_merge IS NOT NULL
"""


async def waiting_for(database: Executor, pipeline_id: int) -> list[int]:
    """Ids of the merge requests that are to be merged by themselves and have the pipeline's commit as their head."""
    return list(await database.value(WAITING_FOR, pipeline_id=pipeline_id))


BEGIN_REBASE = f"""
    UPDATE merge_requests SET rebasing_since = %(now)s, merge_error = NULL
    WHERE id = %(id)s AND state = 'opened' AND NOT {UNDER_REBASE}
"""


async def begin_rebase(transaction: Transaction, merge_request_id: int) -> bool:
    """Whether it is open, and nobody else is at it."""
    return await transaction.run(BEGIN_REBASE, id=merge_request_id) > 0


END_REBASE = """
    UPDATE merge_requests SET rebasing_since = NULL, merge_error = %(error)s WHERE id = %(id)s
"""


async def end_rebase(transaction: Transaction, merge_request_id: int, error: str | None) -> None:
    await transaction.run(END_REBASE, id=merge_request_id, error=error)
