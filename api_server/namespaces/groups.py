"""Creating and changing groups and users' own namespaces, each in the caller's transaction."""

from collections.abc import Mapping
from typing import Any

import attrs

from api_server.accounts.users import USER_LISTENERS, UserEvent
from api_server.namespaces import member_queries, namespace_queries, path_queries, paths, removal, resources
from api_server.namespaces.namespace_queries import LockedNamespace
from api_server.namespaces.resources import Group
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import ApiError, check_present, invalid
from api_server.web.routes import Role

#: The names of the audit events for changed attributes.
_AUDITED = {
    "name": "group_name_updated",
    "path": "group_path_updated",
    "visibility": "group_visibility_level_updated",
}


@attrs.frozen(kw_only=True)
class NewGroup:
    """A group to create, at the top level or below `parent`; without a visibility it gets that of the parent,
    or private."""

    name: str
    path: str
    description: str | None
    visibility: str | None
    project_creation_level: str
    parent: Group | None


async def create(transaction: Transaction, group: NewGroup, owner_id: int, author: Author) -> int:
    """Create a group owned by `owner_id` and return its id. Raise 400 in GitLab's words."""
    parent = group.parent
    if parent and len(parent.lineage) > paths.MAX_ANCESTORS:
        raise _not_saved("parent", "has too deep level of nesting")
    above = await namespace_queries.hold(transaction, parent.lineage) if parent else None
    visibility = group.visibility or (above.visibility if above else "private")
    full_path = f"{above.full_path}/{group.path}" if above else group.path
    if problem := paths.problem_with(group.path, within=above is not None):
        raise _not_saved("path", problem)
    if above and resources.is_more_visible(visibility, above.visibility):
        raise _not_saved("visibility_level", _beyond_parent(visibility, above))
    group_id = await namespace_queries.create(
        transaction,
        "group",
        parent.lineage if parent else [],
        name=group.name,
        path=group.path,
        full_path=full_path,
        description=group.description,
        visibility=visibility,
        project_creation_level=group.project_creation_level,
    )
    if not await path_queries.take(transaction, full_path, namespace_id=group_id):
        raise _not_saved("path", "has already been taken")
    await member_queries.add(
        transaction, user_id=owner_id, namespace_id=group_id, access_level=Role.OWNER, created_by_id=owner_id
    )
    await audit_trail.record(transaction, "group_created", author, Entity("Group", group_id, full_path))
    return group_id


async def update(transaction: Transaction, group: Group, changes: Mapping[str, Any], author: Author) -> None:
    """Change the attributes of a `LockedGroup` that are not None. Raise 400."""
    parents = group.lineage[:-1]
    above = await namespace_queries.hold(transaction, parents) if parents else None
    check_present("name", changes["name"])
    before = await namespace_queries.lock_group(transaction, group.id)
    after = attrs.evolve(before, **{name: value for name, value in changes.items() if value is not None})
    if after.visibility != before.visibility:
        await _check_visibility(transaction, group.id, after.visibility, above)
    if after.path != before.path:
        await _rename(transaction, group.id, before.full_path, after.path)
    if after.name != before.name:
        await namespace_queries.rename(transaction, group.id, after.name)
    await namespace_queries.update_group(transaction, group.id, after)
    entity = attrs.evolve(group, full_path=paths.beside(before.full_path, after.path)).entity
    for change in audit_trail.changes(before, after, _AUDITED):
        await audit_trail.record(transaction, _AUDITED[change["change"]], author, entity, **change)


async def _rename(transaction: Transaction, group_id: int, full_path: str, path: str) -> None:
    if problem := paths.problem_with(path, within="/" in full_path):
        raise invalid({"path": [problem]})
    if not await paths.rename_namespace(transaction, group_id, full_path, path):
        raise invalid({"path": ["has already been taken"]})


async def _check_visibility(
    transaction: Transaction, group_id: int, visibility: str, above: LockedNamespace | None
) -> None:
    """Raise 400 if the group would be more visible than its parent, or less visible than its contents."""
    within = await namespace_queries.within(transaction, group_id)
    problems = []
    if above and resources.is_more_visible(visibility, above.visibility):
        problems.append(_beyond_parent(visibility, above))
    if any(resources.is_more_visible(existing, visibility) for existing in within.projects):
        problems.append(
            f"{visibility} is not allowed since this group contains projects with higher visibility."
        )
    if any(resources.is_more_visible(existing, visibility) for existing in within.subgroups):
        problems.append(f"{visibility} is not allowed since there are sub-groups with higher visibility.")
    if problems:
        raise invalid({"visibility_level": problems})


def _beyond_parent(visibility: str, above: LockedNamespace) -> str:
    return f"{visibility} is not allowed since the parent group has a {above.visibility} visibility."


def _not_saved(field: str, problem: str) -> ApiError:
    return invalid(f'Failed to save group {{:{field}=>["{problem}"]}}')


def setup(services: Services) -> None:
    services[USER_LISTENERS].append(follow_user)


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    """Keep a user's own namespace consistent with the account. Bots have none. Raise Conflict if a group has
    the path."""
    if event.bot:
        return
    match event.kind:
        case "created":
            await _create_personal(transaction, event)
        case "removed":
            namespace = await namespace_queries.namespace_of(transaction, event.user_id)
            await removal.remove_namespace(transaction, namespace.id, event.author)
        case "renamed":
            namespace = await namespace_queries.namespace_of(transaction, event.user_id)
            await namespace_queries.rename(transaction, namespace.id, event.name)
            if event.username != namespace.full_path and not await paths.rename_namespace(
                transaction, namespace.id, namespace.full_path, event.username
            ):
                raise Conflict("routes_pkey")


async def _create_personal(transaction: Transaction, event: UserEvent) -> None:
    namespace_id = await namespace_queries.create(
        transaction,
        "user",
        [],
        owner_id=event.user_id,
        name=event.name,
        path=event.username,
        full_path=event.username,
        visibility="public",
    )
    if not await path_queries.take(transaction, event.username, namespace_id=namespace_id):
        raise Conflict("routes_pkey")
