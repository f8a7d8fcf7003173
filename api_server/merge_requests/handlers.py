"""`/projects/:id/merge_requests` (supporting resource): a merge request, its contents, its people, and
merging it."""

from typing import Literal

import attrs
import orjson
from aiohttp import web

from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import may_change
from api_server.ci.pipelines.creation import not_allowed_on, pipeline_maker
from api_server.ci.pipelines.creation_queries import find_merge_request
from api_server.code.committing import acting_person
from api_server.code.reading import (
    ListDifferences,
    all_differences,
    commits_response,
    differences_response,
    page_response,
    reading,
)
from api_server.git.commits import commits_between
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import changes, merging, queries
from api_server.merge_requests.changes import acting
from api_server.merge_requests.merging import Merge, diverged_commits, merge, try_mergeability
from api_server.merge_requests.pushes import pipeline_request
from api_server.merge_requests.queries import MergeRequest, Part
from api_server.namespaces.access import project
from api_server.namespaces.project_queries import lock_project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.errors import NotFound
from api_server.web.answers import json_text, json_value
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import ApiError, forbidden, invalid
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, CommaList, Description, Name, Unset
from api_server.web.routes import Role, Routes

routes = Routes()

PATH = "/projects/{id}/merge_requests"
ONE = f"{PATH}/{{merge_request_iid}}"
CHANGE = project(Role.DEVELOPER, feature="repository", changes=True)


@attrs.frozen(kw_only=True)
class CreateMergeRequest:
    id: str
    title: str = attrs.field(metadata={"present": True})
    source_branch: str = attrs.field(metadata={"present": True})
    target_branch: str = attrs.field(metadata={"present": True})
    target_project_id: int | None = None
    description: str | None = None
    labels: CommaList[Name] | None = None
    remove_source_branch: bool | None = None
    squash: bool | None = None
    assignee_id: int | Unset | None = UNSET
    assignee_ids: CommaList[int] | Unset | None = UNSET
    reviewer_ids: CommaList[int] | Unset | None = UNSET


@attrs.frozen(kw_only=True)
class MergeRequestId:
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class ShowMergeRequest(MergeRequestId):
    include_diverged_commits_count: bool = False
    include_rebase_in_progress: bool = False


@attrs.frozen(kw_only=True)
class UpdateMergeRequest(MergeRequestId):
    title: str | None = None
    description: str | Unset | None = UNSET
    labels: CommaList[Name] | Unset | None = UNSET
    add_labels: CommaList[Name] | None = None
    remove_labels: CommaList[Name] | None = None
    target_branch: str | None = None
    remove_source_branch: bool | None = None
    squash: bool | None = None
    assignee_id: int | Unset | None = UNSET
    assignee_ids: CommaList[int] | Unset | None = UNSET
    reviewer_ids: CommaList[int] | Unset | None = UNSET
    state_event: Literal["close", "reopen"] | None = None


@routes.post(PATH, access=CHANGE, answers="201 MergeRequest")
async def create_merge_request(
    services: Services, actor: Actor, params: CreateMergeRequest, project: Project
) -> web.Response:
    if params.target_project_id not in (None, project.id):
        raise invalid(["Target project is not a fork of source project"], status=422)
    project_actor = acting(services, actor, project)
    async with project_actor.database.transaction() as transaction:
        new_id = await changes.create(project_actor, transaction, params.source_branch, as_new(params))
        entity = await queries.show(transaction, new_id, project)
    return json_text(entity, status=201)


@routes.get(ONE, access=project(feature="repository"), takes_job_token=True, answers="200 MergeRequest")
async def show_merge_request(services: Services, params: ShowMergeRequest, project: Project) -> web.Response:
    """Show a merge request. If a branch has moved since the last check, git checks whether it can be
    merged."""
    database = services.database
    merge_request = await queries.find(database, project.id, params.merge_request_iid)
    await try_mergeability(services, merge_request)
    # Read this first: a client that sees the end of a rebase must also see its result.
    is_rebasing = await queries.is_rebasing(database, merge_request.id)
    entity = orjson.loads(await queries.show(database, merge_request.id, project))
    if params.include_diverged_commits_count:
        repository = services[REPOSITORIES].open(project.id)
        entity["diverged_commits_count"] = await diverged_commits(repository, merge_request)
    if params.include_rebase_in_progress:
        entity["rebase_in_progress"] = is_rebasing
    return json_value(entity)


