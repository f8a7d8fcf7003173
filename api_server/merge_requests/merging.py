"""Merging: git makes the merge commit, and what follows from the moved target marks the merge request merged."""

import functools
from contextlib import suppress

import attrs
from aiohttp import web

from api_server.code.branches.protection import protection_for
from api_server.code.refs import move
from api_server.code.repository.committing import acting_person
from api_server.git import new_commits as git
from api_server.git.commits import merge_base
from api_server.git.errors import (
    BranchMovedError,
    MergeConflictError,
    NothingToMergeError,
    StorageUnavailableError,
)
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, NO_COMMIT
from api_server.git.references import branch
from api_server.git.repositories import Repository, repositories
from api_server.merge_requests import head_queries, queries
from api_server.merge_requests.changes import check_head
from api_server.merge_requests.heads import mergeability
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.projects.project import Project
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.context import DATABASE
from api_server.web.errors import ApiError, conflict, forbidden, invalid
from api_server.web.grounds import Ground, rely_on
from api_server.web.routes import caller


@attrs.frozen(kw_only=True)
class Merge:
    """How to merge: `sha` is the head that the caller has seen, `message` the merge commit's. `not_before_pipeline`
    refuses while the head's pipeline is under way."""

    sha: str | None = None
    message: str | None = None
    remove_source_branch: bool | None = None
    not_before_pipeline: bool = False


async def check_mergeability(request: web.Request, found: MergeRequest) -> None:
    """Asks git, where that has not been done since a branch moved. Raises `StorageUnavailableError`."""
    if found.state != "opened" or found.mergeability != "unchecked":
        return
    repository = repositories(request).open(found.project_id)
    source, target = branch(repository, found.source_branch), branch(repository, found.target_branch)
    if source is None or target is None:
        answer = "no_commits"
    else:
        base_sha = await merge_base(repository, target.commit, found.head_sha)
        answer = await mergeability(repository, found.head_sha, target.commit, base_sha)
    # Not one of the request's own: nothing is decided by it.
    async with request.config_dict[DATABASE].transaction() as transaction:
        await head_queries.set_mergeability(transaction, found, answer)


async def check_shown(request: web.Request, found: MergeRequest) -> None:
    """`check_mergeability` for who only looks: it stays unchecked on a full disk."""
    with suppress(StorageUnavailableError):
        await check_mergeability(request, found)


async def merge(request: web.Request, project: Project, iid: int, wanted: Merge) -> MergeRequest:
    """Merges exactly the head that was found mergeable, into the branch that was its target then: what it is judged on
    is held when git moves the target. Raises 403, and 405, 409 and 422 as GitLab words them."""
    await check_mergeability(request, await queries.find(context.database(request), project.id, iid))
    found = await _judged(request, await queries.find(context.database(request), project.id, iid))
    if not await _may_merge(request, project, found.target_branch):
        raise forbidden()
    check_head(found, wanted.sha)
    await _require_mergeable(request, found, not_before_pipeline=wanted.not_before_pipeline)
    repository = repositories(request).open(project.id)
    updates = [await _merged(request, project, repository, found, wanted.message)]
    remove = (
        found.remove_source_branch if wanted.remove_source_branch is None else wanted.remove_source_branch
    )
    if remove and await _may_remove_source(request, project, repository, found):
        updates.append(RefUpdate(found.head_sha, NO_COMMIT, BRANCHES + found.source_branch))
    try:
        await move(request, project.id, caller(request).user_id, *updates)
    except BranchMovedError as moved:
        raise conflict("A branch has moved, try again") from moved
    return found


async def _judged(request: web.Request, found: MergeRequest) -> MergeRequest:
    """The merge request, which has to be the same when the target moves."""

    async def read(executor: Executor) -> MergeRequest:
        return await queries.lock_with_project(executor, found.id)

    rely_on(request, Ground((), found, read))
    return found


async def _may_merge(request: web.Request, project: Project, branch_name: str) -> bool:
    """Whether the caller may put commits into the branch, by merging or by pushing."""
    rules = await protection_for(request, project.id, branch_name)
    role, admin = project.role, project.admin
    return rules.may_merge(role, admin=admin) or rules.may_push(role, admin=admin)


async def _require_mergeable(request: web.Request, found: MergeRequest, *, not_before_pipeline: bool) -> None:
    status = await queries.merge_status(context.database(request), found.id)
    read = functools.partial(queries.merge_status, merge_request_id=found.id)
    rely_on(request, Ground((), status, read))
    if status.detailed_merge_status == "conflict":
        raise invalid("Branch cannot be merged", status=422)
    waits = not_before_pipeline and status.pipeline_under_way
    refusal = "ci_still_running" if waits else status.detailed_merge_status
    if refusal != "mergeable":
        raise ApiError(
            405,
            {"message": "405 Method Not Allowed", "detailed_merge_status": refusal},
            {"Allow": "GET, HEAD"},
        )


async def _merged(
    request: web.Request, project: Project, repository: Repository, found: MergeRequest, message: str | None
) -> RefUpdate:
    """The target branch as it is to move, to a merge commit that exists already."""
    target = branch(repository, found.target_branch)
    if target is None:
        raise invalid("Branch cannot be merged", status=422)
    person = acting_person(request)
    commit = git.NewCommit(message or default_message(project, found), person, person)
    try:
        new = await git.merge(repository, found.head_sha, target.commit, commit)
    except (MergeConflictError, NothingToMergeError) as refused:
        raise invalid("Branch cannot be merged", status=422) from refused
    return RefUpdate(target.commit, new, BRANCHES + found.target_branch)


async def _may_remove_source(
    request: web.Request, project: Project, repository: Repository, found: MergeRequest
) -> bool:
    """Not where the branch is protected, the default one, or has moved on."""
    rules = await protection_for(request, project.id, found.source_branch)
    source = branch(repository, found.source_branch)
    return (
        not rules.protected
        and found.source_branch != project.default_branch
        and source is not None
        and source.commit == found.head_sha
    )


def default_message(project: Project, found: MergeRequest) -> str:
    """As GitLab writes it."""
    return (
        f"Merge branch '{found.source_branch}' into '{found.target_branch}'\n\n{found.title}\n\n"
        f"See merge request {project.full_path}!{found.iid}"
    )
