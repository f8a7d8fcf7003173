"""What moved branches mean for merge requests: new heads, merges by hand, and what git has to be asked again."""

from collections.abc import Iterable, Sequence

import pygit2
from aiohttp import web

from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git.commits import commits_between
from api_server.git.received_push import RefUpdate
from api_server.git.ref_moves import set_internal_ref
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import head_queries
from api_server.merge_requests.changes import head_ref
from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS, MergeRequestEvent
from api_server.merge_requests.heads import MissingBranchError, read_heads
from api_server.state.database import Transaction

#: A merge request whose head is further down in what was pushed stays open.
MOST_ARRIVED = 10_000


def setup(app: web.Application) -> None:
    """Keeps the merge requests of this application true to their branches."""

    async def listener(
        transaction: Transaction, project: MovedProject, user_id: int | None, updates: Sequence[RefUpdate]
    ) -> None:
        moved = [update for update in updates if update.ref.startswith(BRANCHES)]
        if moved:
            repository = app[REPOSITORIES].open(project.id)
            heads = {update.ref.removeprefix(BRANCHES): update.new for update in moved}
            events = await _follow_targets(transaction, repository, project.id, user_id, moved)
            await head_queries.uncheck_into(transaction, project.id, heads)
            events += await _follow_sources(transaction, repository, project.id, user_id, list(heads))
            for event in events:
                for tell in app[MERGE_REQUEST_LISTENERS]:
                    await tell(transaction, event)

    app[REF_LISTENERS].append(listener)


async def _follow_targets(
    transaction: Transaction,
    repository: Repository,
    project_id: int,
    user_id: int | None,
    updates: Iterable[RefUpdate],
) -> list[MergeRequestEvent]:
    """Merge requests are merged when their head arrives in their target, whoever brought it there."""
    events = []
    moved = {update.ref.removeprefix(BRANCHES): update for update in updates if update.kind == "update"}
    targets = await head_queries.targets_among(transaction, project_id, list(moved))
    for branch, update in moved.items():
        if branch in targets:
            arrived = await commits_between(repository, update.old, update.new, MOST_ARRIVED)
            for merged in await head_queries.mark_merged(transaction, project_id, branch, arrived, user_id):
                sha = _merge_commit(repository, arrived, merged.squash_commit_sha or merged.head_sha)
                await head_queries.set_merge_commit(transaction, merged.id, sha)
                changes = {"state": ("opened", "merged")}
                events.append(
                    MergeRequestEvent(
                        merge_request_id=merged.id, action="merge", user_id=user_id, changes=changes
                    )
                )
    return events


async def _follow_sources(
    transaction: Transaction,
    repository: Repository,
    project_id: int,
    user_id: int | None,
    branches: list[str],
) -> list[MergeRequestEvent]:
    """Where a source has moved, its merge requests have a new head; where it is gone they keep the last one."""
    events = []
    for row in await head_queries.lock_open_from(transaction, project_id, branches):
        try:
            heads = await read_heads(repository, row.source_branch, row.target_branch)
        except MissingBranchError:
            await head_queries.set_mergeability(transaction, row, "no_commits", fast_forward=False)
            continue
        await head_queries.set_heads(transaction, row.id, heads)
        if heads.head_sha != row.head_sha:
            await set_internal_ref(repository, head_ref(row.iid), heads.head_sha)
            events.append(
                MergeRequestEvent(
                    merge_request_id=row.id, action="update", user_id=user_id, old_head=row.head_sha
                )
            )
    return events


def _merge_commit(repository: Repository, arrived: Iterable[str], head_sha: str) -> str | None:
    """The commit that merged `head_sha`: the one that has it as a parent beside another; none after a
    fast-forward."""
    for sha in arrived:
        commit = repository[sha]
        if isinstance(commit, pygit2.Commit) and head_sha in map(str, commit.parent_ids[1:]):
            return sha
    return None
