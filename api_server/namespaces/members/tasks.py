"""How memberships end by themselves, so that the trail tells of it: when they expire, and with their user."""

from aiohttp import web

from api_server.accounts.users.accounts import USER_LISTENERS, UserEvent
from api_server.namespaces.members import ending
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE


def setup(app: web.Application) -> None:
    async def remove_expired_members() -> None:
        async with app[DATABASE].transaction() as transaction:
            await ending.remove_expired(transaction)

    app[QUEUE].add_periodic("remove_expired_members", "5 * * * *", remove_expired_members)
    app[USER_LISTENERS].append(follow_user)


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    if event.kind == "removed":
        await ending.end_all_of(transaction, event.user_id, event.author)
    elif event.kind == "restricted":
        await ending.withdraw_unfounded(transaction, event.user_id, event.author)
