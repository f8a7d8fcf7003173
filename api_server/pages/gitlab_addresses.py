"""Redirects from GitLab's addresses to the pages that have other addresses here.

People have GitLab's addresses as bookmarks, and programs write them into texts.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH, RESERVED_ROOTS
from api_server.pages.routes import Pages

#: The address of the page here, by that of GitLab's page. The query of the request is kept.
ADDRESSES: Mapping[str, str] = {
    "/explore": "/explore/projects",
    "/explore/projects/{rest:trending|starred|topics|active}": "/explore/projects",
    "/public": "/explore/projects",
    "/public/projects": "/explore/projects",
    "/public/groups": "/explore/groups",
    "/search": "/explore/projects",
    "/groups": "/explore/groups",
    "/projects": "/",
    "/dashboard": "/",
    "/dashboard/projects": "/",
    "/dashboard/projects/{rest:.+}": "/",
    "/help/{rest:.+}": "/help",
    "/users/sign_in": "/-/sign_in",
    "/users/sign_up": "/-/sign_in",
    "/users/sign_out": "/-/sign_out",
    "/users/password/new": "/-/password/new",
    "/users/{name}/{rest:activity|contributed|groups|projects|snippets|starred}": "/{name}",
    "/profile": "/-/user_settings",
    "/profile/{rest:.+}": "/-/profile/{rest}",
    "/-/profile": "/-/user_settings",
    "/-/profile/{rest:account|emails|preferences}": "/-/user_settings",
    "/-/profile/password/edit": "/-/user_settings/password",
    "/-/profile/personal_access_tokens": "/-/user_settings/personal_access_tokens",
    "/-/profile/active_sessions": "/-/user_settings/active_sessions",
    "/-/user_settings/profile": "/-/user_settings",
    "/-/user_settings/password/{rest:edit|new}": "/-/user_settings/password",
    "/admin/dashboard": "/admin",
    "/admin/health_check": "/admin",
    "/admin/audit_logs": "/admin/audit_events",
    "/admin/background_jobs": "/admin/background_tasks",
    "/admin/application_settings": "/admin/settings",
    "/admin/application_settings/{rest:general|ci_cd|network|preferences|reporting}": "/admin/settings",
    "/admin/groups": "/explore/groups",
    f"/admin/projects/{{full_path:{FULL_PATH}}}": "/{full_path}",
    "/admin/users/{name}": "/admin/users?search={name}",
    "/{project}/-/merge_requests/{iid}/{rest:diffs|commits|pipelines|reports}": "/{project}/-/merge_requests/{iid}",
    "/{project}/-/pipelines/{id}/{rest:builds|dag|failures|test_report}": "/{project}/-/pipelines/{id}",
}
#: Addresses of a project's pages from before GitLab had `/-/`: `/group/app/tree/main`.
_WITHOUT_DASH = re.compile(
    rf"({FULL_PATH}?)/((?:audit_events|blame|blob|branches|commit|commits|compare|edit|jobs|merge_requests|pipelines"
    r"|project_members|releases|settings|tags|tree)(?:/.*)?)",
    re.DOTALL,
)


def page_below(path: str) -> str | None:
    """Return the address of the project's page that GitLab formerly had at `path`, or None if it had none there."""
    match = _WITHOUT_DASH.fullmatch(path)
    if match is None or "/" not in match[1] or match[1].partition("/")[0].lower() in RESERVED_ROOTS:
        return None
    return f"/{quote(match[1])}/-/{quote(match[2])}"


def redirect(request: web.Request, address: str) -> web.Response:
    """Redirect the browser to `address`, with the query of the request."""
    if query := request.rel_url.raw_query_string:
        address += f"{'&' if '?' in address else '?'}{query}"
    return web.Response(status=302, headers={"Location": address, "Cache-Control": "no-store"})


def _redirecting(address: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        values = {name: quote(text) for name, text in request.match_info.items()}
        return redirect(request, address.format(**values))

    return answer


pages = Pages()
for _theirs, _ours in ADDRESSES.items():
    pages.get(_theirs)(_redirecting(_ours))
