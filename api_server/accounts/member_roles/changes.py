"""Making and removing custom roles, each in the caller's transaction."""

from api_server.accounts.member_roles import queries
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import bad_request, invalid, not_found
from api_server.web.routes import Role


async def create(transaction: Transaction, name: str, level: Role, description: str, author: Author) -> str:
    """The new role's JSON. Raises 400."""
    try:
        made = await queries.create(transaction, name, description, level)
    except Conflict:
        raise invalid({"name": ["has already been taken"]}) from None
    await _record(transaction, "created", author, made.id, name)
    return made.entity


async def delete(transaction: Transaction, role_id: int, author: Author) -> None:
    """Raises 404, and 400 where somebody carries the role or is invited with it."""
    role = await queries.lock(transaction, role_id)
    if role is None:
        raise not_found("Member Role")
    if role.is_carried:
        raise bad_request(
            "Role is assigned to one or more members. Remove role from all members, then delete role."
        )
    await queries.remove(transaction, role.id)
    await _record(transaction, "deleted", author, role.id, role.name)


async def _record(transaction: Transaction, verb: str, author: Author, role_id: int, name: str) -> None:
    await audit_trail.record(
        transaction,
        f"member_role_{verb}",
        author=author,
        entity=INSTANCE,
        target_id=role_id,
        target_details=name,
        message=f"{verb.capitalize()} custom role {name}",
    )
