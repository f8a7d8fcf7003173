"""Making a project: its row, its path, its first member, and what listeners make of it, all or nothing."""

import asyncio

import attrs
from aiohttp import web

from api_server.git.ref_names import is_branch_name
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces import namespace_queries, path_queries, paths, personal_queries
from api_server.namespaces.projects import homes, queries
from api_server.namespaces.projects.changes import check_numbers
from api_server.namespaces.projects.events import CREATION_LISTENERS, ProjectCreated
from api_server.namespaces.projects.queries import Namespace
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction
from api_server.web import context
from api_server.web.auth import Caller
from api_server.web.context import DATABASE, App
from api_server.web.errors import check_present, forbidden, invalid


@attrs.frozen(kw_only=True)
class NewProject:
    """A project to be, in the namespace of that id or (None) in its maker's own."""

    namespace_id: int | None
    name: str
    path: str
    description: str | None
    visibility: str
    default_branch: str
    ci_config_path: str | None
    public_jobs: bool
    repository_access_level: str
    builds_access_level: str
    only_allow_merge_if_pipeline_succeeds: bool
    allow_merge_on_skipped_pipeline: bool
    only_allow_merge_if_all_status_checks_passed: bool
    only_allow_merge_if_all_discussions_are_resolved: bool
    merge_method: str
    squash_option: str
    build_timeout: int
    remove_source_branch_after_merge: bool
    ci_default_git_depth: int
    build_git_strategy: str
    auto_cancel_pending_pipelines: str
    initialize_with_readme: bool


async def create(request: web.Request, wanted: NewProject, who: Caller, author: Author) -> int:
    """The new project's id. Raises 400, 403 and 404 as GitLab words them.

    Where it fails in the end, nothing is left of it, on disk neither.
    """
    check_present("name", wanted.name)
    check_numbers(wanted.build_timeout, wanted.ci_default_git_depth)
    if not is_branch_name(wanted.default_branch):
        raise invalid({"default_branch": ["is invalid"]})
    app, project_id = request.config_dict, None
    try:
        async with context.database(request).transaction() as transaction:
            namespace = await _namespace(transaction, wanted, who)
            project_id = await _create(transaction, wanted, namespace, who, author)
            created = _created(project_id, wanted, author)
            for listener in app[CREATION_LISTENERS]:
                await listener(transaction, created)
    except BaseException:
        if project_id is not None:
            await asyncio.shield(_clear_away(app, project_id))
        raise
    return project_id


async def _namespace(transaction: Transaction, wanted: NewProject, who: Caller) -> Namespace:
    """Where the caller may make it. Raises 404 and 403."""
    namespace_id = wanted.namespace_id
    if namespace_id is None:
        namespace_id = (await personal_queries.namespace_of(transaction, who.user_id)).id
    namespace = await homes.find_namespace(transaction, str(namespace_id), who)
    if not homes.may_create(namespace, admin=who.admin):
        raise forbidden()
    return namespace


async def _create(
    transaction: Transaction, wanted: NewProject, namespace: Namespace, who: Caller, author: Author
) -> int:
    held = await namespace_queries.hold(transaction, namespace.lineage)
    await homes.require_room(transaction, namespace)
    full_path = f"{held.full_path}/{wanted.path}"
    if problem := paths.problem_with(full_path):
        raise invalid({"path": [problem]})
    homes.check_visibility(wanted.visibility, held.visibility)
    project_id = await queries.create_project(
        transaction,
        creator_id=who.user_id,
        full_path=full_path,
        **(attrs.asdict(wanted) | {"namespace_id": namespace.id}),
    )
    if not await path_queries.take(transaction, full_path, project_id=project_id):
        taken = ["has already been taken"]
        raise invalid({"project_namespace.name": taken, "name": taken, "path": taken})
    await homes.add_first_member(transaction, namespace, project_id, who.user_id)
    entity = Entity(type="Project", id=project_id, path=full_path)
    await audit_trail.record(
        transaction, "project_created", author=author, entity=entity, message="Added project", add="project"
    )
    return project_id


def _created(project_id: int, wanted: NewProject, author: Author) -> ProjectCreated:
    return ProjectCreated(
        id=project_id,
        name=wanted.name,
        description=wanted.description,
        default_branch=wanted.default_branch,
        begins_with_readme=wanted.initialize_with_readme and wanted.repository_access_level != "disabled",
        author=author,
    )


async def _clear_away(app: App, project_id: int) -> None:
    """Removes the repository of a project that was not made. A commit whose outcome is unknown may have made it."""
    if app[REPOSITORIES].exists(project_id) and not await queries.is_there(app[DATABASE], project_id):
        await app[REPOSITORIES].delete(project_id)
