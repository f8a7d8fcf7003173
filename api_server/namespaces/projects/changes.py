"""What changing and moving a project means, each in the caller's transaction."""

from collections.abc import Mapping
from typing import Any

import attrs

from api_server.git.repositories import Repositories
from api_server.namespaces import namespace_queries, path_queries, paths, visibility
from api_server.namespaces.projects import default_branch, homes, queries
from api_server.namespaces.projects.project import Project
from api_server.namespaces.projects.queries import LockedProject, Namespace, Settings
from api_server.outbound import edges
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.web.errors import ApiError, check_present, forbidden, invalid
from api_server.web.routes import Role

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
    "merge_method": "project_merge_method_updated",
    "squash_option": "squash_option_updated",
    "only_allow_merge_if_all_discussions_are_resolved": (
        "project_only_allow_merge_if_all_discussions_are_resolved_updated"
    ),
}
#: Changes after which files may not be shown to those who saw them before, or not at the same URL.
_PURGED_AFTER = frozenset({"path", "visibility", "repository_access_level", "archived"})
#: Changes that only an Owner makes (decision D11).
_OWNERS = frozenset({"path", "visibility"})
_LEAST_TIMEOUT = 600
#: A month as Rails has it.
_TIMEOUTS_END = 2_629_746
_MOST_DEPTH = 1000


async def update(
    transaction: Transaction,
    repositories: Repositories,
    project: Project,
    wishes: Mapping[str, Any],
    author: Author,
) -> frozenset[str]:
    """Changes what is not None of a project's `Settings`, and says what that was. Where it is the default branch, the
    caller lets it be followed. Raises 403 and 400 as GitLab words them."""
    check_present("name", wishes.get("name"))
    before = await queries.lock_project(transaction, project.id)
    after = attrs.evolve(before, **_wished(before, wishes))
    check_numbers(after.build_timeout, after.ci_default_git_depth)
    changed = frozenset(
        field.name
        for field in attrs.fields(Settings)
        if getattr(before, field.name) != getattr(after, field.name)
    )
    if project.role < Role.OWNER and (_OWNERS & changed or _changes_owners_demand(before, after)):
        raise forbidden()
    if "visibility" in changed:
        homes.check_visibility(after.visibility, before.limit)
    if "default_branch" in changed:
        await default_branch.change(transaction, repositories, project.id, after.default_branch)
    if "path" in changed:
        after = await _renamed(transaction, project, after)
    await queries.update_project(transaction, project.id, after)
    renamed = attrs.evolve(project, full_path=after.full_path)
    for name in filter(changed.__contains__, _AUDITED):
        told = "full_path" if name == "path" else name
        await _record_change(transaction, renamed, author, name, getattr(before, told), getattr(after, told))
    if _PURGED_AFTER & changed:
        await edges.changed(transaction, edges.project_key(project.id))
    return changed


def check_numbers(build_timeout: int, git_depth: int) -> None:
    """Of seconds and of commits. Raises 400 as GitLab words it."""
    if not _LEAST_TIMEOUT <= build_timeout < _TIMEOUTS_END:
        raise invalid({"build_timeout": ["needs to be between 10 minutes and 1 month"]})
    if git_depth < 0:
        raise invalid({"ci_cd_settings.default_git_depth": ["must be greater than or equal to 0"]})
    if git_depth > _MOST_DEPTH:
        raise invalid({"ci_cd_settings.default_git_depth": [f"must be less than or equal to {_MOST_DEPTH}"]})


def with_newer_names(wishes: Mapping[str, Any]) -> dict[str, Any]:
    """The wishes with `public_jobs` and `builds_access_level` for what older clients call otherwise."""
    wished = dict(wishes)
    is_public, is_enabled = wished.pop("public_builds", None), wished.pop("jobs_enabled", None)
    if is_public is not None:
        wished["public_jobs"] = is_public
    if is_enabled is not None:
        wished["builds_access_level"] = "enabled" if is_enabled else "disabled"
    return wished


def _wished(before: LockedProject, wishes: Mapping[str, Any]) -> dict[str, Any]:
    """What the `Settings` are to be. The older of the two names for who gives variables says less, and gives way."""
    wished = {name: wish for name, wish in with_newer_names(wishes).items() if wish is not None}
    restricts = wished.pop("restrict_user_defined_variables", None)
    if restricts is not None and restricts != (
        before.ci_pipeline_variables_minimum_override_role != "developer"
    ):
        wished.setdefault(
            "ci_pipeline_variables_minimum_override_role", "maintainer" if restricts else "developer"
        )
    return wished


def _changes_owners_demand(before: Settings, after: Settings) -> bool:
    """Whether what only an Owner may demand of those who give variables is set, or taken back."""
    roles = {
        before.ci_pipeline_variables_minimum_override_role,
        after.ci_pipeline_variables_minimum_override_role,
    }
    return len(roles) > 1 and not roles <= {"developer", "maintainer"}


async def _renamed(transaction: Transaction, project: Project, after: LockedProject) -> LockedProject:
    full_path = paths.beside(after.full_path, after.path)
    if problem := paths.problem_with(full_path):
        raise invalid({"path": [problem]})
    if not await _move_to(transaction, project.id, full_path):
        raise invalid({"path": ["has already been taken"]})
    return attrs.evolve(after, full_path=full_path)


async def _move_to(transaction: Transaction, project_id: int, full_path: str) -> bool:
    """Whether the project has that path now; those that it had redirect."""
    await path_queries.leave(transaction, project_id)
    return await path_queries.take(transaction, full_path, project_id=project_id)


async def transfer(transaction: Transaction, project: Project, namespace: Namespace, author: Author) -> None:
    """Moves the project into another namespace; it shows no more than that does. Raises 400 as GitLab words it."""
    held = await namespace_queries.hold(transaction, namespace.lineage)
    before = await queries.lock_project(transaction, project.id)
    if namespace.id == before.namespace_id:
        raise _not_transferred("Project is already in this namespace.")
    if namespace.role < Role.MAINTAINER or not homes.may_create(namespace, admin=project.admin):
        raise _not_transferred("You don't have permission to transfer projects into that namespace.")
    await homes.require_room(transaction, namespace)
    full_path = f"{held.full_path}/{before.path}"
    if not await _move_to(transaction, project.id, full_path):
        raise _not_transferred("Project with same name or path in target namespace already exists")
    shown = held.visibility if visibility.exceeds(before.visibility, held.visibility) else before.visibility
    after = attrs.evolve(before, namespace_id=namespace.id, full_path=full_path, visibility=shown)
    await queries.update_project(transaction, project.id, after)
    if namespace.owner_id is not None:
        await homes.add_first_member(transaction, namespace, project.id, author.id)
    moved = attrs.evolve(project, full_path=full_path)
    old = before.full_path.rpartition("/")[0]
    await _record_change(transaction, moved, author, "namespace", old, held.full_path)
    if shown != before.visibility:
        await _record_change(transaction, moved, author, "visibility", before.visibility, shown)
    await edges.changed(transaction, edges.project_key(project.id))


def _not_transferred(problem: str) -> ApiError:
    return invalid(f'Failed to transfer project {{:new_namespace=>["{problem}"]}}')


async def _record_change(
    transaction: Transaction, project: Project, author: Author, name: str, old: Any, new: Any
) -> None:
    event_type = "project_unarchived" if name == "archived" and not new else _AUDITED[name]
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=project.entity,
        message=f"Changed {name} from {audit_trail.words(old)} to {audit_trail.words(new)}",
        change=name,
        **{"from": old, "to": new},
    )
