"""Pages with their declarations: who may open them, and what of a project has to be open for that.

A page is `async def show(request, who, wanted, found)`, and what answers a form is given the `form` too; it takes as
many of these as it needs. `who` is the visitor, `wanted` the parameters in path and query (and form) as the class of
its annotation (`web/params.py`), `found` what `{project}` or `{group}` of the path names, to which the route's rule has
been applied: the rules are those of the API. A stranger whom one refuses is sent to sign in; everybody else is told on
a page.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
from aiohttp import web

from api_server.namespaces.access import GroupAccess, ProjectAccess
from api_server.pages import finding, page, problems, sessions
from api_server.pages.below_projects import BELOW_PROJECTS, PREFIX
from api_server.pages.problems import SignInFirst
from api_server.pages.sessions import Form, Visitor
from api_server.web.errors import forbidden
from api_server.web.params import structure
from api_server.web.request_data import in_url
from api_server.web.routes import ANYONE, SIGNED_IN, Access

Page = Callable[..., Awaitable[web.StreamResponse]]
PageT = TypeVar("PageT", bound=Page)

_GIVEN = frozenset({"who", "wanted", "found", "form"})


@attrs.frozen(kw_only=True)
class PageRoute:
    """One page, or what answers one form, as declared."""

    method: str
    path: str
    handler: Page
    access: Access
    #: The attrs class of the handler's `wanted`.
    parameters: type | None
    takes: frozenset[str]


class Pages:
    """The pages of one module, in the order in which their paths are tried."""

    def __init__(self) -> None:
        self.routes: list[PageRoute] = []

    def get(self, path: str, *, access: Access = ANYONE) -> Callable[[PageT], PageT]:
        """Also answers HEAD."""
        return self._declare("GET", path, access)

    def post(self, path: str, *, access: Access = SIGNED_IN) -> Callable[[PageT], PageT]:
        """A form that only our pages can send; what it rests on holds when it writes (`web/grounds.py`)."""
        return self._declare("POST", path, access)

    def _declare(self, method: str, path: str, access: Access) -> Callable[[PageT], PageT]:
        def declare(handler: PageT) -> PageT:
            takes = frozenset(list(inspect.signature(handler).parameters)[1:])
            if unknown := takes - (_GIVEN if method == "POST" else _GIVEN - {"form"}):
                raise TypeError(f"{method} {path}: a page is not given {', '.join(sorted(unknown))}")
            self.routes.append(
                PageRoute(
                    method=method,
                    path=path,
                    handler=handler,
                    access=access,
                    parameters=typing.get_type_hints(handler).get("wanted"),
                    takes=takes,
                )
            )
            return handler

        return declare

    def register(self, app: web.Application) -> None:
        for route in self.routes:
            answer = endpoint(route)
            if route.path.startswith(PREFIX):
                app[BELOW_PROJECTS].add(route.method, route.path.removeprefix(PREFIX), answer)
            elif route.method == "GET":
                app.router.add_get(route.path, answer)
            else:
                app.router.add_route(route.method, route.path, answer)


def endpoint(route: PageRoute) -> Page:
    """`route`'s handler behind its declarations."""

    async def answer(request: web.Request, who: Visitor, form: Form) -> web.StreamResponse:
        given: dict[str, Any] = {"who": who, "form": form}
        given["found"] = await _let_in(request, who, route.access)
        if route.parameters is not None:
            given["wanted"] = structure({**form, **in_url(request)}, route.parameters)
        return await route.handler(request, **{name: given[name] for name in route.takes})

    async def show(request: web.Request) -> web.StreamResponse:
        return await answer(request, await sessions.visitor(request), {})

    return problems.as_pages(page.form(answer) if route.method == "POST" else show)


async def _let_in(request: web.Request, who: Visitor, access: Access) -> Any:
    """What the path names, where the visitor may have it. Raises `SignInFirst`, 403, 404 and redirects."""
    match access:
        case ProjectAccess():
            return await finding.project(request, who, request.match_info["project"], access)
        case GroupAccess():
            return await finding.group(request, who, request.match_info["group"], access)
    if access.who != "anyone" and who.user is None:
        raise SignInFirst
    if access.who == "administrator" and not (who.user and who.user.admin):
        raise forbidden()
    return None
