"""Where a project lives, or is to live: a group, or a user's own namespace."""

from api_server.namespaces import membership_queries, redirects, visibility
from api_server.namespaces.projects import queries
from api_server.namespaces.projects.queries import Namespace
from api_server.state.database import Executor, Transaction
from api_server.web.auth import Caller
from api_server.web.errors import ApiError, invalid, not_found
from api_server.web.routes import Role

#: From which role on projects are made, by a group's `project_creation_level`; by nobody at the others.
_CREATORS = {
    "owner": Role.OWNER,
    "maintainer": Role.MAINTAINER,
    "developer": Role.DEVELOPER,
}


async def find_namespace(database: Executor, reference: str, who: Caller) -> Namespace:
    """The namespace of that id or full path. Raises 404 where the caller cannot see it."""
    number = redirects.id_in(reference)
    found = await queries.find_namespace(
        database,
        namespace_id=number,
        path=None if number is not None else reference,
        user_id=who.user_id,
        admin=who.admin,
    )
    if found is None:
        raise not_found("Namespace")
    return found


def may_create(namespace: Namespace, *, admin: bool) -> bool:
    """Whether the caller may make projects there."""
    level = namespace.project_creation_level
    least = _CREATORS.get(level)
    return admin and level == "administrator" if least is None else namespace.role >= least


async def require_room(transaction: Transaction, namespace: Namespace) -> None:
    """Raises 403 where a user has as many projects of her own as she may; groups have room for all."""
    if namespace.owner_id is None:
        return
    limit = await queries.lock_projects_limit(transaction, namespace.owner_id)
    if limit == 0:
        problem = "Personal project creation is not allowed. Please contact your administrator with questions"
    elif await queries.has_personal_projects(transaction, namespace.owner_id, at_least=limit):
        problem = f"Your project limit is {limit} projects! Please contact your administrator to increase it"
    else:
        return
    raise ApiError(403, {"error": [problem]})


def check_visibility(wanted: str, limit: str) -> None:
    """Raises 400 where a project would be more visible than its group (decision D11)."""
    if visibility.exceeds(wanted, limit):
        raise invalid({"visibility_level": [f"{wanted} is not allowed in a {limit} group."]})


async def add_first_member(
    transaction: Transaction, namespace: Namespace, project_id: int, made_by: int
) -> None:
    """A personal project's owner is its first member; in a group a Developer maintains what she has made."""
    if namespace.owner_id is not None:
        user_id, role = namespace.owner_id, Role.OWNER
    elif Role.DEVELOPER <= namespace.role < Role.MAINTAINER:
        user_id, role = made_by, Role.MAINTAINER
    else:
        return
    await membership_queries.add(
        transaction, user_id=user_id, project_id=project_id, access_level=role, created_by_id=made_by
    )
