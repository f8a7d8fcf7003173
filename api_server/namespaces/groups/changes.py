"""What making, changing and removing a group means, each in the caller's transaction."""

import attrs
from aiohttp import web

from api_server.namespaces import memberships, paths
from api_server.namespaces import visibility as levels
from api_server.namespaces.groups import queries
from api_server.namespaces.groups.access import Group
from api_server.outbound import edges
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import ApiError, forbidden, invalid, not_found
from api_server.web.routes import caller


@attrs.frozen(kw_only=True)
class NewGroup:
    """A group to be, at the top or below `parent`."""

    name: str
    path: str
    description: str | None
    visibility: str
    parent: Group | None


async def parent_of_new_group(request: web.Request, parent_id: int | None) -> Group | None:
    """The group that the caller may make a subgroup in. Raises 404 and 403."""
    who = caller(request)
    if parent_id is None:
        if not (who.admin or await queries.may_create_group(context.database(request), who.user_id)):
            raise forbidden()
        return None
    row = await queries.find_group(
        context.database(request), group_id=parent_id, path=None, user_id=who.user_id
    )
    if row is None or not (who.admin or row.role or row.visibility != "private"):
        raise not_found("Group")
    if not (who.admin or row.role >= Role.OWNER):
        raise forbidden()
    return Group(
        id=row.id,
        name=row.name,
        path=row.path,
        full_path=row.full_path,
        parent_id=row.parent_id,
        lineage=row.lineage,
        visibility=row.visibility,
        role=row.role,
    )


async def create(transaction: Transaction, group: NewGroup, owner_id: int, author: Author) -> int:
    """The id of the new group, owned by `owner_id`. Raises 400 as GitLab words it."""
    parent = group.parent
    full_path = f"{parent.full_path}/{group.path}" if parent else group.path
    if problem := paths.problem_with(group.path, within=parent.full_path if parent else None):
        raise _refused("path", problem)
    if parent and levels.exceeds(group.visibility, parent.visibility):
        raise _refused(
            "visibility_level",
            f"{group.visibility} is not allowed since the parent group has a {parent.visibility} visibility.",
        )
    group_id = await queries.create_group(
        transaction,
        lineage=parent.lineage if parent else [],
        parent_id=parent.id if parent else None,
        name=group.name,
        path=group.path,
        full_path=full_path,
        description=group.description,
        visibility=group.visibility,
    )
    if not await paths.take(transaction, full_path, namespace_id=group_id):
        raise _refused("path", "has already been taken")
    await memberships.add(
        transaction, user_id=owner_id, namespace_id=group_id, access_level=Role.OWNER, created_by_id=owner_id
    )
    await _record(transaction, "group_created", author, group_id, full_path, "Added group")
    return group_id


async def update(
    transaction: Transaction,
    group: Group,
    author: Author,
    *,
    name: str | None,
    path: str | None,
    description: str | None,
    visibility: str | None,
) -> None:
    """Changes what is not None. Raises 400."""
    if path and path != group.path:
        if problem := paths.problem_with(path, within=str(group.parent_id) if group.parent_id else None):
            raise invalid({"path": [problem]})
        if not await paths.rename_namespace(transaction, group, path):
            raise invalid({"path": ["has already been taken"]})
    if visibility and visibility != group.visibility:
        await _check_visibility(transaction, group, visibility)
    await queries.update_group(
        transaction, group.id, name=name, description=description, visibility=visibility
    )
    changed = {"name": name, "path": path, "visibility": visibility}
    for field, new in changed.items():
        old = getattr(group, field)
        if new and new != old:
            await audit_trail.record(
                transaction,
                f"group_{field}_updated" if field != "visibility" else "group_visibility_level_updated",
                author=author,
                entity=group.entity,
                target_id=group.id,
                target_details=group.full_path,
                message=f"Changed {field} from {old} to {new}",
                change=field,
                **{"from": old, "to": new},
            )
    if (visibility and visibility != group.visibility) or (path and path != group.path):
        for project in await queries.projects_below(transaction, group.id):
            await edges.changed(transaction, edges.project_key(project.id))


async def _check_visibility(transaction: Transaction, group: Group, wanted: str) -> None:
    below = await queries.most_visible_below(transaction, group.id)
    if below > levels.LEVELS.index(wanted):
        problem = f"{wanted} is not allowed since there are projects or sub-groups with higher visibility."
        raise invalid({"visibility_level": [problem]})


async def delete(transaction: Transaction, group: Group, author: Author) -> None:
    """Removes the group and all below; the data of its projects is removed by tasks."""
    for project in await queries.projects_below(transaction, group.id):
        await enqueue(transaction, "remove_project_data", project_id=project.id)
        await edges.changed(transaction, edges.project_key(project.id))
    await queries.delete_group(transaction, group.id)
    await _record(transaction, "group_destroyed", author, group.id, group.full_path, "Removed group")


def _refused(field: str, problem: str) -> ApiError:
    return invalid(f'Failed to save group {{:{field}=>["{problem}"]}}')


async def _record(
    transaction: Transaction, event_type: str, author: Author, group_id: int, full_path: str, message: str
) -> None:
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=Entity(type="Group", id=group_id, path=full_path),
        target_id=group_id,
        target_details=full_path,
        message=message,
    )
