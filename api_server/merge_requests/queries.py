"""Statements about merge requests."""

from typing import Any

import attrs

from api_server.ci.pipelines.queries import ENTITIES as PIPELINES
from api_server.merge_requests.heads import Heads
from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query, Statement

ENTITIES = read_sql("api_server.merge_requests", known=PIPELINES)

LISTING = Listing(
    ENTITIES["merge_request"],
    """
    SELECT merge_requests.* FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s
        AND (%(state)s::text IS NULL OR merge_requests.state = %(state)s)
        AND (%(iids)s::bigint[] IS NULL OR merge_requests.iid = ANY (%(iids)s))
        AND (%(source_branch)s::text IS NULL OR merge_requests.source_branch = %(source_branch)s)
        AND (%(target_branch)s::text IS NULL OR merge_requests.target_branch = %(target_branch)s)
        AND (%(author_id)s::bigint IS NULL OR merge_requests.author_id = %(author_id)s)
        AND (%(author_username)s::text IS NULL OR merge_requests.author_id = (
            SELECT users.id FROM users WHERE lower(users.username) = lower(%(author_username)s)))
        AND (%(labels)s::text[] IS NULL OR merge_requests.labels @> %(labels)s)
        AND (%(draft)s::boolean IS NULL OR is_draft(merge_requests.title) = %(draft)s)
        AND (%(search)s::text IS NULL OR merge_requests.title ILIKE '%%' || %(search)s || '%%'
            OR merge_requests.description ILIKE '%%' || %(search)s || '%%')
        AND (%(created_after)s::timestamptz IS NULL OR merge_requests.created_at >= %(created_after)s)
        AND (%(created_before)s::timestamptz IS NULL OR merge_requests.created_at <= %(created_before)s)
        AND (%(updated_after)s::timestamptz IS NULL OR merge_requests.updated_at >= %(updated_after)s)
        AND (%(updated_before)s::timestamptz IS NULL OR merge_requests.updated_at <= %(updated_before)s)
    """,
    {"created_at": "created_at", "updated_at": "updated_at", "title": "title"},
)


async def list_merge_requests(database: Executor, page: Page, **filters: Any) -> Listed:
    return await LISTING.read(database, page, **filters)


SHOW = one(
    ENTITIES["merge_request_details"],
    "SELECT merge_requests.id FROM merge_requests WHERE merge_requests.id = %(id)s",
)


async def show(database: Executor, merge_request_id: int, *, shows_pipelines: bool) -> str:
    """With the pipeline of its head, where that is shown."""
    return await database.entity(SHOW, id=merge_request_id, shows_pipelines=shows_pipelines)


@attrs.frozen(kw_only=True)
class MergeRequest:
    """A merge request, as far as rules look at it."""

    id: int
    iid: int
    project_id: int
    title: str
    description: str
    labels: list[str]
    source_branch: str
    target_branch: str
    remove_source_branch: bool
    state: str
    head_sha: str
    base_sha: str | None
    #: The target's head when that was last known to have moved.
    target_sha: str | None
    mergeability: str


#: The columns of `MergeRequest`.
COLUMNS = """
    merge_requests.id, merge_requests.iid, merge_requests.project_id, merge_requests.title,
    merge_requests.description, merge_requests.labels, merge_requests.source_branch, merge_requests.target_branch,
    merge_requests.remove_source_branch, merge_requests.state, merge_requests.head_sha, merge_requests.base_sha,
    merge_requests.target_sha, merge_requests.mergeability
"""

FIND = Statement(
    f"""
    SELECT {COLUMNS} FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = %(iid)s::bigint
    """,
    MergeRequest,
)


async def find(database: Executor, project_id: int, iid: int) -> MergeRequest:
    """Raises NotFound."""
    return await database.one(FIND, project_id=project_id, iid=iid)


LOCK = Query(
    f"SELECT {COLUMNS} FROM merge_requests WHERE merge_requests.id = %(id)s FOR UPDATE", MergeRequest
)


async def lock(executor: Executor, merge_request_id: int) -> MergeRequest:
    """As it is until the transaction ends. Raises NotFound."""
    return await executor.one(LOCK, id=merge_request_id)


LOCK_PROJECT = """
    SELECT projects.id FROM projects JOIN merge_requests ON merge_requests.project_id = projects.id
    WHERE merge_requests.id = %(id)s FOR UPDATE OF projects
"""


