"""Finding the user that a request names by id."""

from api_server.accounts.users import queries
from api_server.accounts.users.queries import User
from api_server.state.database import Executor
from api_server.web.errors import not_found


async def existing_user(database: Executor, user_id: int) -> User:
    """Raises 404."""
    user = await queries.find_user(database, user_id)
    if user is None:
        raise not_found("User")
    return user
