"""The effects of moved branches on merge requests: new heads, merges by hand, new mergeability checks, and
pipelines."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pygit2
import structlog

from api_server.ci.pipelines import creation, transitions
from api_server.ci.pipelines.creation import PipelineRefused, PipelineRequest, pipeline_maker
from api_server.ci.pipelines.creation_queries import MergeRequest, find_merge_request
from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git.commits import commits_between
from api_server.git.received_push import RefUpdate
from api_server.git.ref_moves import set_internal_ref
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import merging_queries
from api_server.merge_requests.changes import MERGE_REQUEST_LISTENERS, MergeRequestEvent, head_ref
from api_server.merge_requests.heads import MissingBranchError, read_heads
from api_server.services import Services
from api_server.state.database import Transaction
from api_server.state.queue import enqueue

#: A merge request whose head is further down among the pushed commits stays open.
MAX_ARRIVED = 10_000


def setup(services: Services) -> None:
    """Keep the merge requests of this application consistent with their branches."""

    async def listener(
        transaction: Transaction, project: MovedProject, user_id: int | None, updates: Sequence[RefUpdate]
    ) -> None:
        branch_updates = [update for update in updates if update.ref.startswith(BRANCHES)]
        if branch_updates:
            repository = services[REPOSITORIES].open(project.id)
            heads = {update.ref.removeprefix(BRANCHES): update.new for update in branch_updates}
            events = await _follow_targets(transaction, repository, project.id, user_id, branch_updates)
            await merging_queries.uncheck_into(transaction, project.id, heads)
            events += await _follow_sources(transaction, repository, project.id, user_id, list(heads))
            for event in events:
                for notify in services[MERGE_REQUEST_LISTENERS]:
                    await notify(transaction, event)

    services[REF_LISTENERS].append(listener)


async def _follow_targets(
    transaction: Transaction,
    repository: Repository,
    project_id: int,
    user_id: int | None,
    updates: Iterable[RefUpdate],
) -> list[MergeRequestEvent]:
    """Mark merge requests as merged when their head arrives in their target, whoever pushed it there."""
    events = []
    moved = {update.ref.removeprefix(BRANCHES): update for update in updates if update.kind == "update"}
    targets = await merging_queries.targets_among(transaction, project_id, list(moved))
    for branch, update in moved.items():
        if branch in targets:
            arrived = await commits_between(repository, update.old, update.new, MAX_ARRIVED)
            for merged in await merging_queries.mark_merged(
                transaction, project_id, branch, arrived, user_id
            ):
                sha = _merge_commit(repository, arrived, merged.squash_commit_sha or merged.head_sha)
                await merging_queries.set_merge_commit(transaction, merged.id, sha)
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
    """Give the merge requests of a moved source their new head; if the source has been deleted they keep the
    last one."""
    events = []
    for row in await merging_queries.lock_open_from(transaction, project_id, branches):
        try:
            heads = await read_heads(repository, row.source_branch, row.target_branch)
        except MissingBranchError:
            await merging_queries.set_mergeability(transaction, row, "no_commits", fast_forward=False)
            continue
        await merging_queries.set_heads(transaction, row.id, heads)
        if heads.head_sha != row.head_sha:
            await set_internal_ref(repository, head_ref(row.iid), heads.head_sha)
            events.append(
                MergeRequestEvent(
                    merge_request_id=row.id, action="update", user_id=user_id, old_head=row.head_sha
                )
            )
    return events


def _merge_commit(repository: Repository, arrived: Iterable[str], head_sha: str) -> str | None:
    """Return the commit that merged `head_sha`: the one that has it as a parent in addition to another; None
    after a fast-forward."""
    for sha in arrived:
        commit = repository[sha]
        if isinstance(commit, pygit2.Commit) and head_sha in map(str, commit.parent_ids[1:]):
            return sha
    return None


log = structlog.get_logger(__name__)

CREATE_PIPELINE = "create_merge_request_pipeline"


def setup_pipelines(services: Services) -> None:
    """Let the merge requests of this application get their pipelines."""

    async def create(**queued: Any) -> None:
        await make_pipeline(services, **queued)

    services[MERGE_REQUEST_LISTENERS].append(_queue_pipeline)
    services.queue.add(CREATE_PIPELINE, create, attempts=5)


async def _queue_pipeline(transaction: Transaction, event: MergeRequestEvent) -> None:
    """Queue a pipeline if the merge request is new or has a new head."""
    if event.user_id is None or (event.action != "open" and event.old_head is None):
        return
    merge_request = await find_merge_request(transaction, event.merge_request_id)
    if merge_request is not None:
        await enqueue(
            transaction,
            CREATE_PIPELINE,
            merge_request_id=merge_request.id,
            head_sha=merge_request.head_sha,
            user_id=event.user_id,
            origin=uuid.uuid4().hex,
        )


async def make_pipeline(
    services: Services, merge_request_id: int, head_sha: str, user_id: int, origin: str
) -> None:
    """Create the pipeline that `_queue_pipeline` has queued, if the file defines one and the head is still
    the same (a new head has its own task), and cancel the pipelines that it supersedes."""
    merge_request = await find_merge_request(services.database, merge_request_id)
    if merge_request is None or merge_request.state != "opened" or merge_request.mergeability == "no_commits":
        return
    if merge_request.head_sha != head_sha:
        return
    request = pipeline_request(merge_request, user_id, origin)
    try:
        pipeline_id = await creation.make_with_rights(pipeline_maker(services), request)
    except PipelineRefused as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a merge request", merge_request_id=merge_request.id, reason=reason)
    else:
        now = await find_merge_request(services.database, merge_request_id)
        await transitions.cancel_superseded(
            services.database, pipeline_id, None if now is None else now.head_sha
        )


def pipeline_request(merge_request: MergeRequest, user_id: int, origin: str | None = None) -> PipelineRequest:
    """Return the request for a merge request's pipeline; requests with the same `origin` create only one."""
    return PipelineRequest(
        project_id=merge_request.project_id,
        ref=head_ref(merge_request.iid),
        sha=merge_request.head_sha,
        source="merge_request_event",
        user_id=user_id,
        origin=origin,
        merge_request=merge_request,
    )
