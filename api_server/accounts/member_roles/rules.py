"""When a member may carry a custom role."""

from api_server.accounts.member_roles import queries
from api_server.state.database import Transaction
from api_server.web.errors import invalid
from api_server.web.routes import Role


async def check(transaction: Transaction, member_role_id: int | None, level: Role) -> None:
    """Raises 400 for a custom role that does not exist or has another level; None is no custom role."""
    if member_role_id is None:
        return
    base_level = await queries.hold(transaction, member_role_id)
    if base_level is None:
        raise invalid({"member_role": ["not found"]})
    if base_level != level:
        raise invalid(
            {"member_role": ["the custom role's base access level does not match the current access level"]}
        )
