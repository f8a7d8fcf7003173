"""`/<path>?go-get=1`: where the `go` command finds the repository of an import path."""

import re
from contextlib import suppress
from html import escape
from itertools import accumulate

from aiohttp import web
from yarl import URL

from api_server.accounts.path_rules import FULL_PATH
from api_server.code.git_http.credentials import git_caller
from api_server.namespaces.access import visible_project
from api_server.namespaces.paths import MOST_SEGMENTS
from api_server.web import context
from api_server.web.auth import ANONYMOUS, Anonymous, Caller

_FULL_PATH = re.compile(FULL_PATH)


def is_asked(request: web.Request) -> bool:
    """Return whether it is the `go` command that asks."""
    return request.method in ("GET", "HEAD") and request.query.get("go-get") == "1"


async def answer(request: web.Request, path: str, outermost: str) -> web.Response:
    """Name the longest beginning of `path` that is a project which the caller can see, as GitLab does.

    Where there is none the answer is `outermost`, which may be private, or not there: nobody learns which.
    """
    found = await _project(request, path) or outermost
    base_url = context.settings(request).base_url
    prefix = escape(f"{URL(base_url).host_port_subcomponent}/{found}")  # no import path has a port
    return web.Response(
        text=f'<html><head><meta name="go-import" content="{prefix} git {escape(base_url)}/{found}.git"></head>'
        f"<body>go get {prefix}</body></html>\n",
        content_type="text/html",
        headers={"Cache-Control": "no-store"},
    )


async def _project(request: web.Request, path: str) -> str | None:
    who: Caller | Anonymous = ANONYMOUS
    with suppress(web.HTTPException):  # credentials that are none make a stranger
        who = await git_caller(request)
    beginnings = list(accumulate(path.split("/")[:MOST_SEGMENTS], "{}/{}".format))[1:]
    for beginning in filter(_FULL_PATH.fullmatch, reversed(beginnings)):
        found = await visible_project(
            request, beginning, user_id=who.user_id, admin=who.admin, job_project_id=who.job_project_id
        )
        if found is not None:
            return beginning
    return None
