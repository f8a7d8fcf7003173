"""`/projects/:id/merge_requests` (supporting resource)."""

import datetime
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.merge_requests import approval_queries, changes, merging, queries, unsupported
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.namespaces.projects.queries import lock_project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text
from api_server.web.errors import invalid
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, CommaList, Description, Name, Unset
from api_server.web.routes import Routes, caller

routes = Routes()

PATH = "/projects/{id}/merge_requests"
ONE = f"{PATH}/{{merge_request_iid}}"
CHANGE = project(Role.DEVELOPER, opens="repository", changes=True)


@attrs.frozen(kw_only=True)
class ListMergeRequests(Paginated):
    id: str
    state: Literal["opened", "closed", "merged", "locked", "all"] = "all"
    iids: CommaList[int] | None = None
    source_branch: str | None = None
    target_branch: str | None = None
    author_id: int | None = None
    author_username: str | None = None
    labels: CommaList[str] | None = None
    search: str | None = None
    draft: bool | None = None
    wip: Literal["yes", "no"] | None = None
    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None
    updated_after: datetime.datetime | None = None
    updated_before: datetime.datetime | None = None

    @property
    def filters(self) -> dict[str, Any]:
        """As the listing's parameters."""
        others = {"id", "state", "labels", "draft", "wip"} | {field.name for field in attrs.fields(Paginated)}
        return attrs.asdict(self, filter=lambda field, _: field.name not in others) | {
            "state": None if self.state == "all" else self.state,
            "labels": None if self.labels is None else _labels(self.labels),
            "draft": self.wip == "yes" if self.draft is None and self.wip else self.draft,
        }


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


@attrs.frozen(kw_only=True)
class MergeRequestId:
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class UpdateMergeRequest(MergeRequestId):
    title: str | None = None
    description: str | Unset | None = UNSET
    labels: CommaList[Name] | Unset | None = UNSET
    add_labels: CommaList[Name] | None = None
    remove_labels: CommaList[Name] | None = None
    target_branch: str | None = None
    remove_source_branch: bool | None = None
    state_event: Literal["close", "reopen"] | None = None


@attrs.frozen(kw_only=True)
class MergeMergeRequest(MergeRequestId):
    sha: str | None = None
    merge_commit_message: Description | None = None
    should_remove_source_branch: bool | None = None
    auto_merge: bool = False
    #: What `auto_merge` was called before.
    merge_when_pipeline_succeeds: bool = False


@attrs.frozen(kw_only=True)
class ApproveMergeRequest(MergeRequestId):
    sha: str | None = None


@routes.get(
    PATH, access=project(opens="repository"), takes_job_token=True, ignores=unsupported.OfMergeRequestLists
)
async def list_merge_requests(
    request: web.Request, wanted: ListMergeRequests, found: Project
) -> web.Response:
    """Newest first; those that match every filter."""
    page = wanted_page(wanted, queries.LISTING)
    listed = await queries.list_merge_requests(
        context.database(request), page, project_id=found.id, **wanted.filters
    )
    return await paginated(request, page, listed)


@routes.post(PATH, access=CHANGE, ignores=unsupported.OfNewMergeRequests)
async def create_merge_request(
    request: web.Request, wanted: CreateMergeRequest, found: Project
) -> web.Response:
    if wanted.target_project_id not in (None, found.id):
        raise invalid(["Target project is not a fork of source project"], status=422)
    new = changes.Edit(
        title=wanted.title,
        description=wanted.description,
        labels=_labels(wanted.labels or []),
        target_branch=wanted.target_branch,
        remove_source_branch=wanted.remove_source_branch,
    )
    async with context.database(request).transaction() as transaction:
        made = await changes.create(request, transaction, found, wanted.source_branch, new)
        shown = await queries.show(transaction, made, shows_pipelines=found.shows_pipelines)
    return json_text(shown, status=201)


