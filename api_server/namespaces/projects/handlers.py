"""`/projects` (supporting resource)."""

from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.accounts.users.queries import find_user, find_user_by_username
from api_server.code.repository.committing import FileChange, commit_file
from api_server.git.ref_names import is_valid_ref_name
from api_server.namespaces import paths, redirects
from api_server.namespaces.groups.access import find_group, group
from api_server.namespaces.projects import changes, queries
from api_server.namespaces.projects.access import Project, find_project, project
from api_server.namespaces.visibility import Visibility
from api_server.web import context
from api_server.web.access import SIGNED_IN, Role
from api_server.web.answers import json_text, json_value
from api_server.web.authorship import author
from api_server.web.errors import bad_parameters, invalid, not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes, caller

routes = Routes()

FeatureAccess = Literal["disabled", "private", "enabled"]


@attrs.frozen(kw_only=True)
class ListProjects(Paginated):
    membership: bool = False
    owned: bool = False
    min_access_level: Role | None = None
    search: str | None = None
    visibility: Visibility | None = None
    archived: bool | None = None


@attrs.frozen(kw_only=True)
class ListGroupProjects(ListProjects):
    id: str
    include_subgroups: bool = False


@attrs.frozen(kw_only=True)
class ListUserProjects(ListProjects):
    id: str


@attrs.frozen(kw_only=True)
class ProjectSettings:
    """What can be set when a project is made and later."""

    description: str | None = None
    visibility: Visibility | None = None
    default_branch: str | None = None
    ci_config_path: str | None = None
    public_jobs: bool | None = None
    repository_access_level: FeatureAccess | None = None
    builds_access_level: FeatureAccess | None = None


@attrs.frozen(kw_only=True)
class CreateProject(ProjectSettings):
    name: str | None = None
    path: str | None = None
    namespace_id: int | None = None
    initialize_with_readme: bool = False


@attrs.frozen(kw_only=True)
class ProjectId:
    id: str


@attrs.frozen(kw_only=True)
class TransferProject(ProjectId):
    namespace: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class UpdateProject(ProjectSettings):
    id: str
    name: str | None = None
    path: str | None = None
    only_allow_merge_if_pipeline_succeeds: bool | None = None
    allow_merge_on_skipped_pipeline: bool | None = None
    only_allow_merge_if_all_status_checks_passed: bool | None = None


@routes.get("/projects", access=SIGNED_IN)
async def list_projects(request: web.Request) -> web.Response:
    """The projects that the caller can see."""
    return await _listed(request, await parse(request, ListProjects))


@routes.get("/groups/{id}/projects", access=group())
async def list_group_projects(request: web.Request) -> web.Response:
    wanted = await parse(request, ListGroupProjects)
    found = await find_group(request, wanted.id)
    below: queries.Below = "with_subgroups" if wanted.include_subgroups else "directly"
    # whoever has a role in a group has it in all of its projects
    return await _listed(request, wanted, found.id, below, sees_all=found.role >= Role.GUEST)


@routes.get("/users/{id}/projects", access=SIGNED_IN)
async def list_user_projects(request: web.Request) -> web.Response:
    """Those in the own namespace of a user, named by id or user name, that the caller can see."""
    wanted = await parse(request, ListUserProjects)
    database, number = context.database(request), redirects.id_in(wanted.id)
    user = await (
        find_user_by_username(database, wanted.id) if number is None else find_user(database, number)
    )
    namespace = user and await queries.find_namespace(database, None, user.id)
    if user is None or namespace is None:
        raise not_found("User")
    return await _listed(request, wanted, namespace.id, sees_all=user.id == caller(request).user_id)


async def _listed(
    request: web.Request,
    wanted: ListProjects,
    namespace_id: int | None = None,
    below: queries.Below = "directly",
    *,
    sees_all: bool = False,
) -> web.Response:
    page = wanted_page(wanted, queries.LISTING)
    who = caller(request)
    levels = [wanted.min_access_level, wanted.membership and Role.GUEST, wanted.owned and Role.OWNER]
    listed = await queries.list_projects(
        context.database(request),
        page,
        viewer_id=who.user_id,
        sees_all=who.admin or sees_all,
        min_level=max(filter(None, levels), default=None),
        group_id=namespace_id,
        below=below,
        visibility=wanted.visibility,
        archived=wanted.archived,
        search=wanted.search,
    )
    return await paginated(request, page, listed)


