"""Routes with their declarations: who may call, with which scopes, in which tier. None can be made without a rule."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
from aiohttp import web

from api_server.web import auth, context, tiers
from api_server.web.access import Access
from api_server.web.auth import Caller
from api_server.web.errors import ApiError, forbidden, insufficient_scope, unauthorized

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HandlerT = TypeVar("HandlerT", bound=Handler)

CALLER = web.RequestKey("caller", Caller)


@attrs.frozen
class Route:
    """One endpoint as declared."""

    method: str
    path: str
    handler: Handler
    access: Access
    feature: tiers.Feature | None = None
    scopes: tuple[str, ...] = ()
    #: The body is bytes that the handler streams; parameters are in the path and the query only.
    streams_body: bool = False


ROUTE = web.RequestKey("route", Route)
#: Set once the route's rule has been applied to this request.
CHECKED = web.RequestKey("checked", bool)


class Routes:
    """The routes of one resource, in the order in which they are tried."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, **declared: object) -> Callable[[HandlerT], HandlerT]:
        """Also answers HEAD."""
        return self._declare("GET", path, declared)

    def post(self, path: str, **declared: object) -> Callable[[HandlerT], HandlerT]:
        return self._declare("POST", path, declared)

    def put(self, path: str, **declared: object) -> Callable[[HandlerT], HandlerT]:
        return self._declare("PUT", path, declared)

    def patch(self, path: str, **declared: object) -> Callable[[HandlerT], HandlerT]:
        return self._declare("PATCH", path, declared)

    def delete(self, path: str, **declared: object) -> Callable[[HandlerT], HandlerT]:
        return self._declare("DELETE", path, declared)

    def _declare(self, method: str, path: str, declared: dict[str, object]) -> Callable[[HandlerT], HandlerT]:
        scopes = auth.READ_SCOPES if method == "GET" else auth.WRITE_SCOPES

        def declare(handler: HandlerT) -> HandlerT:
            self.routes.append(Route(method, path, handler, **{"scopes": scopes, **declared}))  # type: ignore[arg-type]
            return handler

        return declare

    def register(self, app: web.Application) -> None:
        for route in self.routes:
            app.router.add_route(route.method, route.path, endpoint(route))
            if route.method == "GET":
                app.router.add_route("HEAD", route.path, endpoint(route))


def endpoint(route: Route) -> Handler:
    """`route`'s handler behind its declarations, in the order of decision D1: authentication, scopes, tier, handler."""

    async def answer(request: web.Request) -> web.StreamResponse:
        request[ROUTE] = route
        if route.access.who == "anyone":
            request[CHECKED] = True
        else:
            request[CALLER] = await _caller(request, route)
        _require_feature(request, route)
        response = await route.handler(request)
        if CHECKED not in request:
            raise AssertionError(f"{route.method} {route.path} answered without applying its access rule")
        return response

    return answer


def caller(request: web.Request) -> Caller:
    """Who calls; only for routes that need credentials."""
    return request[CALLER]


async def _caller(request: web.Request, route: Route) -> Caller:
    found = await auth.authenticate(
        request, takes_job_token=route.access.who == "job", reads_body=not route.streams_body
    )
    if found is None:
        raise unauthorized()
    if route.access.who == "job":
        if found.job_id is None:
            raise ApiError(404, {"message": "404 Job Not Found"})
        request[CHECKED] = True
        return found
    if not found.scopes.intersection(route.scopes):
        raise insufficient_scope(" ".join(route.scopes))
    if route.access.who == "administrator" and not found.admin:
        raise forbidden()
    if route.access.who in ("administrator", "signed_in"):
        request[CHECKED] = True
    return found


def _require_feature(request: web.Request, route: Route) -> None:
    if route.feature and (refused := tiers.refusal(route.feature, context.settings(request))):
        raise refused
