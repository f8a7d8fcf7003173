"""Statements about the two heads of merge requests, and what follows when they move."""

from collections.abc import Mapping

import attrs

from api_server.merge_requests.heads import Heads
from api_server.merge_requests.queries import COLUMNS, MergeRequest
from api_server.state.database import Transaction
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
    """What was to be merged by itself, or as one commit, was the head before it."""
    await transaction.run(SET_HEADS, id=merge_request_id, **heads.columns)


SET_MERGEABILITY = """
    UPDATE merge_requests SET mergeability = %(mergeability)s, fast_forward = %(fast_forward)s
    WHERE id = %(id)s AND head_sha = %(head_sha)s AND target_branch = %(target_branch)s
        AND target_sha IS NOT DISTINCT FROM %(target_sha)s AND state = 'opened'
"""


async def set_mergeability(
    transaction: Transaction, seen: MergeRequest, mergeability: str, *, fast_forward: bool
) -> None:
    """Notes what git said about the two heads of the merge request as it was `seen`, unless one of them has moved,
    or the target is another branch; `fast_forward`: the source's descends from the target's."""
    await transaction.run(
        SET_MERGEABILITY,
        id=seen.id,
        head_sha=seen.head_sha,
        target_branch=seen.target_branch,
        target_sha=seen.target_sha,
        mergeability=mergeability,
        fast_forward=fast_forward,
    )


LOCK_OPEN_FROM = Query(
    f"""
    SELECT {COLUMNS} FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.source_branch = ANY (%(branches)s)
        AND merge_requests.state = 'opened'
    ORDER BY merge_requests.id FOR UPDATE
    """,
    MergeRequest,
)


async def lock_open_from(
    transaction: Transaction, project_id: int, branches: list[str]
) -> list[MergeRequest]:
    """The open merge requests whose source is one of these branches."""
    return await transaction.rows(LOCK_OPEN_FROM, project_id=project_id, branches=branches)


TARGETS = Query(
    """
    SELECT DISTINCT merge_requests.target_branch FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.state = 'opened'
        AND merge_requests.target_branch = ANY (%(branches)s)
    """,
    Target,
)


async def targets_among(transaction: Transaction, project_id: int, branches: list[str]) -> set[str]:
    """Which of these branches open merge requests are to be merged into."""
    rows = await transaction.rows(TARGETS, project_id=project_id, branches=branches)
    return {row.target_branch for row in rows}


MARK_MERGED = Query(
    f"""
    UPDATE merge_requests SET state = 'merged', merge_user_id = %(user_id)s, merged_at = %(now)s,
        updated_by_id = %(user_id)s, updated_at = %(now)s, auto_merge = NULL, merge_error = NULL,
        squash_commit_sha = CASE WHEN squash_commit_sha = ANY (%(arrived)s) THEN squash_commit_sha END
    WHERE project_id = %(project_id)s AND target_branch = %(branch)s AND state = 'opened'
        AND (head_sha = ANY (%(arrived)s) OR squash_commit_sha = ANY (%(arrived)s))
    RETURNING {COLUMNS}
    """,
    MergeRequest,
)


async def mark_merged(
    transaction: Transaction, project_id: int, branch: str, arrived: list[str], user_id: int | None
) -> list[MergeRequest]:
    """The open merge requests into `branch` whose head, or the one commit that was made of all of theirs, is among the
    commits that have arrived there: now merged."""
    return await transaction.rows(
        MARK_MERGED, project_id=project_id, branch=branch, arrived=arrived, user_id=user_id
    )


SET_MERGE_COMMIT = """
    UPDATE merge_requests SET merge_commit_sha = %(sha)s WHERE id = %(id)s
"""


async def set_merge_commit(transaction: Transaction, merge_request_id: int, sha: str | None) -> None:
    await transaction.run(SET_MERGE_COMMIT, id=merge_request_id, sha=sha)


UNCHECK_TARGETS = """
    UPDATE merge_requests SET mergeability = 'unchecked', target_sha = moved.sha
    FROM unnest(%(branches)s::text[], %(shas)s::text[]) moved (branch, sha)
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.target_branch = moved.branch
        AND merge_requests.state = 'opened'
"""


async def uncheck_into(transaction: Transaction, project_id: int, heads: Mapping[str, str]) -> None:
    """What git said about merging into these branches no longer holds; their new heads, by name."""
    await transaction.run(
        UNCHECK_TARGETS, project_id=project_id, branches=list(heads), shas=list(heads.values())
    )
