"""Users that the access tokens of a project or a group sign in as: they go with their tokens, and with that place."""

from api_server.accounts.users import bot_queries as queries
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction


async def retire(
    transaction: Transaction,
    author: Author,
    *,
    user_id: int | None = None,
    project_id: int | None = None,
    namespace_id: int | None = None,
) -> None:
    """Removes a bot, or those of a project, or those of a group and of all groups below it. Their tokens open nothing
    any more; what they have made, and the trail, go on naming them."""
    for bot in await queries.retire(transaction, user_id, project_id, namespace_id):
        await audit_trail.record(
            transaction,
            "user_destroyed",
            author=author,
            entity=Entity(type="User", id=bot.id, path=bot.username),
            message="User destroyed",
        )
