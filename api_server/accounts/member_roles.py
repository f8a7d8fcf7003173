"""Custom roles: creating and removing them, and the check whether a member may have one."""

from api_server.accounts import member_role_queries
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import bad_request, invalid, not_found
from api_server.web.routes import Role


async def check(transaction: Transaction, member_role_id: int | None, level: Role) -> None:
    """Raise 400 if the custom role does not exist or has another level; None means no custom role."""
    if member_role_id is None:
        return
    base_level = await member_role_queries.hold(transaction, member_role_id)
    if base_level is None:
        raise invalid({"member_role": ["not found"]})
    if base_level != level:
        raise invalid(
            {"member_role": ["the custom role's base access level does not match the current access level"]}
        )


async def create(transaction: Transaction, name: str, level: Role, description: str, author: Author) -> str:
    """Create a custom role and return its JSON. Raise 400."""
    try:
        role = await member_role_queries.create(transaction, name, description, level)
    except Conflict:
        raise invalid({"name": ["has already been taken"]}) from None
    await audit_trail.record(transaction, "member_role_created", author, INSTANCE.target(role.id, name))
    return role.entity


async def delete(transaction: Transaction, role_id: int, author: Author) -> None:
    """Remove a custom role. Raise 404, and 400 if a member or an invitation has it."""
    role = await member_role_queries.lock(transaction, role_id)
    if role is None:
        raise not_found("Member Role")
    if role.is_carried:
        raise bad_request(
            "Role is assigned to one or more members. Remove role from all members, then delete role."
        )
    await member_role_queries.remove(transaction, role.id)
    await audit_trail.record(transaction, "member_role_deleted", author, INSTANCE.target(role.id, role.name))
