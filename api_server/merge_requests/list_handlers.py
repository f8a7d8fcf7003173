"""Lists of merge requests (supporting resource): of a project, of a group, and of all that the caller can
see."""

import datetime
from contextlib import suppress
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.merge_requests import list_queries
from api_server.merge_requests.handlers import PATH
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.web import context, params
from api_server.web.auth import Actor
from api_server.web.errors import bad_parameters
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import CommaList
from api_server.web.routes import SIGNED_IN, Role, Routes, caller

Scope = Literal["created_by_me", "created-by-me", "assigned_to_me", "assigned-to-me", "reviews_for_me", "all"]


#: An id, `None` or `Any`.
_SOMEBODY = {"pattern": "^(None|Any|none|any|-?[0-9]{1,18})?$"}


@attrs.frozen(kw_only=True)
class ListMergeRequests(Paginated):
    state: Literal["opened", "closed", "merged", "locked", "all"] = "all"
    scope: Scope = "all"
    source_branch: str | None = None
    target_branch: str | None = None
    source_project_id: int | None = None
    author_id: int | None = None
    author_username: str | None = None
    assignee_id: str | None = attrs.field(default=None, metadata=_SOMEBODY)
    assignee_username: CommaList[str] | None = attrs.field(default=None, metadata={"most": 1})
    reviewer_id: str | None = attrs.field(default=None, metadata=_SOMEBODY)
    reviewer_username: str | None = None
    #: Names, or `None` or `Any`.
    labels: CommaList[str] | None = None
    search: str | None = None
    in_: CommaList[Literal["title", "description"]] | None = attrs.field(
        default=None, metadata={"name": "in"}
    )
    draft: bool | None = None
    wip: Literal["yes", "no"] | None = None
    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None
    updated_after: datetime.datetime | None = None
    updated_before: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class ListOfAll(ListMergeRequests):
    scope: Scope = "created_by_me"
    non_archived: bool = False


@attrs.frozen(kw_only=True)
class ListOfGroup(ListMergeRequests):
    id: str
    non_archived: bool = True


@attrs.frozen(kw_only=True)
class ListOfProject(ListMergeRequests):
    id: str
    iids: CommaList[int] | None = None


#: Filters whose values go to the statement unchanged.
_AS_SENT = (
    "source_branch",
    "target_branch",
    "source_project_id",
    "author_id",
    "author_username",
    "reviewer_username",
    "created_after",
    "created_before",
    "updated_after",
    "updated_before",
)


def filters_of(params: ListMergeRequests, viewer_id: int) -> dict[str, Any]:
    """Return the parameters of the lists' statements. Raise 400 for invalid users."""
    filters = {name: getattr(params, name) for name in _AS_SENT}
    usernames: list[str] = params.assignee_username or []
    if len(usernames) > 1:
        raise bad_parameters("allows one value, but found " + f"{len(usernames)}: {', '.join(usernames)}")
    fields = params.in_ or ["title", "description"]
    return (
        filters
        | _people("assignee", params.assignee_id)
        | _people("reviewer", params.reviewer_id)
        | _labels(params.labels)
        | {
            "state": None if params.state == "all" else params.state,
            "iids": getattr(params, "iids", None) or None,
            "assignee_username": next(iter(usernames), None),
            "search": params.search,
            "in_title": "title" in fields,
            "in_description": "description" in fields,
            "draft": params.wip == "yes" if params.draft is None and params.wip else params.draft,
        }
        | _scope(params.scope.replace("-", "_"), viewer_id)
    )


def _people(part: str, value: str | None) -> dict[str, Any]:
    if value in ("None", "Any", "none", "any"):
        return {f"{part}_id": None, f"any_{part}": value.lower() == "any"}
    number = None
    if value:
        with suppress(params.Refused):
            number = params.integer(value, int)
        if number is None:
            raise bad_parameters(f"{part}_id should be an integer, 'None' or 'Any', however got {value}")
    return {f"{part}_id": number, f"any_{part}": None}


def _labels(labels: list[str] | None) -> dict[str, Any]:
    if labels in (["None"], ["Any"], ["none"], ["any"]):
        return {"labels": None, "any_label": labels[0].lower() == "any"}
    names = None if labels is None else sorted({label.strip() for label in labels} - {""})
    return {"labels": names, "any_label": None}


def _scope(scope: str, viewer_id: int) -> dict[str, Any]:
    """Return the parameters for the part that the viewer must have in the merge requests, in addition to all
    other filters."""
    parts = {"assigned_to_me": "assignee", "reviews_for_me": "reviewer"}
    return {
        "created_by_id": viewer_id if scope == "created_by_me" else None,
        "part_of_viewer": parts.get(scope),
        "part_of_id": viewer_id,
    }


routes = Routes()


@routes.get("/merge_requests", access=SIGNED_IN, answers="200 [MergeRequestBasic]")
async def list_merge_requests(request: web.Request, params: ListOfAll) -> web.Response:
    """List the merge requests that match every filter, of all projects whose files the caller may read,
    newest first."""
    return await _readable(request, params)


@routes.get("/groups/{id}/merge_requests", access=group(), answers="200 [MergeRequestBasic]")
async def list_of_group(request: web.Request, params: ListOfGroup, group: Group) -> web.Response:
    """List the merge requests that match every filter, of the projects of a group and of the groups below it,
    newest first."""
    return await _readable(request, params, group)


async def _readable(
    request: web.Request, params: ListOfAll | ListOfGroup, within: Group | None = None
) -> web.Response:
    page = requested_page(params, list_queries.OF_ALL if within is None else list_queries.BELOW_GROUP)
    actor = caller(request)
    rows = await list_queries.list_readable(
        context.services(request).database,
        page,
        viewer_id=actor.user_id,
        # a role in a group applies to all of its projects
        sees_all=actor.admin or (within is not None and within.role >= Role.REPORTER),
        non_archived=params.non_archived,
        filters=filters_of(params, actor.user_id),
        group_id=None if within is None else within.id,
    )
    return await paginated(request, page, rows)


@routes.get(
    PATH, access=project(feature="repository"), takes_job_token=True, answers="200 [MergeRequestBasic]"
)
async def list_of_project(
    request: web.Request, services: Services, actor: Actor, params: ListOfProject, project: Project
) -> web.Response:
    """List the merge requests of a project that match every filter, newest first."""
    page = requested_page(params, list_queries.OF_PROJECT)
    filters = filters_of(params, actor.user_id)
    rows = await list_queries.list_of_project(services.database, page, project.id, filters)
    return await paginated(request, page, rows)
