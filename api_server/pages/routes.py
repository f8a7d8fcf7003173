"""Declarations of pages: their addresses, who may open them, and which project feature they need.

A page is `async def show(request, visitor, params, project)`, and the handler of a form gets the `form` too. Each takes
only the arguments that it needs. `params` are the parameters of path and query (and form), parsed into the class of its
annotation (`web/params.py`). `project` or `group` (`resource` if it may be either) is what the path names, after the
route's rule has been applied. The rules are those of the API. If one refuses an anonymous visitor, she is redirected to
sign in; other visitors get a page that says why. All pages below `/<project>/-/` are one route of aiohttp's router,
which tries its routes one after the other: requests for git, files and archives should not wait for that.
"""

import functools
import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from api_server.accounts.path_rules import FULL_PATH
from api_server.namespaces import access as resource_access
from api_server.namespaces.access import GroupAccess, ProjectAccess, visible_group
from api_server.namespaces.resources import Group, Project
from api_server.pages import forms, page, problems, sessions
from api_server.pages.page import url_path
from api_server.pages.problems import SignInFirst
from api_server.pages.sessions import Form, Visitor
from api_server.services import Key
from api_server.state.preconditions import ChangedMeanwhile
from api_server.web import context
from api_server.web.context import SERVICES
from api_server.web.errors import ApiError, forbidden, not_found
from api_server.web.params import structure
from api_server.web.rate_limits import RateLimiter
from api_server.web.request_data import in_url
from api_server.web.routes import ANYONE, SIGNED_IN, Access

#: The prefix of the paths of such pages.
PREFIX = "/{project}/-/"
_PARAMETER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")


