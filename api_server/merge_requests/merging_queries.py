# mypy: disable-error-code="empty-body"
"""Statements about the two heads of merge requests, and about merging and rebasing."""

from collections.abc import Mapping
from typing import Literal

import attrs

from api_server.merge_requests.heads import Heads
from api_server.merge_requests.queries import COLUMNS, UNDER_REBASE, MergeRequest
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Query


@attrs.frozen
class Target:
    target_branch: str


SET_HEADS = """
    UPDATE merge_requests SET head_sha = %(head_sha)s, start_sha = %(start_sha)s, target_sha = %(start_sha)s,
        base_sha = %(base_sha)s, last_commit = %(last_commit)s, mergeability = %(mergeability)s,
        fast_forward = %(fast_forward)s,
        squash_commit_sha = CASE WHEN head_sha = %(head_sha)s THEN squash_commit_sha END,
        merge_error = CASE WHEN head_sha = %(head_sha)s THEN merge_error END,
        auto_merge = CASE WHEN head_sha = %(head_sha)s THEN auto_merge END,
        merge_user_id = CASE WHEN head_sha = %(head_sha)s THEN merge_user_id END,
        updated_at = CASE WHEN head_sha = %(head_sha)s THEN updated_at ELSE %(now)s END
    WHERE id = %(id)s
"""


async def set_heads(transaction: Transaction, merge_request_id: int, heads: Heads) -> None:
    """Set the heads; this ends automatic merging and a recorded squash, which applied to the previous
    head."""
    await transaction.run(SET_HEADS, id=merge_request_id, **heads.columns)


@statement("""
    UPDATE merge_requests SET mergeability = %(mergeability)s, fast_forward = %(fast_forward)s
    WHERE id = %(id)s AND head_sha = %(head_sha)s AND target_branch = %(target_branch)s
        AND target_sha IS NOT DISTINCT FROM %(target_sha)s AND state = 'opened'
""")
async def set_mergeability(
    transaction: Transaction, merge_request: MergeRequest, mergeability: str, *, fast_forward: bool
) -> None:
    """Record git's result for the two heads of the merge request as `merge_request` has them, unless one of them has
    moved or the target is another branch; `fast_forward` says that the source's head descends from the
    target's."""


@statement(f"""
    SELECT {COLUMNS} FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.source_branch = ANY (%(branches)s)
        AND merge_requests.state = 'opened'
    ORDER BY merge_requests.id FOR UPDATE
    """)
async def lock_open_from(
    transaction: Transaction, project_id: int, branches: list[str]
) -> list[MergeRequest]:
    """Lock and return the open merge requests whose source is one of these branches."""


TARGETS = Query(
    """
    SELECT DISTINCT merge_requests.target_branch FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.state = 'opened'
        AND merge_requests.target_branch = ANY (%(branches)s)
    """,
    Target,
)


async def targets_among(transaction: Transaction, project_id: int, branches: list[str]) -> set[str]:
    """Return those of these branches that are targets of open merge requests."""
    rows = await transaction.rows(TARGETS, project_id=project_id, branches=branches)
    return {row.target_branch for row in rows}


@statement(f"""
    UPDATE merge_requests SET state = 'merged', merge_user_id = %(user_id)s, merged_at = %(now)s,
        updated_by_id = %(user_id)s, updated_at = %(now)s, auto_merge = NULL, merge_error = NULL,
        squash_commit_sha = CASE WHEN squash_commit_sha = ANY (%(arrived)s) THEN squash_commit_sha END
    WHERE project_id = %(project_id)s AND target_branch = %(branch)s AND state = 'opened'
        AND (head_sha = ANY (%(arrived)s) OR squash_commit_sha = ANY (%(arrived)s))
    RETURNING {COLUMNS}
    """)
async def mark_merged(
    transaction: Transaction, project_id: int, branch: str, arrived: list[str], user_id: int | None
) -> list[MergeRequest]:
    """Mark as merged, and return, the open merge requests into `branch` whose head or squash commit is among
    the commits that have arrived there."""


@statement("""
    UPDATE merge_requests SET merge_commit_sha = %(sha)s WHERE id = %(merge_request_id)s
""")
async def set_merge_commit(transaction: Transaction, merge_request_id: int, sha: str | None) -> None: ...


UNCHECK_TARGETS = """
    UPDATE merge_requests SET mergeability = 'unchecked', target_sha = moved.sha
    FROM unnest(%(branches)s::text[], %(shas)s::text[]) moved (branch, sha)
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.target_branch = moved.branch
        AND merge_requests.state = 'opened'
"""


async def uncheck_into(transaction: Transaction, project_id: int, heads: Mapping[str, str]) -> None:
    """Reset git's results about merging into these branches, given with their new heads."""
    await transaction.run(
        UNCHECK_TARGETS, project_id=project_id, branches=list(heads), shas=list(heads.values())
    )


