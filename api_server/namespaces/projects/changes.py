"""What making, changing and removing a project means, each in the caller's transaction."""

from typing import Any

import attrs

from api_server.namespaces import memberships, paths, redirects, visibility
from api_server.namespaces.projects import queries
from api_server.namespaces.projects.access import Project
from api_server.outbound import edges
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Row, Transaction
from api_server.state.queue import enqueue
from api_server.web.access import Role
from api_server.web.auth import Caller
from api_server.web.errors import ApiError, forbidden, invalid, not_found

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
}
#: Changes after which files may not be shown to those who saw them before.
_PURGED_AFTER = frozenset({"path", "visibility", "repository_access_level", "archived"})


async def namespace_for_new_project(transaction: Transaction, namespace_id: int | None, who: Caller) -> Row:
    """Where the caller may make a project. Raises 404 and 403."""
    namespace = await queries.find_namespace(transaction, namespace_id, who.user_id)
    if namespace is None or not (who.admin or namespace.role or namespace.visibility != "private"):
        raise not_found("Namespace")
    if not (who.admin or namespace.role >= Role.DEVELOPER):
        raise forbidden()
    return namespace


async def create(transaction: Transaction, namespace: Row, who: Caller, author: Author, **values: Any) -> int:
    """The new project's id; `values` are its columns but the paths. Raises 400 and 403 as GitLab words it."""
    path = values["path"]
    if namespace.kind == "user":
        await _refuse_beyond_limit(transaction, who.user_id)
    if problem := paths.problem_with(path, within=namespace.full_path):
        raise invalid({"path": [problem]})
    if namespace.kind == "group" and visibility.exceeds(values["visibility"], namespace.visibility):
        raise invalid(
            {
                "visibility_level": [
                    f"{values['visibility']} is not allowed in a {namespace.visibility} group."
                ]
            }
        )
    full_path = f"{namespace.full_path}/{path}"
    project_id = await queries.create_project(
        transaction, namespace_id=namespace.id, creator_id=who.user_id, full_path=full_path, **values
    )
    if not await paths.take(transaction, full_path, project_id=project_id):
        raise invalid(
            {
                "project_namespace.name": ["has already been taken"],
                "name": ["has already been taken"],
                "path": ["has already been taken"],
            }
        )
    await _add_first_member(transaction, namespace, who, project_id)
    await audit_trail.record(
        transaction,
        "project_created",
        author=author,
        entity=Entity(type="Project", id=project_id, path=full_path),
        target_id=project_id,
        target_details=full_path,
        message="Added project",
        add="project",
    )
    return project_id


async def _refuse_beyond_limit(transaction: Transaction, user_id: int) -> None:
    """Raises 403 where the user has as many personal projects as she may."""
    limit = await queries.lock_projects_limit(transaction, user_id)
    if limit == 0:
        problem = "Personal project creation is not allowed. Please contact your administrator with questions"
    elif await queries.has_personal_projects(transaction, user_id, at_least=limit):
        problem = f"Your project limit is {limit} projects! Please contact your administrator to increase it"
    else:
        return
    raise ApiError(403, {"error": [problem]})


async def _add_first_member(transaction: Transaction, namespace: Row, who: Caller, project_id: int) -> None:
    """A personal project's owner is its first member; in a group a Developer maintains what she made."""
    if namespace.kind == "user":
        user_id, role = namespace.owner_id, Role.OWNER
    elif Role.DEVELOPER <= namespace.role < Role.MAINTAINER:
        user_id, role = who.user_id, Role.MAINTAINER
    else:
        return
    await memberships.add(
        transaction, user_id=user_id, project_id=project_id, access_level=role, created_by_id=who.user_id
    )


