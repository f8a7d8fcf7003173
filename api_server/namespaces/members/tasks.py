"""The background work of memberships: the expired ones are ended, so that the trail tells of it."""

from aiohttp import web

from api_server.namespaces.members import changes
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE


def setup(app: web.Application) -> None:
    async def remove_expired_members() -> None:
        async with app[DATABASE].transaction() as transaction:
            await changes.remove_expired(transaction)

    app[QUEUE].add_periodic("remove_expired_members", "5 * * * *", remove_expired_members)