@routes.post("/projects", access=SIGNED_IN)
async def create_project(request: web.Request) -> web.Response:
    """A project in the caller's own namespace, or in a group where she is at least Developer; on request with a first
    commit."""
    wanted = await parse(request, CreateProject)
    if not (wanted.name or wanted.path):
        raise bad_parameters("name, path are missing, at least one parameter must be provided")
    if wanted.default_branch is not None and not is_valid_ref_name(wanted.default_branch):
        raise invalid({"default_branch": ["is invalid"]})
    who = caller(request)
    async with context.database(request).transaction() as transaction:
        namespace = await changes.namespace_for_new_project(transaction, wanted.namespace_id, who)
        project_id = await changes.create(
            transaction,
            namespace,
            who,
            author(request),
            name=wanted.name or wanted.path,
            path=wanted.path or paths.path_from(wanted.name or ""),
            **attrs.asdict(wanted, filter=lambda field, _: field.name in _SETTINGS)
            | {"visibility": wanted.visibility or "private"},
        )
    if wanted.initialize_with_readme and wanted.repository_access_level != "disabled":
        await _commit_readme(request, await find_project(request, str(project_id)), wanted.description)
    return json_text(
        await queries.show_project(context.database(request), project_id, who.user_id), status=201
    )


async def _commit_readme(request: web.Request, made: Project, description: str | None) -> None:
    readme = FileChange(
        action="create",
        path="README.md",
        branch=made.default_branch,
        commit_message="Initial commit",
        content="\n\n".join(filter(None, [f"# {made.name}", description])) + "\n",
    )
    await commit_file(request, made, readme)


_SETTINGS = frozenset(field.name for field in attrs.fields(ProjectSettings))


@routes.get("/projects/{id}", access=project())
async def show_project(request: web.Request) -> web.Response:
    wanted = await parse(request, ProjectId)
    found = await find_project(request, wanted.id)
    return json_text(await queries.show_project(context.database(request), found.id, caller(request).user_id))


@routes.put("/projects/{id}", access=project(Role.MAINTAINER))
async def update_project(request: web.Request) -> web.Response:
    wanted = await parse(request, UpdateProject)
    found = await find_project(request, wanted.id)
    values = attrs.asdict(wanted, filter=lambda field, _: field.name != "id")
    return json_text(await _changed(request, found, archived=None, **values))


@routes.post("/projects/{id}/archive", access=project(Role.OWNER))
async def archive_project(request: web.Request) -> web.Response:
    """Nothing can be pushed to an archived project."""
    wanted = await parse(request, ProjectId)
    return json_text(
        await _changed(request, await find_project(request, wanted.id), archived=True), status=201
    )


@routes.post("/projects/{id}/unarchive", access=project(Role.OWNER))
async def unarchive_project(request: web.Request) -> web.Response:
    wanted = await parse(request, ProjectId)
    return json_text(
        await _changed(request, await find_project(request, wanted.id), archived=False), status=201
    )


@routes.put("/projects/{id}/transfer", access=project(Role.OWNER))
async def transfer_project(request: web.Request) -> web.Response:
    """Into another namespace, named by id or full path; the old paths redirect."""
    wanted = await parse(request, TransferProject)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        namespace = await changes.namespace_named(transaction, wanted.namespace, caller(request))
        await changes.transfer(transaction, found, namespace, caller(request), author(request))
        shown = await queries.show_project(transaction, found.id, caller(request).user_id)
    return json_text(shown)


@routes.delete("/projects/{id}", access=project(Role.OWNER))
async def delete_project(request: web.Request) -> web.Response:
    """With its repository and all that belongs to it."""
    wanted = await parse(request, ProjectId)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        await changes.delete(transaction, found, author(request))
    return json_value({"message": "202 Accepted"}, status=202)


async def _changed(request: web.Request, found: Project, **values: Any) -> str:
    async with context.database(request).transaction() as transaction:
        before = await queries.lock_project(transaction, found.id)
        await changes.update(transaction, found, before, author(request), **values)
        return await queries.show_project(transaction, found.id, caller(request).user_id)