class BelowProjects:
    """Handlers by method and by the path behind the prefix."""

    def __init__(self) -> None:
        self._by_word: dict[str, list[tuple[str, re.Pattern[str], Handler]]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Add a route. `path` is like `jobs/{id}` or `tree/{rest:.+}`: a word and then parameters, which end at a slash
        unless they have a pattern. Routes are tried in the order in which they were added."""
        pattern = _PARAMETER.sub(lambda match: f"(?P<{match[1]}>{match[2] or '[^/]+'})", path)
        first_segment = path.partition("/")[0]
        self._by_word.setdefault(first_segment, []).append((method, re.compile(pattern, re.DOTALL), handler))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the page, whose handler finds the path's parameters in `match_info`. Return 404 or 405 without one."""
        below, method = request.match_info.pop("below"), request.method
        allowed = set()
        for route_method, pattern, handler in self._by_word.get(below.partition("/")[0], ()):
            if (match := pattern.fullmatch(below)) is None:
                continue
            if route_method == ("GET" if method == "HEAD" else method):
                request.match_info.update(match.groupdict())
                return await handler(request)
            allowed.add(route_method)
        if allowed:
            raise web.HTTPMethodNotAllowed(method, sorted(allowed))
        raise web.HTTPNotFound


BELOW_PROJECTS = Key[BelowProjects]("below_projects")


def setup(app: web.Application) -> None:
    table = app[SERVICES][BELOW_PROJECTS] = BelowProjects()
    answer = problems.as_pages(table.answer)
    below = app.router.add_resource(f"/{{project:{FULL_PATH}}}/-/{{below:(?!raw/|archive/)(?s:.*)}}")
    for method in ("GET", "HEAD", "POST"):
        below.add_route(method, answer)


def allows(access: ProjectAccess, project: Project, visitor: Visitor) -> bool:
    """Return whether `access` lets the visitor, who has to be signed in, use its routes in the project."""
    try:
        access.check(project)
    except ApiError:
        return False
    return visitor.user is not None


async def project_in_path(
    request: web.Request, visitor: Visitor, path: str, access: ProjectAccess
) -> Project:
    """Return the project with that full path if `access` lets the visitor in. Raise 404, 403, and `SignInFirst` for
    anonymous visitors, who do not learn whether it exists."""
    project = await visible_project(request, visitor, path)
    if project is None:
        raise SignInFirst if visitor.user is None else not_found("Project")
    try:
        access.check(project)
    except ApiError:
        if visitor.user is None:
            raise SignInFirst from None
        raise
    return project


async def visible_project(request: web.Request, visitor: Visitor, path: str) -> Project | None:
    """Return the project with that full path, or None if the visitor cannot see it."""
    project = await resource_access.visible_project(
        context.services(request), path, user_id=visitor.user_id, admin=visitor.is_admin, job_project_id=None
    )
    if project is not None and project.moved:
        _redirect(request, path, project.full_path)
    return project


async def group_in_path(request: web.Request, visitor: Visitor, path: str, access: GroupAccess) -> Group:
    """Return the group with that full path. Raise like `project_in_path`."""
    group = await visible_group(
        context.services(request), path, user_id=visitor.user_id, admin=visitor.is_admin
    )
    if group is None or (group.role < access.role and visitor.user is None):
        raise SignInFirst if visitor.user is None else not_found("Group")
    if group.moved:
        _redirect(request, path, group.full_path)
    access.check(group)
    return group


def _redirect(request: web.Request, old: str, new: str) -> NoReturn:
    """Redirect to the same page under the new path. Raise 404 for forms, which are not sent twice."""
    if request.method not in ("GET", "HEAD"):
        raise not_found("Project")
    moved = request.rel_url.raw_path_qs.replace(f"/{url_path(old)}", f"/{url_path(new)}", 1)
    # Not cached: another visitor may not see the project that has this path now.
    raise web.HTTPMovedPermanently(URL(moved, encoded=True), headers={"Cache-Control": "no-store"})


Page = Callable[..., Awaitable[web.StreamResponse]]
PageT = TypeVar("PageT", bound=Page)

_GIVEN = frozenset({"visitor", "params", "project", "group", "resource", "form"})


@attrs.frozen(kw_only=True)
class PageRoute:
    """The declaration of one page or of one form's handler."""

    method: str
    path: str
    handler: Page
    access: Access
    #: The attrs class of the handler's `params`, if it takes them.
    parameters: type | None
    takes: frozenset[str]
    #: The page that shows a refused form again.
    form_page: "PageRoute | None" = None
    #: The limiter that counts the forms of each client address.
    by_address: Key[RateLimiter] | None = None


#: The declarations of each page: two if it belongs to both projects and groups.
_ROUTES: dict[Page, list[PageRoute]] = {}


class Pages:
    """The pages of one module, in the order in which their paths are tried."""

    def __init__(self) -> None:
        self.routes: list[PageRoute] = []

    def get(self, path: str, *, access: Access = ANYONE) -> Callable[[PageT], PageT]:
        """Declare a page, which also answers HEAD."""
        return self._declare("GET", path, access)

    def post(
        self,
        path: str,
        *,
        access: Access = SIGNED_IN,
        form_page: Page | None = None,
        by_address: Key[RateLimiter] | None = None,
    ) -> Callable[[PageT], PageT]:
        """Declare the handler of a form that only our pages can send. The caller's rights are checked again when it
        writes (`state/preconditions.py`). A refused form is shown again by the declared page `form_page`, with the
        errors at its fields (`forms.py`). With `by_address`, the forms of each client address are counted before they
        are read."""
        return self._declare("POST", path, access, form_page, by_address)

    def _declare(
        self,
        method: str,
        path: str,
        access: Access,
        form_page: Page | None = None,
        by_address: Key[RateLimiter] | None = None,
    ) -> Callable[[PageT], PageT]:
        def declare(handler: PageT) -> PageT:
            takes = frozenset(list(inspect.signature(handler).parameters)[1:])
            if unknown := takes - (_GIVEN if method == "POST" else _GIVEN - {"form"}):
                raise TypeError(
                    f"{method} {path}: the handler of a page cannot take {', '.join(sorted(unknown))}"
                )
            route = PageRoute(
                method=method,
                path=path,
                handler=handler,
                access=access,
                parameters=typing.get_type_hints(handler).get("params"),
                takes=takes,
                form_page=_form_page(form_page, access),
                by_address=by_address,
            )
            _ROUTES.setdefault(handler, []).append(route)
            self.routes.append(route)
            return handler

        return declare

    def register(self, app: web.Application) -> None:
        for route in self.routes:
            answer = endpoint(route)
            if route.path.startswith(PREFIX):
                app[SERVICES][BELOW_PROJECTS].add(route.method, route.path.removeprefix(PREFIX), answer)
            elif route.method == "GET":
                app.router.add_get(route.path, answer)
            else:
                app.router.add_route(route.method, route.path, answer)


def _form_page(source_page: Page | None, access: Access) -> PageRoute | None:
    """Return the route of `source_page` for the kind of resource that a form with this `access` is about."""
    if source_page is None:
        return None
    return next(route for route in _ROUTES[source_page] if type(route.access) is type(access))


def endpoint(route: PageRoute) -> Page:
    """Wrap the handler of `route` in what it declares."""
    form_page = route.form_page

    async def show(request: web.Request) -> web.StreamResponse:
        return await _answer(request, route, await sessions.visitor(request), {})

    async def submit(request: web.Request, visitor: Visitor, form: Form) -> web.StreamResponse:
        try:
            answer = functools.partial(_answer, request, route, visitor, form)
            return await forms.once(request, visitor, form, answer)
        except (SignInFirst, ChangedMeanwhile, ConnectionResetError, web.HTTPException):
            raise
        except Exception as problem:
            if form_page is None:
                raise
            headers = problems.refuse_form(request, form, problem)
            response = await _answer(request, form_page, visitor, form)
            response.headers.update(headers)
            return response

    if route.method == "GET":
        return problems.as_pages(show)
    is_long = form_page is not None and route.access is not ANYONE  # anonymous visitors send little
    return problems.as_pages(page.form(submit, route.by_address, is_long=is_long))


async def _answer(request: web.Request, route: PageRoute, visitor: Visitor, form: Form) -> web.StreamResponse:
    """Return the handler's answer after checking the visitor's access."""
    args: dict[str, Any] = {"visitor": visitor, "form": form}
    args["project"] = args["group"] = args["resource"] = await _let_in(request, visitor, route.access)
    if route.parameters is not None:
        args["params"] = structure({**form, **in_url(request)}, route.parameters)
    return await route.handler(request, **{name: args[name] for name in route.takes})


async def _let_in(request: web.Request, visitor: Visitor, access: Access) -> Any:
    """Return the resource that the path names, or None. Raise `SignInFirst`, 403, 404 and redirects."""
    match access:
        case ProjectAccess():
            return await project_in_path(request, visitor, request.match_info["project"], access)
        case GroupAccess():
            return await group_in_path(request, visitor, request.match_info["group"], access)
    if access.kind != "anyone" and visitor.user is None:
        raise SignInFirst
    if access.kind == "administrator" and not (visitor.user and visitor.user.admin):
        raise forbidden()
    return None
