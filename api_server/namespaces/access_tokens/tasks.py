"""Bots whose tokens have expired go a month later, as at GitLab: until then their tokens are shown as inactive."""

from aiohttp import web

from api_server.accounts import user_queries, users
from api_server.state.audit_trail import SYSTEM
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE

KEPT_DAYS = 30


def setup(app: web.Application) -> None:
    async def remove_bots_without_tokens() -> None:
        for bot in await user_queries.bots_without_tokens(app[DATABASE], KEPT_DAYS):
            async with app[DATABASE].transaction() as transaction:
                await users.delete(app, transaction, bot.id, SYSTEM)

    app[QUEUE].add_periodic("remove_bots_without_tokens", "17 3 * * *", remove_bots_without_tokens)