async def update(
    transaction: Transaction, project: Project, before: Row, author: Author, **values: Any
) -> None:
    """Changes what is not None; `before` is the project's row. Raises 400."""
    changed = {name: new for name, new in values.items() if new is not None and new != getattr(before, name)}
    full_path = None
    if "path" in changed:
        full_path = await _move(transaction, project, changed["path"])
    await queries.update_project(transaction, project.id, **values, full_path=full_path)
    for name, new in changed.items():
        if name in _AUDITED:
            await _record_change(transaction, project, author, name, getattr(before, name), new)
    if _PURGED_AFTER.intersection(changed):
        await edges.changed(transaction, edges.project_key(project.id))


async def namespace_named(transaction: Transaction, reference: str, who: Caller) -> Row:
    """The namespace of that id or full path. Raises 404 where the caller cannot see it."""
    namespace = await queries.find_namespace_named(
        transaction, namespace_id=redirects.id_in(reference), path=reference, user_id=who.user_id
    )
    if namespace is None or not (who.admin or namespace.role or namespace.visibility != "private"):
        raise not_found("Namespace")
    return namespace


async def transfer(
    transaction: Transaction, project: Project, namespace: Row, who: Caller, author: Author
) -> None:
    """Moves the project into another namespace; it shows no more than that does. Raises 400 as GitLab words it."""
    before = await queries.lock_project(transaction, project.id)
    if namespace.id == before.namespace_id:
        raise _not_transferred("Project is already in this namespace.")
    if not (who.admin or namespace.role >= Role.MAINTAINER):
        raise _not_transferred("You don't have permission to transfer projects into that namespace.")
    if namespace.kind == "user":
        await _refuse_beyond_limit(transaction, namespace.owner_id)
    full_path = f"{namespace.full_path}/{before.path}"
    await queries.leave_paths(transaction, project.id)
    if not await paths.take(transaction, full_path, project_id=project.id):
        raise _not_transferred("Project with same name or path in target namespace already exists")
    shown = before.visibility
    if namespace.kind == "group" and visibility.exceeds(shown, namespace.visibility):
        shown = namespace.visibility
    await queries.move_project(
        transaction, project.id, namespace_id=namespace.id, full_path=full_path, visibility=shown
    )
    if namespace.kind == "user":
        await _add_first_member(transaction, namespace, who, project.id)
    moved_to = attrs.evolve(project, full_path=full_path)
    await _record_change(
        transaction, moved_to, author, "namespace", before.full_path.rpartition("/")[0], namespace.full_path
    )
    if shown != before.visibility:
        await _record_change(transaction, moved_to, author, "visibility", before.visibility, shown)
    await edges.changed(transaction, edges.project_key(project.id))


def _not_transferred(problem: str) -> ApiError:
    return invalid(f'Failed to transfer project {{:new_namespace=>["{problem}"]}}')


async def delete(transaction: Transaction, project: Project, author: Author) -> None:
    """Removes the project; its repository and stored bytes are removed by a task."""
    await edges.changed(transaction, edges.project_key(project.id))
    await enqueue(transaction, "remove_project_data", project_id=project.id)
    await queries.delete_project(transaction, project.id)
    await audit_trail.record(
        transaction,
        "project_destroyed",
        author=author,
        entity=project.entity,
        target_id=project.id,
        target_details=project.full_path,
        message="Removed project",
        remove="project",
    )


async def _move(transaction: Transaction, project: Project, path: str) -> str:
    namespace = project.full_path.rpartition("/")[0]
    if problem := paths.problem_with(path, within=namespace):
        raise invalid({"path": [problem]})
    await queries.leave_paths(transaction, project.id)
    if not await paths.take(transaction, f"{namespace}/{path}", project_id=project.id):
        raise invalid({"path": ["has already been taken"]})
    return f"{namespace}/{path}"


async def _record_change(
    transaction: Transaction, project: Project, author: Author, name: str, old: Any, new: Any
) -> None:
    event_type = "project_unarchived" if name == "archived" and not new else _AUDITED[name]
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=project.entity,
        target_id=project.id,
        target_details=project.full_path,
        message=f"Changed {name} from {audit_trail.words(old)} to {audit_trail.words(new)}",
        change=name,
        **{"from": old, "to": new},
    )
