"""The namespace of a user's own projects: made, moved and removed with her account."""

from aiohttp import web

from api_server.accounts.users import USER_LISTENERS, UserEvent
from api_server.namespaces import namespace_queries, path_queries, paths, removal
from api_server.namespaces import personal_queries as queries
from api_server.state.database import Transaction
from api_server.state.errors import Conflict


def setup(app: web.Application) -> None:
    app[USER_LISTENERS].append(follow_user)


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    """Raises Conflict where a group has the path. Bots have no projects of their own."""
    if event.bot:
        return
    match event.kind:
        case "created":
            await _create(transaction, event)
        case "removed":
            namespace = await queries.namespace_of(transaction, event.user_id)
            await removal.remove_namespace(transaction, namespace.id, event.author)
        case "renamed":
            namespace = await queries.namespace_of(transaction, event.user_id)
            await namespace_queries.rename(transaction, namespace.id, event.name)
            if event.username != namespace.full_path and not await paths.rename_namespace(
                transaction, namespace.id, namespace.full_path, event.username
            ):
                raise Conflict("routes_pkey")


async def _create(transaction: Transaction, event: UserEvent) -> None:
    namespace_id = await namespace_queries.create(
        transaction,
        "user",
        [],
        owner_id=event.user_id,
        name=event.name,
        path=event.username,
        full_path=event.username,
        visibility="public",
    )
    if not await path_queries.take(transaction, event.username, namespace_id=namespace_id):
        raise Conflict("routes_pkey")
