"""Creating projects, changing them, moving them to another namespace, and notifying listeners."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs

from api_server.git import ref_moves, references
from api_server.git.errors import NotFoundError, RepositoryMissingError
from api_server.git.ref_names import is_branch_name
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces import (
    access,
    member_queries,
    namespace_queries,
    path_queries,
    paths,
    project_queries,
    resources,
)
from api_server.namespaces.project_queries import LockedProject, Namespace, Settings
from api_server.namespaces.resources import Project
from api_server.outbound import edges
from api_server.services import Key, Services
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Executor, Transaction
from api_server.state.errors import NotFound
from api_server.state.queue import enqueue
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, check_present, forbidden, invalid, not_found
from api_server.web.routes import Role


@attrs.frozen(kw_only=True)
class ProjectCreated:
    """`author` has created a project; if `begins_with_readme`, its default branch is to get a first
    commit."""

    id: int
    name: str
    description: str | None
    default_branch: str
    begins_with_readme: bool
    author: Author


#: `listener(transaction, created)`. Its files on disk are removed if the project is not created in the end.
CREATION_LISTENERS = Key[list[Callable[[Transaction, ProjectCreated], Awaitable[None]]]](
    "creation_listeners", list
)

#: `listener(transaction, project_id)`, called after git's HEAD has been set to the project's new default
#: branch.
DEFAULT_BRANCH_LISTENERS = Key[list[Callable[[Transaction, int], Awaitable[None]]]](
    "default_branch_listeners", list
)


#: The lowest role that may create projects, by a group's `project_creation_level`; at other levels no role
#: may.
_CREATORS = {
    "owner": Role.OWNER,
    "maintainer": Role.MAINTAINER,
    "developer": Role.DEVELOPER,
}


async def find_namespace(database: Executor, reference: str, actor: Actor) -> Namespace:
    """Return the namespace with that id or full path. Raise 404 if the caller cannot see it."""
    number = access.id_in(reference)
    namespace = await project_queries.find_namespace(
        database,
        namespace_id=number,
        path=None if number is not None else reference,
        user_id=actor.user_id,
        admin=actor.admin,
    )
    if namespace is None:
        raise not_found("Namespace")
    return namespace


def may_create_in(namespace: Namespace, *, admin: bool) -> bool:
    """Return whether the caller may create projects there."""
    level = namespace.project_creation_level
    least = _CREATORS.get(level)
    return admin and level == "administrator" if least is None else namespace.role >= least


async def check_projects_limit(transaction: Transaction, namespace: Namespace) -> None:
    """Raise 403 if the user has reached the limit of personal projects; groups have no such limit."""
    if namespace.owner_id is None:
        return
    limit = await project_queries.lock_projects_limit(transaction, namespace.owner_id)
    if limit == 0:
        problem = "Personal project creation is not allowed. Please contact your administrator with questions"
    elif await project_queries.has_personal_projects(transaction, namespace.owner_id, at_least=limit):
        problem = f"Your project limit is {limit} projects! Please contact your administrator to increase it"
    else:
        return
    raise ApiError(403, {"error": [problem]})


def check_visibility(visibility: str, limit: str) -> None:
    """Raise 400 if a project would be more visible than its group (decision D11)."""
    if resources.is_more_visible(visibility, limit):
        raise invalid({"visibility_level": [f"{visibility} is not allowed in a {limit} group."]})


async def add_first_member(
    transaction: Transaction, namespace: Namespace, project_id: int, creator_id: int
) -> None:
    """Add a personal project's owner as its first member, or a Developer who creates a project in a group as
    its Maintainer."""
    if namespace.owner_id is not None:
        user_id, role = namespace.owner_id, Role.OWNER
    elif Role.DEVELOPER <= namespace.role < Role.MAINTAINER:
        user_id, role = creator_id, Role.MAINTAINER
    else:
        return
    await member_queries.add(
        transaction, user_id=user_id, project_id=project_id, access_level=role, created_by_id=creator_id
    )


FOLLOW_DEFAULT_BRANCH = "follow_default_branch"


def setup(services: Services) -> None:
    async def follow_default_branch(project_id: int) -> None:
        with suppress(NotFound):
            await apply_default_branch(services, project_id)

    services.queue.add(FOLLOW_DEFAULT_BRANCH, follow_default_branch, attempts=15)


async def change_default_branch(
    transaction: Transaction, repositories: Repositories, project_id: int, name: str
) -> None:
    """Queue the task that follows when the project's locked row gets the default branch `name`. Raise 400 if
    there is no such branch."""
    repository = repositories.open(project_id) if repositories.exists(project_id) else None
    # git could take another form of name for a revision
    if repository is None or not is_branch_name(name) or references.branch(repository, name) is None:
        raise invalid({"base": [f"Could not change HEAD: branch '{name}' does not exist"]})
    await enqueue(transaction, FOLLOW_DEFAULT_BRANCH, project_id=project_id)


async def apply_default_branch(services: Services, project_id: int) -> None:
    """Set git's HEAD to the default branch of the row, then notify edges and listeners. Raise NotFound.

    This happens before the change is answered, or in the queue if that process has died.
    """
    async with services.database.transaction() as transaction:
        project = await project_queries.lock_project(transaction, project_id)
        with suppress(NotFoundError, RepositoryMissingError):  # the branch has been deleted since
            await ref_moves.set_default_branch(
                services[REPOSITORIES].open(project_id), project.default_branch
            )
        await edges.changed(transaction, edges.project_key(project_id))
        for listener in services[DEFAULT_BRANCH_LISTENERS]:
            await listener(transaction, project_id)


#: GitLab's event names for settings that it audits.
_AUDITED = {
    "name": "project_name_updated",
    "path": "project_path_updated",
    "namespace": "project_namespace_updated",
    "visibility": "project_visibility_level_updated",
    "default_branch": "project_default_branch_updated",
    "archived": "project_archived",
    "repository_access_level": "project_feature_repository_access_level_updated",
    "builds_access_level": "project_feature_builds_access_level_updated",
    "only_allow_merge_if_all_status_checks_passed": "project_only_allow_merge_if_all_status_checks_passed_updated",
    "only_allow_merge_if_pipeline_succeeds": "project_only_allow_merge_if_pipeline_succeeds_updated",
    "ci_pipeline_variables_minimum_override_role": "project_ci_pipeline_variables_minimum_override_role_updated",
    "ci_id_token_sub_claim_components": "project_ci_id_token_sub_claim_components_updated",
    "merge_method": "project_merge_method_updated",
    "squash_option": "squash_option_updated",
    "only_allow_merge_if_all_discussions_are_resolved": (
        "project_only_allow_merge_if_all_discussions_are_resolved_updated"
    ),
}
#: After these changes, people who could see files may have lost access to them, or the URLs have changed.
_PURGED_AFTER = frozenset({"path", "visibility", "repository_access_level", "archived"})
#: Changes that only an Owner may make (decision D11).
_OWNERS = frozenset({"path", "visibility"})
_LEAST_TIMEOUT = 600
#: A month in Rails, in seconds.
_TIMEOUTS_END = 2_629_746
_MAX_DEPTH = 1000


async def update(
    transaction: Transaction,
    repositories: Repositories,
    project: Project,
    changes: Mapping[str, Any],
    author: Author,
) -> frozenset[str]:
    """Change the attributes of a project's `Settings` that are not None, and return the names of those that
    changed. If the default branch changed, the caller has to run `apply_default_branch`. Raise 403 and 400 in
    GitLab's words."""
    check_present("name", changes.get("name"))
    before = await project_queries.lock_project(transaction, project.id)
    after = attrs.evolve(before, **_new_values(before, changes))
    check_numbers(after.build_timeout, after.ci_default_git_depth)
    _check_subject(after.ci_id_token_sub_claim_components)
    changed = frozenset(
        field.name
        for field in attrs.fields(Settings)
        if getattr(before, field.name) != getattr(after, field.name)
    )
    if project.role < Role.OWNER and (_OWNERS & changed or _changes_owners_demand(before, after)):
        raise forbidden()
    if "ci_config_path" in changed:
        _check_ci_file(after.ci_config_path)
    if "visibility" in changed:
        check_visibility(after.visibility, before.limit)
    if "default_branch" in changed:
        await change_default_branch(transaction, repositories, project.id, after.default_branch)
    if "path" in changed:
        after = await _renamed(transaction, project, after)
    await project_queries.update_project(transaction, project.id, after)
    renamed = attrs.evolve(project, full_path=after.full_path)
    for name in filter(changed.__contains__, _AUDITED):
        attribute = "full_path" if name == "path" else name
        await _record_change(
            transaction, renamed, author, name, getattr(before, attribute), getattr(after, attribute)
        )
    if _PURGED_AFTER & changed:
        await edges.changed(transaction, edges.project_key(project.id))
    return changed