@routes.put(ONE, access=CHANGE, answers="200 MergeRequest")
async def update_merge_request(
    services: Services, actor: Actor, params: UpdateMergeRequest, project: Project
) -> web.Response:
    """Update the given attributes, then close or reopen the merge request."""
    project_actor = acting(services, actor, project)
    async with project_actor.database.transaction() as transaction:
        await lock_project(transaction, project.id)
        before = await queries.find(transaction, project.id, params.merge_request_iid)
        await changes.edit(project_actor, transaction, before.id, as_edit(params, before.labels))
        if params.state_event == "close":
            await changes.close(project_actor, transaction, before.id)
        elif params.state_event == "reopen":
            await changes.reopen(project_actor, transaction, before.id)
        entity = await queries.show(transaction, before.id, project)
    return json_text(entity)


@routes.delete(ONE, access=project(Role.OWNER, feature="repository", changes=True), answers="204")
async def delete_merge_request(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    async with services.database.transaction() as transaction:
        await lock_project(transaction, project.id)
        before = await queries.find(transaction, project.id, params.merge_request_iid)
        await changes.delete(services, actor, transaction, project, before.id)
    return web.Response(status=204)


def _labels(labels: list[str]) -> list[str]:
    return sorted({label.strip() for label in labels} - {""})


def as_new(params: CreateMergeRequest) -> changes.Edit:
    """Return the attributes of a new merge request."""
    return changes.Edit(
        title=params.title,
        description=params.description,
        labels=_labels(params.labels or []),
        target_branch=params.target_branch,
        remove_source_branch=params.remove_source_branch,
        squash=params.squash,
        people=_people(params),
    )


def as_edit(params: UpdateMergeRequest, labels: list[str]) -> changes.Edit:
    """Return the requested changes of a merge request with these labels."""
    return changes.Edit(
        title=params.title,
        description=None if params.description is UNSET else params.description or "",
        labels=_new_labels(labels, params),
        target_branch=params.target_branch,
        remove_source_branch=params.remove_source_branch,
        squash=params.squash,
        people=_people(params),
    )


def _new_labels(present: list[str], params: UpdateMergeRequest) -> list[str] | None:
    """Return the labels after the update, or None if it does not change them."""
    if params.labels is UNSET and params.add_labels is None and params.remove_labels is None:
        return None
    base = present if params.labels is UNSET else _labels(params.labels or [])
    return sorted(
        (set(base) | set(_labels(params.add_labels or []))) - set(_labels(params.remove_labels or []))
    )


def _people(params: CreateMergeRequest | UpdateMergeRequest) -> dict[Part, list[int]]:
    """Return the named users by part, without parts that are not sent; 0 and null stand for nobody."""
    user_ids: dict[Part, list[int]] = {}
    if params.assignee_id is not UNSET:
        user_ids["assignee"] = [params.assignee_id or 0]
    if params.assignee_ids is not UNSET:
        user_ids["assignee"] = params.assignee_ids or []
    if params.reviewer_ids is not UNSET:
        user_ids["reviewer"] = params.reviewer_ids or []
    return user_ids


#: Older commits of a merge request are not listed, nor are their pipelines.
MAX_COMMITS = 1000


@attrs.frozen(kw_only=True)
class ListContents(Paginated):
    """A page of the contents of a merge request."""

    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class ListDiffs(ListDifferences):
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class ShowChanges(MergeRequestId):
    unidiff: bool = False


@routes.get(f"{ONE}/commits", access=project(feature="repository"), answers="200 [Commit]")
async def list_commits(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: ListContents, project: Project
) -> web.Response:
    """List the commits of a merge request, newest first."""
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    repository = services[REPOSITORIES].open(project.id)
    shas = await shas_of(services, actor, repository, merge_request)
    return await commits_response(request, params, project, repository, shas)


@routes.get(f"{ONE}/diffs", access=project(feature="repository"), answers="200 [Diff]")
async def list_diffs(
    request: web.Request, services: Services, params: ListDiffs, project: Project
) -> web.Response:
    """List the differences between the merge base and the source branch."""
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    return await differences_response(
        request,
        params,
        services[REPOSITORIES].open(project.id),
        merge_request.base_sha,
        merge_request.head_sha,
    )


@routes.get(f"{ONE}/closes_issues", access=project(feature="repository"), answers="200 [object]")
async def list_closed_issues(
    request: web.Request, services: Services, params: ListContents, project: Project
) -> web.Response:
    """List no issues, as for a project without issues; release tools ask for them."""
    await queries.find(services.database, project.id, params.merge_request_iid)
    return await page_response(request, params, [], 0)


@routes.get(f"{ONE}/changes", access=project(feature="repository"), answers="200 MergeRequestChanges")
async def show_changes(
    services: Services, actor: Actor | Anonymous, params: ShowChanges, project: Project
) -> web.Response:
    """Show a merge request with all of its differences; `overflow` is true if some are left out."""
    database = services.database
    merge_request = await queries.find(database, project.id, params.merge_request_iid)
    repository = services[REPOSITORIES].open(project.id)
    async with reading(services, actor):
        diffs, overflows = await all_differences(
            services,
            repository,
            merge_request.base_sha,
            merge_request.head_sha,
            unidiff=params.unidiff,
        )
    entity = orjson.loads(await queries.show(database, merge_request.id, project))
    return json_value(entity | {"changes": diffs, "overflow": overflows})


async def shas_of(
    services: Services, actor: Actor | Anonymous, repository: Repository, merge_request: MergeRequest
) -> list[str]:
    """Return the commits of the merge request, newest first."""
    async with reading(services, actor):
        return await commits_between(repository, merge_request.base_sha, merge_request.head_sha, MAX_COMMITS)


@routes.get(f"{ONE}/pipelines", access=project(feature="builds"), answers="200 [PipelineInList]")
async def list_pipelines(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: ListContents, project: Project
) -> web.Response:
    """List the pipelines of a merge request, and those of its source branch for any of its commits, newest
    first. The caller has to be able to read both the repository and pipelines."""
    _require_repository(project)
    page = requested_page(params, pipelines.OF_MERGE_REQUEST)
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    shas = await shas_of(services, actor, services[REPOSITORIES].open(project.id), merge_request)
    page_response = await pipelines.list_pipelines_of_merge_request(
        services.database,
        page,
        merge_request.id,
        project_id=project.id,
        branch=merge_request.source_branch,
        shas=shas or [merge_request.head_sha],
    )
    return await paginated(request, page, page_response)


@routes.post(
    f"{ONE}/pipelines", access=project(Role.DEVELOPER, feature="builds", changes=True), answers="200 Pipeline"
)
async def create_pipeline(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    """Create a pipeline for the head of a merge request, in addition to existing ones; 405 if it has no
    commits."""
    _require_repository(project)
    database = services.database
    row = await queries.find(database, project.id, params.merge_request_iid)
    merge_request = await find_merge_request(database, row.id)
    if merge_request is None:
        raise NotFound
    if merge_request.mergeability == "no_commits":
        raise ApiError(405, {"message": "405 Method Not Allowed"}, {"Allow": "GET, HEAD"})
    branch = merge_request.source_branch
    if not await may_change(services, project, branch, tag=False):
        raise not_allowed_on(branch)
    pipeline_id = await pipeline_maker(services).make(pipeline_request(merge_request, actor.user_id))
    return json_text(await pipelines.show_pipeline(database, project.id, pipeline_id))


def _require_repository(project: Project) -> None:
    if not project.reads_repository:
        raise forbidden()


@routes.get(f"{ONE}/reviewers", access=project(feature="repository"), answers="200 [MergeRequestReviewer]")
async def list_reviewers(
    request: web.Request, services: Services, params: ListContents, project: Project
) -> web.Response:
    """List the reviewers of a merge request, each with the state `approved` or `unreviewed`."""
    page = requested_page(params, queries.REVIEWERS, default_sort="asc")
    database = services.database
    merge_request = await queries.find(database, project.id, params.merge_request_iid)
    return await paginated(request, page, await queries.list_reviewers(database, page, merge_request.id))


@routes.get(f"{ONE}/participants", access=project(feature="repository"), answers="200 [UserBasic]")
async def list_participants(
    request: web.Request, services: Services, params: ListContents, project: Project
) -> web.Response:
    """List the author, assignees, reviewers, and authors of notes of a merge request."""
    page = requested_page(params, queries.PARTICIPANTS, default_sort="asc")
    database = services.database
    merge_request = await queries.find(database, project.id, params.merge_request_iid)
    return await paginated(request, page, await queries.list_participants(database, page, merge_request.id))


@attrs.frozen(kw_only=True)
class ApproveMergeRequest(MergeRequestId):
    sha: str | None = None


@routes.get(f"{ONE}/approvals", access=project(feature="repository"), answers="200 MergeRequestApprovals")
async def show_approvals(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    return await _approvals(services, actor, merge_request.id, project.role)


@routes.get(
    f"{ONE}/approval_state", access=project(feature="repository"), answers="200 MergeRequestApprovalState"
)
async def show_approval_state(services: Services, params: MergeRequestId, project: Project) -> web.Response:
    """Show the state of the approval rules, of which there are none."""
    await queries.find(services.database, project.id, params.merge_request_iid)
    return json_value({"approval_rules_overwritten": False, "rules": []})


@routes.post(f"{ONE}/approve", access=CHANGE, answers="201 MergeRequestApprovals")
async def approve_merge_request(
    services: Services, actor: Actor, params: ApproveMergeRequest, project: Project
) -> web.Response:
    """Approve a merge request. `sha` ensures that the caller approves the commit that she has seen."""
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    async with services.database.transaction() as transaction:
        await changes.approve(services, actor, transaction, merge_request.id, params.sha)
    return await _approvals(services, actor, merge_request.id, project.role, status=201)


@routes.post(f"{ONE}/unapprove", access=CHANGE, answers="201 MergeRequestApprovals")
async def unapprove_merge_request(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    async with services.database.transaction() as transaction:
        await changes.unapprove(services, actor, transaction, merge_request.id)
    return await _approvals(services, actor, merge_request.id, project.role, status=201)


@routes.put(f"{ONE}/reset_approvals", access=CHANGE, answers="202 integer")
async def reset_approvals(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    """Remove all approvals. Only bots may do so; others get 401. As in GitLab, the body is the status."""
    merge_request = await queries.find(services.database, project.id, params.merge_request_iid)
    async with services.database.transaction() as transaction:
        await changes.reset_approvals(transaction, merge_request.id, actor)
    return json_value(202, status=202)


async def _approvals(
    services: Services, actor: Actor, merge_request_id: int, role: int, status: int = 200
) -> web.Response:
    entity = await queries.show_approvals(
        services.database,
        merge_request_id,
        viewer_id=actor.user_id,
        viewer_may_approve=role >= Role.DEVELOPER,
    )
    return json_text(entity, status=status)


@attrs.frozen(kw_only=True)
class MergeMergeRequest(MergeRequestId):
    sha: str | None = None
    merge_commit_message: Description | None = None
    squash_commit_message: Description | None = None
    squash: bool | None = None
    should_remove_source_branch: bool | None = None
    auto_merge: bool = False
    #: The former name of `auto_merge`.
    merge_when_pipeline_succeeds: bool = False


@attrs.frozen(kw_only=True)
class RebaseMergeRequest(MergeRequestId):
    skip_ci: bool = False


@routes.put(f"{ONE}/merge", access=CHANGE, answers="200 MergeRequest")
async def merge_merge_request(
    services: Services, actor: Actor, params: MergeMergeRequest, project: Project
) -> web.Response:
    """Merge by the project's method, if the protection of the target branch lets the caller; on request
    later, when the pipeline of the head has succeeded."""
    how = Merge(
        sha=params.sha,
        message=params.merge_commit_message,
        remove_source_branch=params.should_remove_source_branch,
        squash=params.squash,
        squash_message=params.squash_commit_message,
    )
    later = params.auto_merge or params.merge_when_pipeline_succeeds
    act = merging.merge_or_wait if later else merge
    merge_request = await act(acting(services, actor, project), params.merge_request_iid, how)
    return json_text(await queries.show(services.database, merge_request.id, project))


@routes.post(f"{ONE}/cancel_merge_when_pipeline_succeeds", access=CHANGE, answers="201 Outcomes")
async def cancel_auto_merge(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    await merging.cancel_auto_merge(acting(services, actor, project), params.merge_request_iid)
    return json_value({"status": "success"}, status=201)


@routes.get(f"{ONE}/merge_ref", access=project(feature="repository"), answers="200 MergeRef")
async def show_merge_ref(
    services: Services, actor: Actor, params: MergeRequestId, project: Project
) -> web.Response:
    """Show the commit that merging would currently create, which can be fetched from
    `refs/merge-requests/:iid/merge`."""
    sha = await merging.merge_commit(
        services,
        project.id,
        params.merge_request_iid,
        acting_person(services, actor),
    )
    return json_value({"commit_id": sha})


@routes.put(f"{ONE}/rebase", access=CHANGE, answers="202 RebaseInProgress")
async def rebase_merge_request(
    services: Services, actor: Actor, params: RebaseMergeRequest, project: Project
) -> web.Response:
    """Rebase the source branch onto the target in the background; `include_rebase_in_progress` shows when
    this has ended, and `merge_error` why it has failed."""
    await merging.begin_rebase(
        acting(services, actor, project),
        params.merge_request_iid,
        skip_ci=params.skip_ci,
    )
    return json_value({"rebase_in_progress": True}, status=202)