@attrs.frozen(kw_only=True)
class MergeStatus:
    """The reason why a merge request cannot be merged, in GitLab's names, or `mergeable`; the state of its
    head's pipeline, if there is one, even if it is not required; whether a pipeline may be about to be
    created; and how its project merges."""

    detailed_merge_status: str
    pipeline: Literal["mergeable", "ci_still_running", "ci_must_pass"] | None
    pipeline_is_queued: bool
    merge_method: Literal["merge", "rebase_merge", "ff"]
    squash_option: Literal["never", "always", "default_on", "default_off"]


@statement("""
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
    WHERE merge_requests.id = %(merge_request_id)s
    """)
async def merge_status(database: Executor, merge_request_id: int) -> MergeStatus:
    """Return the status. Raise NotFound."""


@attrs.frozen
class Author:
    name: str
    email: str


@statement("""
    SELECT users.name, users.email FROM merge_requests JOIN users ON users.id = merge_requests.author_id
    WHERE merge_requests.id = %(merge_request_id)s
    """)
async def author_of(database: Executor, merge_request_id: int) -> Author | None:
    """Return the author, or None if the user has been removed."""


@statement("""
    UPDATE merge_requests SET squash = true, squash_commit_sha = %(sha)s
    WHERE id = %(merge_request_id)s AND head_sha = %(head_sha)s AND state = 'opened'
""")
async def note_squash(transaction: Transaction, merge_request_id: int, head_sha: str, sha: str) -> None:
    """Record that the open merge request is merged when the commit `sha`, which contains all of `head_sha`,
    arrives in its target."""


RECORDED_SQUASH = """
    SELECT merge_requests.squash_commit_sha FROM merge_requests WHERE merge_requests.id = %(id)s
"""


async def recorded_squash(database: Executor, merge_request_id: int) -> str | None:
    """Return the commit that `note_squash` recorded last."""
    sha: str | None = await database.value(RECORDED_SQUASH, id=merge_request_id)
    return sha


@statement("""
    UPDATE merge_requests SET auto_merge = %(options)s, merge_user_id = %(user_id)s, merge_error = NULL,
        squash = coalesce(%(squash)s, squash), updated_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = %(merge_request_id)s
""")
async def set_auto_merge(
    transaction: Transaction, merge_request_id: int, user_id: int, options: str, *, squash: bool | None
) -> None:
    """Request automatic merging; `options` are JSON."""


@statement("""
    UPDATE merge_requests SET auto_merge = NULL, merge_user_id = NULL, merge_error = %(error)s, updated_at = %(now)s
    WHERE id = %(merge_request_id)s AND state = 'opened' AND auto_merge IS NOT NULL
        AND merge_user_id IS NOT DISTINCT FROM %(user_id)s
""")
async def end_auto_merge(
    transaction: Transaction, merge_request_id: int, user_id: int | None, error: str | None = None
) -> None:
    """End the automatic merging that `user_id` requested; `error` gives the reason if the user does not
    expect it."""


@statement(f"SELECT {COLUMNS} FROM merge_requests WHERE id = %(merge_request_id)s AND state = 'opened'")
async def find_open(database: Executor, merge_request_id: int) -> MergeRequest | None: ...


@statement("""
    SELECT EXISTS (
        SELECT FROM merge_requests WHERE id = %(merge_request_id)s AND auto_merge IS NOT NULL)
""")
async def is_waiting(database: Executor, merge_request_id: int) -> bool:
    """Return whether it is to be merged automatically."""


WAITING_FOR = """
    SELECT coalesce(array_agg(merge_requests.id ORDER BY merge_requests.id), '{}')
    FROM pipelines JOIN merge_requests
        ON merge_requests.project_id = pipelines.project_id AND merge_requests.head_sha = pipelines.sha
    WHERE pipelines.id = %(pipeline_id)s AND merge_requests.auto_merge IS NOT NULL
"""


async def waiting_for(database: Executor, pipeline_id: int) -> list[int]:
    """Return the ids of the merge requests that are to be merged automatically and have the pipeline's commit
    as their head."""
    return list(await database.value(WAITING_FOR, pipeline_id=pipeline_id))


@statement(f"""
    UPDATE merge_requests SET rebasing_since = %(now)s, merge_error = NULL
    WHERE id = %(merge_request_id)s AND state = 'opened' AND NOT {UNDER_REBASE}
""")
async def begin_rebase(transaction: Transaction, merge_request_id: int) -> bool:
    """Begin a rebase; return False if the merge request is not open or a rebase is running."""


@statement("""
    UPDATE merge_requests SET rebasing_since = NULL, merge_error = %(error)s WHERE id = %(merge_request_id)s
""")
async def end_rebase(transaction: Transaction, merge_request_id: int, error: str | None) -> None: ...