def check_numbers(build_timeout: int, git_depth: int) -> None:
    """Check a timeout in seconds and a depth in commits. Raise 400 in GitLab's words."""
    if not _LEAST_TIMEOUT <= build_timeout < _TIMEOUTS_END:
        raise invalid({"build_timeout": ["needs to be between 10 minutes and 1 month"]})
    if git_depth < 0:
        raise invalid({"ci_cd_settings.default_git_depth": ["must be greater than or equal to 0"]})
    if git_depth > _MAX_DEPTH:
        raise invalid({"ci_cd_settings.default_git_depth": [f"must be less than or equal to {_MAX_DEPTH}"]})


def _check_ci_file(path: str | None) -> None:
    """Raise 400 for a path that GitLab refuses, in its words."""
    if path and (path.startswith("/") or ".." in path):
        raise invalid({"ci_config_path": ["cannot include leading slash or directory traversal."]})


def _check_subject(components: Sequence[str]) -> None:
    """Check the components of the subject of identity tokens. Raise 400 in GitLab's words."""
    if components[:1] != ["project_path"]:
        problem = "project_path must be the first element of the sub claim"
        raise invalid({"ci_cd_settings.id_token_sub_claim_components": [problem]})


def with_newer_names(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wishes with `public_jobs` and `builds_access_level` in place of their older names."""
    renamed = dict(changes)
    is_public, is_enabled = renamed.pop("public_builds", None), renamed.pop("jobs_enabled", None)
    if is_public is not None:
        renamed["public_jobs"] = is_public
    if is_enabled is not None:
        renamed["builds_access_level"] = "enabled" if is_enabled else "disabled"
    return renamed


def _new_values(before: LockedProject, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new `Settings`. Of the two names for the role that may give variables, the older one is less
    precise and yields to the newer one."""
    values = {name: value for name, value in with_newer_names(changes).items() if value is not None}
    restricts = values.pop("restrict_user_defined_variables", None)
    if restricts is not None and restricts != (
        before.ci_pipeline_variables_minimum_override_role != "developer"
    ):
        values.setdefault(
            "ci_pipeline_variables_minimum_override_role", "maintainer" if restricts else "developer"
        )
    return values


def _changes_owners_demand(before: Settings, after: Settings) -> bool:
    """Return whether a minimum role for giving variables is set or removed that only an Owner may choose."""
    roles = {
        before.ci_pipeline_variables_minimum_override_role,
        after.ci_pipeline_variables_minimum_override_role,
    }
    return len(roles) > 1 and not roles <= {"developer", "maintainer"}


async def _renamed(transaction: Transaction, project: Project, after: LockedProject) -> LockedProject:
    if problem := paths.problem_with(after.path, within=True):
        raise invalid({"path": [problem]})
    full_path = paths.beside(after.full_path, after.path)
    if not await _move_to(transaction, project.id, full_path):
        raise invalid({"path": ["has already been taken"]})
    return attrs.evolve(after, full_path=full_path)


async def _move_to(transaction: Transaction, project_id: int, full_path: str) -> bool:
    """Give the project that path; its old paths redirect. Return False if the path is taken."""
    await path_queries.leave(transaction, project_id)
    return await path_queries.take(transaction, full_path, project_id=project_id)


async def transfer(transaction: Transaction, project: Project, namespace: Namespace, author: Author) -> None:
    """Move the project into another namespace; reduce its visibility to that of the namespace. Raise 400 in
    GitLab's words."""
    parent = await namespace_queries.hold(transaction, namespace.lineage)
    before = await project_queries.lock_project(transaction, project.id)
    if namespace.id == before.namespace_id:
        raise _not_transferred("Project is already in this namespace.")
    if namespace.role < Role.MAINTAINER or not may_create_in(namespace, admin=project.admin):
        raise _not_transferred("You don't have permission to transfer projects into that namespace.")
    await check_projects_limit(transaction, namespace)
    full_path = f"{parent.full_path}/{before.path}"
    if not await _move_to(transaction, project.id, full_path):
        raise _not_transferred("Project with same name or path in target namespace already exists")
    visibility = (
        parent.visibility
        if resources.is_more_visible(before.visibility, parent.visibility)
        else before.visibility
    )
    after = attrs.evolve(before, namespace_id=namespace.id, full_path=full_path, visibility=visibility)
    await project_queries.update_project(transaction, project.id, after)
    if namespace.owner_id is not None:
        await add_first_member(transaction, namespace, project.id, author.id)
    moved = attrs.evolve(project, full_path=full_path)
    old = before.full_path.rpartition("/")[0]
    await _record_change(transaction, moved, author, "namespace", old, parent.full_path)
    if visibility != before.visibility:
        await _record_change(transaction, moved, author, "visibility", before.visibility, visibility)
    await edges.changed(transaction, edges.project_key(project.id))


def _not_transferred(problem: str) -> ApiError:
    return invalid(f'Failed to transfer project {{:new_namespace=>["{problem}"]}}')


async def _record_change(
    transaction: Transaction, project: Project, author: Author, name: str, old: Any, new: Any
) -> None:
    event_type = "project_unarchived" if name == "archived" and not new else _AUDITED[name]
    before, after = (", ".join(value) if isinstance(value, list) else value for value in (old, new))
    change = {"change": name, "from": before, "to": after}
    await audit_trail.record(transaction, event_type, author, project.entity, **change)


@attrs.frozen(kw_only=True)
class NewProject:
    """A project to create, in the namespace with that id or (None) in its creator's own."""

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


async def create(services: Services, new_project: NewProject, actor: Actor) -> int:
    """Create a project and return its id. Raise 400, 403 and 404 in GitLab's words.

    If it fails in the end, nothing remains, not even on disk.
    """
    check_present("name", new_project.name)
    check_numbers(new_project.build_timeout, new_project.ci_default_git_depth)
    _check_ci_file(new_project.ci_config_path)
    if not is_branch_name(new_project.default_branch):
        raise invalid({"default_branch": ["is invalid"]})
    project_id = None
    try:
        async with services.database.transaction() as transaction:
            namespace = await _home_of(transaction, new_project, actor)
            project_id = await _insert(transaction, new_project, namespace, actor)
            created = _creation_event(project_id, new_project, actor.author)
            for listener in services[CREATION_LISTENERS]:
                await listener(transaction, created)
    except BaseException:
        if project_id is not None:
            await asyncio.shield(_clear_away(services, project_id))
        raise
    return project_id


async def _home_of(transaction: Transaction, new_project: NewProject, actor: Actor) -> Namespace:
    """Return the namespace in which the caller may create the project. Raise 404 and 403."""
    namespace_id = new_project.namespace_id
    if namespace_id is None:
        namespace_id = (await namespace_queries.namespace_of(transaction, actor.user_id)).id
    namespace = await find_namespace(transaction, str(namespace_id), actor)
    if not may_create_in(namespace, admin=actor.admin):
        raise forbidden()
    return namespace


async def _insert(
    transaction: Transaction, new_project: NewProject, namespace: Namespace, actor: Actor
) -> int:
    parent = await namespace_queries.hold(transaction, namespace.lineage)
    await check_projects_limit(transaction, namespace)
    if problem := paths.problem_with(new_project.path, within=True):
        raise invalid({"path": [problem]})
    full_path = f"{parent.full_path}/{new_project.path}"
    check_visibility(new_project.visibility, parent.visibility)
    project_id = await project_queries.create_project(
        transaction,
        creator_id=actor.user_id,
        full_path=full_path,
        **(attrs.asdict(new_project) | {"namespace_id": namespace.id}),
    )
    if not await path_queries.take(transaction, full_path, project_id=project_id):
        messages = ["has already been taken"]
        raise invalid({"project_namespace.name": messages, "name": messages, "path": messages})
    await add_first_member(transaction, namespace, project_id, actor.user_id)
    await audit_trail.record(
        transaction, "project_created", actor.author, Entity("Project", project_id, full_path)
    )
    return project_id


def _creation_event(project_id: int, new_project: NewProject, author: Author) -> ProjectCreated:
    return ProjectCreated(
        id=project_id,
        name=new_project.name,
        description=new_project.description,
        default_branch=new_project.default_branch,
        begins_with_readme=new_project.initialize_with_readme
        and new_project.repository_access_level != "disabled",
        author=author,
    )


async def _clear_away(services: Services, project_id: int) -> None:
    """Remove the repository of a project that was not created. If the outcome of the commit is unknown, the
    project may exist."""
    if services[REPOSITORIES].exists(project_id) and not await project_queries.is_there(
        services.database, project_id
    ):
        await services[REPOSITORIES].delete(project_id)
