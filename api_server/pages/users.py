"""`/<username>`: a user and the projects in her own namespace; for those who have signed in, as in the API."""

import orjson
from aiohttp import web

from api_server.accounts import user_queries
from api_server.namespaces import namespace_queries, project_queries
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.problems import SignInFirst
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, wanted_page


async def show_user(request: web.Request, who: Visitor, wanted: Paginated, username: str) -> web.Response:
    """Raises `SignInFirst`, and 404."""
    if who.user is None:
        raise SignInFirst
    database = context.database(request)
    namespace = await namespace_queries.namespace_of_named(database, user_id=None, username=username)
    if namespace is None:
        raise not_found("User")
    own = namespace.owner_id == who.user.id
    part = wanted_page(wanted, project_queries.LISTING, default_order="last_activity_at")
    projects = await project_queries.list_projects(
        database,
        part,
        viewer_id=who.user.id,
        sees_all=who.user.admin or own,
        group_id=namespace.id,
        visibility=None,
        archived=None,
        search=None,
    )
    return page.answer(
        request,
        who,
        "user.html",
        user=orjson.loads(await user_queries.show_user(database, namespace.owner_id, "user")),
        own=own,
        projects=orjson.loads(projects.body),
        pages=pager(request, part, projects),
    )