@routes.get(
    ONE, access=project(opens="repository"), takes_job_token=True, ignores=unsupported.OfOneMergeRequest
)
async def show_merge_request(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    """Asks git whether it can be merged, if a branch has moved since that was last known."""
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    await merging.check_shown(request, merge_request)
    return json_text(
        await queries.show(context.database(request), merge_request.id, shows_pipelines=found.shows_pipelines)
    )


@routes.put(ONE, access=CHANGE, ignores=unsupported.OfChangedMergeRequests)
async def update_merge_request(
    request: web.Request, wanted: UpdateMergeRequest, found: Project
) -> web.Response:
    """Changes the given attributes, then closes or reopens."""
    async with context.database(request).transaction() as transaction:
        await lock_project(transaction, found.id)
        before = await queries.find(transaction, found.id, wanted.merge_request_iid)
        await changes.edit(request, transaction, before.id, _edit(wanted, before.labels))
        if wanted.state_event == "close":
            await changes.close(request, transaction, before.id)
        elif wanted.state_event == "reopen":
            await changes.reopen(request, transaction, before.id)
        shown = await queries.show(transaction, before.id, shows_pipelines=found.shows_pipelines)
    return json_text(shown)


@routes.put(f"{ONE}/merge", access=CHANGE, ignores=unsupported.OfMerging)
async def merge_merge_request(
    request: web.Request, wanted: MergeMergeRequest, found: Project
) -> web.Response:
    """With a merge commit, by whom the target branch's protection lets. Whoever asks for a merge once the pipeline has
    succeeded is told when that is still to come, since nothing here merges later."""
    how = merging.Merge(
        sha=wanted.sha,
        message=wanted.merge_commit_message,
        remove_source_branch=wanted.should_remove_source_branch,
        not_before_pipeline=wanted.auto_merge or wanted.merge_when_pipeline_succeeds,
    )
    merge_request = await merging.merge(request, found, wanted.merge_request_iid, how)
    return json_text(
        await queries.show(context.database(request), merge_request.id, shows_pipelines=found.shows_pipelines)
    )


@routes.get(f"{ONE}/approvals", access=project(opens="repository"))
async def show_approvals(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    return await _approvals(request, merge_request.id, found.role)


@routes.post(f"{ONE}/approve", access=CHANGE, ignores=unsupported.OfApprovals)
async def approve_merge_request(
    request: web.Request, wanted: ApproveMergeRequest, found: Project
) -> web.Response:
    """`sha` makes sure that what is approved is what the caller has seen."""
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    async with context.database(request).transaction() as transaction:
        await changes.approve(request, transaction, merge_request.id, wanted.sha)
    return await _approvals(request, merge_request.id, found.role, status=201)


@routes.post(f"{ONE}/unapprove", access=CHANGE)
async def unapprove_merge_request(
    request: web.Request, wanted: MergeRequestId, found: Project
) -> web.Response:
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    async with context.database(request).transaction() as transaction:
        await changes.unapprove(request, transaction, merge_request.id)
    return await _approvals(request, merge_request.id, found.role, status=201)


async def _approvals(
    request: web.Request, merge_request_id: int, role: int, status: int = 200
) -> web.Response:
    shown = await approval_queries.show_approvals(
        context.database(request),
        merge_request_id,
        viewer_id=caller(request).user_id,
        viewer_may_approve=role >= Role.DEVELOPER,
    )
    return json_text(shown, status=status)


def _labels(sent: list[str]) -> list[str]:
    return sorted({label.strip() for label in sent} - {""})


def _edit(wanted: UpdateMergeRequest, labels: list[str]) -> changes.Edit:
    return changes.Edit(
        title=wanted.title,
        description=None if wanted.description is UNSET else wanted.description or "",
        labels=_new_labels(labels, wanted),
        target_branch=wanted.target_branch,
        remove_source_branch=wanted.remove_source_branch,
    )


def _new_labels(present: list[str], wanted: UpdateMergeRequest) -> list[str] | None:
    """The labels after the update, None where it names none."""
    if wanted.labels is UNSET and wanted.add_labels is None and wanted.remove_labels is None:
        return None
    base = present if wanted.labels is UNSET else _labels(wanted.labels or [])
    return sorted(
        (set(base) | set(_labels(wanted.add_labels or []))) - set(_labels(wanted.remove_labels or []))
    )
