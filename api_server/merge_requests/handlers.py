"""`/projects/:id/merge_requests` (supporting resource): one of them. Lists are in `lists/`."""

from typing import Literal

import attrs
import orjson
from aiohttp import web

from api_server.git.repositories import repositories
from api_server.merge_requests import changes, queries
from api_server.merge_requests.acting import acting
from api_server.merge_requests.mergeability import check_shown, diverged_commits
from api_server.merge_requests.people.queries import Part
from api_server.namespaces.access import project
from api_server.namespaces.project_queries import lock_project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_text, json_value
from api_server.web.errors import invalid
from api_server.web.params import UNSET, CommaList, Name, Unset
from api_server.web.routes import Role, Routes

routes = Routes()

PATH = "/projects/{id}/merge_requests"
ONE = f"{PATH}/{{merge_request_iid}}"
CHANGE = project(Role.DEVELOPER, opens="repository", changes=True)


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


@routes.post(PATH, access=CHANGE)
async def create_merge_request(
    request: web.Request, wanted: CreateMergeRequest, found: Project
) -> web.Response:
    if wanted.target_project_id not in (None, found.id):
        raise invalid(["Target project is not a fork of source project"], status=422)
    actor = acting(request, found)
    async with actor.database.transaction() as transaction:
        made = await changes.create(actor, transaction, wanted.source_branch, as_new(wanted))
        shown = await queries.show(transaction, made, found)
    return json_text(shown, status=201)


@routes.get(
    ONE,
    access=project(opens="repository"),
    takes_job_token=True,
)
async def show_merge_request(request: web.Request, wanted: ShowMergeRequest, found: Project) -> web.Response:
    """Asks git whether it can be merged, if a branch has moved since that was last known."""
    database = context.database(request)
    merge_request = await queries.find(database, found.id, wanted.merge_request_iid)
    await check_shown(request.config_dict, merge_request)
    # Before the rest: whoever is told that a rebase is over is shown what has come of it.
    is_rebasing = await queries.is_rebasing(database, merge_request.id)
    shown = orjson.loads(await queries.show(database, merge_request.id, found))
    if wanted.include_diverged_commits_count:
        repository = repositories(request).open(found.id)
        shown["diverged_commits_count"] = await diverged_commits(repository, merge_request)
    if wanted.include_rebase_in_progress:
        shown["rebase_in_progress"] = is_rebasing
    return json_value(shown)


@routes.put(ONE, access=CHANGE)
async def update_merge_request(
    request: web.Request, wanted: UpdateMergeRequest, found: Project
) -> web.Response:
    """Changes the given attributes, then closes or reopens."""
    actor = acting(request, found)
    async with actor.database.transaction() as transaction:
        await lock_project(transaction, found.id)
        before = await queries.find(transaction, found.id, wanted.merge_request_iid)
        await changes.edit(actor, transaction, before.id, as_edit(wanted, before.labels))
        if wanted.state_event == "close":
            await changes.close(actor, transaction, before.id)
        elif wanted.state_event == "reopen":
            await changes.reopen(actor, transaction, before.id)
        shown = await queries.show(transaction, before.id, found)
    return json_text(shown)


@routes.delete(ONE, access=project(Role.OWNER, opens="repository", changes=True))
async def delete_merge_request(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    async with context.database(request).transaction() as transaction:
        await lock_project(transaction, found.id)
        before = await queries.find(transaction, found.id, wanted.merge_request_iid)
        await changes.delete(request, transaction, found, before.id)
    return web.Response(status=204)


def _labels(sent: list[str]) -> list[str]:
    return sorted({label.strip() for label in sent} - {""})


def as_new(wanted: CreateMergeRequest) -> changes.Edit:
    """Return what a new merge request is to be like."""
    return changes.Edit(
        title=wanted.title,
        description=wanted.description,
        labels=_labels(wanted.labels or []),
        target_branch=wanted.target_branch,
        remove_source_branch=wanted.remove_source_branch,
        squash=wanted.squash,
        people=_people(wanted),
    )


def as_edit(wanted: UpdateMergeRequest, labels: list[str]) -> changes.Edit:
    """Return what is to be different of one that has these labels."""
    return changes.Edit(
        title=wanted.title,
        description=None if wanted.description is UNSET else wanted.description or "",
        labels=_new_labels(labels, wanted),
        target_branch=wanted.target_branch,
        remove_source_branch=wanted.remove_source_branch,
        squash=wanted.squash,
        people=_people(wanted),
    )


def _new_labels(present: list[str], wanted: UpdateMergeRequest) -> list[str] | None:
    """The labels after the update, None where it names none."""
    if wanted.labels is UNSET and wanted.add_labels is None and wanted.remove_labels is None:
        return None
    base = present if wanted.labels is UNSET else _labels(wanted.labels or [])
    return sorted(
        (set(base) | set(_labels(wanted.add_labels or []))) - set(_labels(wanted.remove_labels or []))
    )


def _people(wanted: CreateMergeRequest | UpdateMergeRequest) -> dict[Part, list[int]]:
    """Who is named, 0 and null being nobody; nothing for a part of which nothing is said."""
    named: dict[Part, list[int]] = {}
    if wanted.assignee_id is not UNSET:
        named["assignee"] = [wanted.assignee_id or 0]
    if wanted.assignee_ids is not UNSET:
        named["assignee"] = wanted.assignee_ids or []
    if wanted.reviewer_ids is not UNSET:
        named["reviewer"] = wanted.reviewer_ids or []
    return named
