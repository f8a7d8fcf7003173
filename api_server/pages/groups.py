"""`/groups/<full path>`: a group, the groups in it and its projects."""

import attrs
import orjson
from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH
from api_server.namespaces import namespace_queries, project_queries
from api_server.namespaces.access import group
from api_server.namespaces.resources import Group
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import NOBODY, Visitor
from api_server.state.listing import Page
from api_server.web import context
from api_server.web.pagination import MAX_PER_PAGE, Paginated, wanted_page

pages = Pages()


@attrs.frozen(kw_only=True)
class ShowGroup(Paginated):
    pass


@pages.get(f"/groups/{{group:{FULL_PATH}}}", access=group())
async def show_group(request: web.Request, who: Visitor, wanted: ShowGroup, found: Group) -> web.Response:
    database, viewer = context.database(request), who.user_id or NOBODY
    entity = orjson.loads(await namespace_queries.show_group(database, found.id))
    groups = await namespace_queries.list_groups(
        database,
        Page(MAX_PER_PAGE, order="name", descending=False, counted=False),
        user_id=viewer,
        admin=who.is_admin,
        min_level=None,
        parent_id=found.id,
        ancestor_id=None,
        top_level_only=False,
        skipped=[],
        search=None,
    )
    part = wanted_page(wanted, project_queries.LISTING, default_order="last_activity_at")
    projects = await project_queries.list_projects(
        database,
        part,
        viewer_id=viewer,
        sees_all=who.is_admin,
        group_id=found.id,
        visibility=None,
        archived=None,
        search=None,
    )
    return page.answer(
        request,
        who,
        "group.html",
        group=entity,
        groups=orjson.loads(groups.body),
        more_groups=groups.more,
        projects=orjson.loads(projects.body),
        pages=pager(request, part, projects),
    )
