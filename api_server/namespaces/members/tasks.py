"""How memberships end by themselves, so that the trail tells of it: when they expire, and with their user."""

from aiohttp import web

from api_server.accounts.users import USER_LISTENERS, UserEvent
from api_server.namespaces import removal
from api_server.namespaces.members import ending, queries
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE
from api_server.web.errors import conflict


def setup(app: web.Application) -> None:
    async def remove_expired_members() -> None:
        async with app[DATABASE].transaction() as transaction:
            await ending.remove_expired(transaction)

    app[QUEUE].add_periodic("remove_expired_members", "5 * * * *", remove_expired_members)
    app[USER_LISTENERS].append(follow_user)


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    if event.kind == "removed":
        await _remove_owned_groups(transaction, event)
        await ending.end_all_of(transaction, event.user_id, event.author)
    elif event.kind == "restricted":
        await ending.withdraw_unfounded(transaction, event.user_id, event.author)


async def _remove_owned_groups(transaction: Transaction, event: UserEvent) -> None:
    """Removes the groups that nobody else owns, where the user is removed `hard`. Raises 409 where she is not."""
    for group_id in await queries.groups_of_only_owner(transaction, event.user_id):
        if not event.hard:
            raise conflict("User cannot be removed while is the sole-owner of a group")
        await removal.remove_namespace(transaction, group_id, event.author)