async def lock_with_project(executor: Executor, merge_request_id: int) -> MergeRequest:
    """Likewise, the project before it, as who moves its refs locks them. Raises NotFound."""
    await executor.value(LOCK_PROJECT, id=merge_request_id)
    return await lock(executor, merge_request_id)


@attrs.frozen(kw_only=True)
class MergeStatus:
    """Why a merge request cannot be merged, in GitLab's names, or `mergeable`; and whether the newest pipeline of its
    head has yet to end, asked for or not."""

    detailed_merge_status: str
    pipeline_under_way: bool


MERGE_STATUS = Query(
    """
    SELECT detailed_merge_status(merge_requests, projects) AS detailed_merge_status,
        ci_merge_status(merge_requests, projects) = 'ci_still_running' AS pipeline_under_way
    FROM merge_requests JOIN projects ON projects.id = merge_requests.project_id
    WHERE merge_requests.id = %(id)s
    """,
    MergeStatus,
)


async def merge_status(database: Executor, merge_request_id: int) -> MergeStatus:
    """Raises NotFound."""
    return await database.one(MERGE_STATUS, id=merge_request_id)


OPEN_PAIR = """
    SELECT merge_requests.iid FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.source_branch = %(source_branch)s
        AND merge_requests.target_branch = %(target_branch)s AND merge_requests.state = 'opened'
"""


async def iid_of_open_pair(
    transaction: Transaction, project_id: int, source_branch: str, target_branch: str
) -> int | None:
    found: int | None = await transaction.value(
        OPEN_PAIR, project_id=project_id, source_branch=source_branch, target_branch=target_branch
    )
    return found


CREATE = Query(
    f"""
    INSERT INTO merge_requests (project_id, iid, author_id, title, description, labels, source_branch, target_branch,
        remove_source_branch, head_sha, start_sha, target_sha, base_sha, last_commit, mergeability, created_at,
        updated_at)
    SELECT %(project_id)s, coalesce(max(others.iid), 0) + 1, %(author_id)s, %(title)s, %(description)s, %(labels)s,
        %(source_branch)s, %(target_branch)s, %(remove_source_branch)s, %(head_sha)s, %(start_sha)s, %(start_sha)s,
        %(base_sha)s, %(last_commit)s, %(mergeability)s, %(now)s, %(now)s
    FROM merge_requests others WHERE others.project_id = %(project_id)s
    RETURNING {COLUMNS}
    """,
    MergeRequest,
)


async def create(transaction: Transaction, heads: Heads, **values: Any) -> MergeRequest:
    """The project has to be locked, so that nobody else takes the same iid."""
    return await transaction.one(CREATE, **values, **heads.columns)


EDIT = """
    UPDATE merge_requests SET
        title = coalesce(%(title)s, title),
        description = coalesce(%(description)s, description),
        labels = coalesce(%(labels)s, labels),
        target_branch = coalesce(%(target_branch)s, target_branch),
        remove_source_branch = coalesce(%(remove_source_branch)s, remove_source_branch),
        last_edited_at = CASE WHEN coalesce(%(title)s, %(description)s) IS NULL THEN last_edited_at ELSE %(now)s END,
        last_edited_by_id =
            CASE WHEN coalesce(%(title)s, %(description)s) IS NULL THEN last_edited_by_id ELSE %(user_id)s END,
        updated_by_id = %(user_id)s,
        updated_at = %(now)s
    WHERE id = %(id)s
"""


async def edit(transaction: Transaction, merge_request_id: int, user_id: int, **values: Any) -> None:
    """Changes what is given and not None."""
    columns = ("title", "description", "labels", "target_branch", "remove_source_branch")
    await transaction.run(EDIT, id=merge_request_id, user_id=user_id, **dict.fromkeys(columns) | values)


CLOSE = """
    UPDATE merge_requests SET state = 'closed', closed_by_id = %(user_id)s, closed_at = %(now)s,
        updated_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = %(id)s
"""


async def close(transaction: Transaction, merge_request_id: int, user_id: int) -> None:
    await transaction.run(CLOSE, id=merge_request_id, user_id=user_id)


REOPEN = """
    UPDATE merge_requests SET state = 'opened', closed_by_id = NULL, closed_at = NULL,
        updated_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = %(id)s
"""


async def reopen(transaction: Transaction, merge_request_id: int, user_id: int) -> None:
    await transaction.run(REOPEN, id=merge_request_id, user_id=user_id)
