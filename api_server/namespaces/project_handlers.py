"""`/projects` (supporting resource)."""

import datetime
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.git.repositories import REPOSITORIES
from api_server.namespaces import (
    access,
    namespace_queries,
    paths,
    project_queries,
    projects,
    removal,
)
from api_server.namespaces.access import group, project
from api_server.namespaces.projects import NewProject
from api_server.namespaces.resources import Group, OverrideRole, Project, Visibility
from api_server.services import Services
from api_server.state.listing import ListPage
from api_server.web import context
from api_server.web.answers import json_text, json_value
from api_server.web.auth import Actor
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, offset_page, paginated, requested_page
from api_server.web.params import Description, Name
from api_server.web.routes import (
    SIGNED_IN,
    SIGNED_IN_OR_NOT,
    Role,
    Routes,
    caller_or_anonymous,
)

routes = Routes()

FeatureAccess = Literal["disabled", "private", "enabled"]
MergeMethod = Literal["merge", "rebase_merge", "ff"]
SquashOption = Literal["never", "always", "default_on", "default_off"]
GitStrategy = Literal["fetch", "clone"]
Switch = Literal["disabled", "enabled"]


@attrs.frozen(kw_only=True)
class ListProjects(Paginated):
    membership: bool = False
    owned: bool = False
    min_access_level: Role | None = None
    search: str | None = None
    visibility: Visibility | None = None
    archived: bool | None = None
    simple: bool = False
    id_after: int | None = None
    id_before: int | None = None
    last_activity_after: datetime.datetime | None = None
    last_activity_before: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class ListGroupProjects(ListProjects):
    id: str
    include_subgroups: bool = False


@attrs.frozen(kw_only=True)
class ListSharedProjects(ListProjects):
    id: str


@attrs.frozen(kw_only=True)
class ListIssues(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class ListUserProjects(ListProjects):
    id: str


@attrs.frozen(kw_only=True)
class CreateProject:
    name: Name | None = None
    path: Name | None = None
    namespace_id: int | None = None
    initialize_with_readme: bool = False
    description: Description | None = None
    visibility: Visibility = "private"
    default_branch: Name = "main"
    ci_config_path: Name | None = None
    public_jobs: bool = True
    public_builds: bool | None = None
    repository_access_level: FeatureAccess = "enabled"
    builds_access_level: FeatureAccess = "enabled"
    jobs_enabled: bool | None = None
    only_allow_merge_if_pipeline_succeeds: bool = False
    allow_merge_on_skipped_pipeline: bool = False
    only_allow_merge_if_all_status_checks_passed: bool = False
    only_allow_merge_if_all_discussions_are_resolved: bool = False
    merge_method: MergeMethod = "merge"
    squash_option: SquashOption = "default_off"
    build_timeout: int = 3600
    remove_source_branch_after_merge: bool = False
    ci_default_git_depth: int = 20
    build_git_strategy: GitStrategy = "fetch"
    auto_cancel_pending_pipelines: Switch = "enabled"

    def __attrs_post_init__(self) -> None:
        if not (self.name or self.path):
            raise ValueError("name, path are missing, at least one parameter must be provided")


@attrs.frozen(kw_only=True)
class TransferProject:
    id: str
    namespace: Name = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class UpdateProject:
    id: str
    name: Name | None = None
    path: Name | None = None
    description: Description | None = None
    visibility: Visibility | None = None
    default_branch: Name | None = None
    ci_config_path: Name | None = None
    public_jobs: bool | None = None
    public_builds: bool | None = None
    repository_access_level: FeatureAccess | None = None
    builds_access_level: FeatureAccess | None = None
    jobs_enabled: bool | None = None
    only_allow_merge_if_pipeline_succeeds: bool | None = None
    allow_merge_on_skipped_pipeline: bool | None = None
    only_allow_merge_if_all_status_checks_passed: bool | None = None
    restrict_user_defined_variables: bool | None = None
    ci_pipeline_variables_minimum_override_role: OverrideRole | None = None
    merge_method: MergeMethod | None = None
    squash_option: SquashOption | None = None
    only_allow_merge_if_all_discussions_are_resolved: bool | None = None
    build_timeout: int | None = None
    remove_source_branch_after_merge: bool | None = None
    ci_default_git_depth: int | None = None
    build_git_strategy: GitStrategy | None = None
    auto_cancel_pending_pipelines: Literal["enabled", "disabled"] | None = None
    ci_id_token_sub_claim_components: list[Literal["project_path", "ref_type", "ref"]] | None = None


@routes.get("/projects", access=SIGNED_IN_OR_NOT, answers="200 [Project | BasicProject]")
async def list_projects(request: web.Request, params: ListProjects) -> web.Response:
    """List the projects that the caller can see; without credentials, the public ones, with few keys."""
    return await _list_projects(request, params)


@routes.get("/groups/{id}/projects", access=group(), answers="200 [Project | BasicProject]")
async def list_group_projects(request: web.Request, params: ListGroupProjects, group: Group) -> web.Response:
    below: project_queries.Below = "with_subgroups" if params.include_subgroups else "directly"
    # a role in a group applies to all of its projects
    return await _list_projects(request, params, group.id, below, sees_all=group.role >= Role.GUEST)


@routes.get("/groups/{id}/projects/shared", access=group(), answers="200 [Project | BasicProject]")
async def list_shared_projects(request: web.Request, params: ListSharedProjects) -> web.Response:
    """List the projects of other groups that are shared with this one: always none, since sharing is not
    supported."""
    page = requested_page(params, project_queries.LISTING)
    return await paginated(request, page, ListPage("[]", more=False, last_id=None, total=0))


@routes.get("/users/{id}/projects", access=SIGNED_IN, answers="200 [Project | BasicProject]")
async def list_user_projects(
    request: web.Request, services: Services, actor: Actor, params: ListUserProjects
) -> web.Response:
    """List the projects in the own namespace of a user, named by id or user name, that the caller can see."""
    namespace = await namespace_queries.namespace_of_named(
        services.database, user_id=access.id_in(params.id), username=params.id
    )
    if namespace is None:
        raise not_found("User")
    return await _list_projects(request, params, namespace.id, sees_all=namespace.owner_id == actor.user_id)


async def _list_projects(
    request: web.Request,
    params: ListProjects,
    namespace_id: int | None = None,
    below: project_queries.Below = "directly",
    *,
    sees_all: bool = False,
) -> web.Response:
    page = requested_page(params, project_queries.LISTING)
    actor = caller_or_anonymous(request)
    is_stranger = actor.user_id is None  # has no role anywhere, so filters by role are ignored
    levels = [params.min_access_level, params.membership and Role.GUEST, params.owned and Role.OWNER]
    rows = await project_queries.list_projects(
        context.services(request).database,
        page,
        viewer_id=actor.user_id,
        sees_all=actor.admin or sees_all,
        min_level=None if is_stranger else max(filter(None, levels), default=None),
        group_id=namespace_id,
        below=below,
        simple=params.simple or is_stranger,
        **{name: getattr(params, name) for name in project_queries.NO_FILTERS},
    )
    return await paginated(request, page, rows)


@routes.post("/projects", access=SIGNED_IN, answers="201 Project")
async def create_project(services: Services, actor: Actor, params: CreateProject) -> web.Response:
    """Create a project in the caller's own namespace, or in a group where the caller is at least Developer;
    on request with a first commit."""
    values = projects.with_newer_names(attrs.asdict(params)) | {
        "name": params.name or params.path,
        "path": params.path or paths.path_from(params.name or ""),
    }
    project_id = await projects.create(services, NewProject(**values), actor)
    entity = await project_queries.show_project(services.database, project_id, actor.user_id)
    return json_text(entity, status=201)


@routes.get("/projects/{id}", access=project(), answers="200 Project")
async def show_project(services: Services, actor: Actor, project: Project) -> web.Response:
    return await _project_answer(services, actor, project)


@routes.get("/projects/{id}/issues", access=project(), answers="200 [object]")
async def list_issues(request: web.Request, params: ListIssues) -> web.Response:
    """List no issues, as for a project whose issues are disabled; bots ask for them before anything else."""
    return await paginated(request, offset_page(params), ListPage("[]", more=False, last_id=None, total=0))


@routes.put("/projects/{id}", access=project(Role.MAINTAINER), revokes="project:{id}", answers="200 Project")
async def update_project(
    services: Services, actor: Actor, params: UpdateProject, project: Project
) -> web.Response:
    """Update a project. Only Owners may change its path and visibility."""
    changes = attrs.asdict(params, filter=lambda field, _: field.name != "id")
    return await _updated(services, actor, project, changes)


@routes.post(
    "/projects/{id}/archive", access=project(Role.OWNER), revokes="project:{id}", answers="201 Project"
)
async def archive_project(services: Services, actor: Actor, project: Project) -> web.Response:
    """Archive a project. Nothing can be pushed to an archived project."""
    return await _updated(services, actor, project, {"archived": True}, status=201)


@routes.post("/projects/{id}/unarchive", access=project(Role.OWNER), answers="201 Project")
async def unarchive_project(services: Services, actor: Actor, project: Project) -> web.Response:
    return await _updated(services, actor, project, {"archived": False}, status=201)


async def _updated(
    services: Services, actor: Actor, project: Project, changes: dict[str, Any], status: int = 200
) -> web.Response:
    async with services.database.transaction() as transaction:
        changed = await projects.update(transaction, services[REPOSITORIES], project, changes, actor.author)
    if "default_branch" in changed:
        await projects.apply_default_branch(services, project.id)
    return await _project_answer(services, actor, project, status)


@routes.put(
    "/projects/{id}/transfer", access=project(Role.OWNER), revokes="project:{id}", answers="200 Project"
)
async def transfer_project(
    services: Services, actor: Actor, params: TransferProject, project: Project
) -> web.Response:
    """Move a project into another namespace, named by id or full path; the old paths redirect."""
    async with services.database.transaction() as transaction:
        namespace = await projects.find_namespace(transaction, params.namespace, actor)
        await projects.transfer(transaction, project, namespace, actor.author)
    return await _project_answer(services, actor, project)


@routes.delete("/projects/{id}", access=project(Role.OWNER), revokes="project:{id}", answers="202 Message")
async def delete_project(services: Services, actor: Actor, project: Project) -> web.Response:
    """Delete a project with its repository and everything that belongs to it."""
    async with services.database.transaction() as transaction:
        await removal.remove_project(transaction, project.id, actor.author)
    return json_value({"message": "202 Accepted"}, status=202)


async def _project_answer(
    services: Services, actor: Actor, project: Project, status: int = 200
) -> web.Response:
    entity = await project_queries.show_project(services.database, project.id, actor.user_id)
    return json_text(entity, status=status)
