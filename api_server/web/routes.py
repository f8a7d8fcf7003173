"""Routes with their declarations: who may call, with which scopes and parameters, and which licence they
need.

A handler is `async def handler(request, services: Services, actor: Actor, params: Parameters, project:
Project)` and takes those arguments that it needs, by name. Its annotations are part of the declaration:
`services` are the server's parts as this request uses them, `actor` is the caller (`Actor | Anonymous` if the
route also allows callers without credentials), `params` holds the request's parameters as that class
(`web/params.py`), and `project` (or `group`, or `resource` if it may be either) is the one that the path's
`{id}` names, after the route's rule has been applied. A mismatch raises an error when the module is imported.
"""

import abc
import enum
import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal, Required, TypedDict, TypeVar, Unpack, get_args

import attrs
from aiohttp import web

from api_server.settings import Offering, Settings, Tier
from api_server.web import auth, context, unsupported
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, forbidden, insufficient_scope, unauthorized
from api_server.web.params import public_name, structure
from api_server.web.rate_limits import THROTTLE
from api_server.web.request_data import in_url, limit_body, merged


class Role(enum.IntEnum):
    """The access levels of members."""

    NO_ACCESS = 0
    MINIMAL_ACCESS = 5
    GUEST = 10
    PLANNER = 15
    REPORTER = 20
    DEVELOPER = 30
    MAINTAINER = 40
    OWNER = 50

    @property
    def title(self) -> str:
        """The title that people read: `Minimal Access`."""
        return self.name.replace("_", " ").title()


@attrs.frozen
class Access:
    """A route's rule about its caller."""

    kind: Literal["anyone", "signed_in", "administrator", "job", "project", "group"]
    #: Whether callers without credentials are allowed; credentials that are sent have to be valid.
    anonymous: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class ResourceAccess(Access, abc.ABC):
    """A rule about the resource that `{id}` in the path names: the caller needs at least `role` there.
    Without a role, everybody who can see it may call."""

    role: Role = Role.NO_ACCESS

    #: The class of the resource.
    finds: ClassVar[type]

    @abc.abstractmethod
    async def find(self, request: web.Request, reference: str) -> Any:
        """Return the resource with that id or full path. Raise 404 if the caller cannot see it, and 403."""


#: The route needs no credentials, or checks credentials of its own kind (runner tokens).
ANYONE = Access("anyone")
SIGNED_IN = Access("signed_in")
SIGNED_IN_OR_NOT = Access("signed_in", anonymous=True)
ADMINISTRATOR = Access("administrator")
#: The token of a running job.
JOB = Access("job")


_TIER_ORDER: tuple[Tier, ...] = get_args(Tier)


@attrs.frozen
class License:
    """A licensed feature: its name in refusals, the lowest tier that has it, and the offerings that have
    it."""

    name: str
    tier: Tier = "free"
    offerings: tuple[Offering, ...] = get_args(Offering)


def require_license(required: License, settings: Settings) -> None:
    """Raise 403, saying what is missing, if this server's tier or offering does not include `required`."""
    if _TIER_ORDER.index(settings.tier) < _TIER_ORDER.index(required.tier):
        raise forbidden(f"{required.name} is not available on the {settings.tier} tier")
    if settings.offering not in required.offerings:
        raise forbidden(f"{required.name} is not available on the {settings.offering} offering")


Handler = Callable[..., Awaitable[web.StreamResponse]]
HandlerT = TypeVar("HandlerT", bound=Handler)
#: Returns the parameters of a request by name.
ReadValues = Callable[[], Awaitable[dict[str, Any]]]
ParametersT = TypeVar("ParametersT")

CALLER = web.RequestKey("caller", Actor)
#: A handler's argument names for the resource that the path's `{id}` names.
_RESOURCES = ("project", "group", "resource")
_IN_PATH = re.compile(r"{(\w+)")


class Declaration(TypedDict, total=False):
    """The declarations of a route, in addition to its path and handler."""

    access: Required[Access]
    #: The successful answers of the route: `200 [Job]` is a status and a body; several are separated by
    #: commas. A body is an entity of `description/entities.toml`, whose first lines explain the types, a list
    #: of them, alternatives separated by | (the larger first: clients take the first that fits), `text`, or
    #: `bytes` of any type. A status without a body has none.
    answers: Required[str]
    license: License
    scopes: tuple[str, ...]
    #: Whether tokens of running jobs are accepted too, with their users' rights if the project allows the
    #: access.
    takes_job_token: bool
    #: Whether administrators are exempt from the rate limit here.
    never_throttled: bool
    #: The media type of a body of bytes that the handler streams. Parameters are then only in the path and
    #: the query.
    streams_body: str
    #: The name under which rights are revoked, with names of parameters in braces (`state/preconditions.py`).
    revokes: str


@attrs.frozen(kw_only=True)
class Route:
    """An endpoint as declared."""

    method: str
    path: str
    handler: Handler
    access: Access
    answers: str
    license: License | None = None
    scopes: tuple[str, ...] = ()
    takes_job_token: bool = False
    never_throttled: bool = False
    streams_body: str | None = None
    revokes: str | None = None
    #: Parameters of GitLab's route that this one does not support.
    ignores: tuple[unsupported.Ignored, ...] = ()
    #: The attrs class of the handler's `params`.
    parameters: type | None = None
    #: The names of the handler's arguments.
    takes: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class ById:
    """The parameters of a route that needs only the id in its path."""

    id: str


#: The routes of each handler.
_ROUTES: dict[Handler, list[Route]] = {}


class Routes:
    """The routes of one resource, in the order in which they are tried."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, **declared: Unpack[Declaration]) -> Callable[[HandlerT], HandlerT]:
        """Declare a GET route, which also answers HEAD."""
        return self._declare("GET", path, declared)

    def post(self, path: str, **declared: Unpack[Declaration]) -> Callable[[HandlerT], HandlerT]:
        return self._declare("POST", path, declared)

    def put(self, path: str, **declared: Unpack[Declaration]) -> Callable[[HandlerT], HandlerT]:
        return self._declare("PUT", path, declared)

    def patch(self, path: str, **declared: Unpack[Declaration]) -> Callable[[HandlerT], HandlerT]:
        return self._declare("PATCH", path, declared)

    def delete(self, path: str, **declared: Unpack[Declaration]) -> Callable[[HandlerT], HandlerT]:
        return self._declare("DELETE", path, declared)

    def _declare(self, method: str, path: str, declared: Declaration) -> Callable[[HandlerT], HandlerT]:
        scopes = auth.READ_SCOPES if method == "GET" else auth.WRITE_SCOPES

        def declare(handler: HandlerT) -> HandlerT:
            signature = _signature_of(handler, path, declared["access"])
            if declared.get("takes_job_token") and declared["access"].kind != "project":
                raise TypeError(f"{path}: only projects limit access by jobs")
            ignored = unsupported.ignored_parameters().get(f"{method} {path}", ())
            declaration: dict[str, Any] = {"scopes": scopes, "ignores": ignored, **declared, **signature}
            route = Route(method=method, path=path, handler=handler, **declaration)
            _ROUTES.setdefault(handler, []).append(route)
            self.routes.append(route)
            return handler

        return declare

    def register(self, app: web.Application) -> None:
        for route in self.routes:
            answer = endpoint(route)
            if route.method != "GET":
                answer = context.judging_again(answer)
            app.router.add_route(route.method, route.path, answer)
            if route.method == "GET":
                app.router.add_route("HEAD", route.path, answer)


def _signature_of(handler: Handler, path: str, access: Access) -> dict[str, Any]:
    """Return the `takes` and `parameters` of a handler. Raise TypeError if they do not match the path and the
    rule."""
    names = frozenset(inspect.signature(handler).parameters)
    if unknown := names - {"request", "services", "actor", "params", *_RESOURCES}:
        raise TypeError(
            f"{path}: a handler takes request, services, actor, params and one of {_RESOURCES}, not {unknown}"
        )
    types_of = typing.get_type_hints(handler)
    if types_of.get("actor") is Actor and (access.anonymous or access.kind == "anyone"):
        raise TypeError(f"{path}: who asks may be Anonymous")
    parameters = types_of.get("params")
    if parameters is not None:
        field_names = {public_name(field) for field in attrs.fields(parameters)}
        if missing := set(_IN_PATH.findall(path)) - field_names:
            raise TypeError(f"{path}: {parameters.__name__} has no {', '.join(sorted(missing))}")
    for name in names.intersection(_RESOURCES):
        if not (isinstance(access, ResourceAccess) and access.finds in _arms(types_of[name])):
            raise TypeError(f"{path}: its rule does not find a {types_of[name]}")
    return {"parameters": parameters, "takes": names}


def _arms(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def endpoint(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the handler of `route` behind the checks of its declarations, in the order of decision D1:
    authentication, scopes, tier, parameters, the resource in the path and the caller's role there."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if route.access.kind == "anyone":
            limit_body(request, context.services(request).settings.runner_body_limit)
            await auth.refuse_sudo(request, reads_body=not route.streams_body)
        elif (actor := await _caller(request, route)) is not None:
            request[CALLER] = actor

        async def read_values() -> dict[str, Any]:
            return in_url(request) if route.streams_body else await merged(request)

        response = await _handled(request, route, read_values)
        unsupported.add_headers(request, response)
        return response

    return answer


async def ask(
    request: web.Request, handler: Handler, resource: Any = None, /, **values: Any
) -> web.StreamResponse:
    """Return the answer of the API route of `handler` to the caller of `request` with the parameters `values`.
    Pages use it to show and do what the API does, by the same rules. `resource` is the project or group that
    the route's `{id}` names, for handlers with routes for both. Callers without credentials may read what the
    route's rule shows to everybody. Raise the route's errors."""
    route = _route_of(handler, resource)
    if resource is not None and isinstance(route.access, ResourceAccess):
        values["id"] = str(resource.id)
    is_anonymous = CALLER not in request
    if is_anonymous:
        if route.method != "GET" or not (route.access.anonymous or isinstance(route.access, ResourceAccess)):
            raise unauthorized()
        request[CALLER] = typing.cast("Actor", auth.Anonymous(address=request.remote))
    if route.access.kind == "administrator" and not caller(request).admin:
        raise forbidden()

    async def read_values() -> dict[str, Any]:
        return values

    try:
        return await _handled(request, route, read_values)
    finally:
        if is_anonymous:  # it was set for this call only
            del request[CALLER]


def _route_of(handler: Handler, resource: Any) -> Route:
    """Return the handler's route; of several, the one whose rule finds the class of `resource`."""
    routes = (
        route
        for route in _ROUTES[handler]
        if isinstance(route.access, ResourceAccess) and route.access.finds is type(resource)
    )
    return next(routes, _ROUTES[handler][-1])


async def _handled(request: web.Request, route: Route, read_values: ReadValues) -> web.StreamResponse:
    """Answer a known caller: check the remaining declarations of the route, then call its handler."""
    if route.license:
        require_license(route.license, context.services(request).settings)
    arguments = await _arguments(request, route, read_values)
    if route.revokes is not None:
        context.services(request).revoke(_revoked_name(route.revokes, request, arguments))
    return await route.handler(**{name: arguments[name] for name in route.takes})


def _revoked_name(pattern: str, request: web.Request, arguments: dict[str, Any]) -> str:
    """Return the name that `pattern` stands for in this request: `{id}` of a project or group is that of the
    resource found, `{token_id}` that of the caller's token."""
    values = {"token_id": caller(request).token_id}
    if "params" in arguments:
        values |= attrs.asdict(arguments["params"], recurse=False)
    if "project" in arguments:
        values["id"] = arguments["project"].id
    return pattern.format(**values)


async def _arguments(request: web.Request, route: Route, read_values: ReadValues) -> dict[str, Any]:
    """Return everything that a handler may take, by name. Raise 400, and the errors of the route's rule."""
    arguments: dict[str, Any] = {
        "request": request,
        "services": context.services(request),
        "actor": caller_or_anonymous(request),
    }
    if route.parameters is not None:
        arguments["params"] = await _parsed(request, route, route.parameters, read_values)
    if isinstance(route.access, ResourceAccess):
        params: Any = arguments.get("params") or await _parsed(request, route, ById, read_values)
        resource = await route.access.find(request, params.id)
        arguments |= dict.fromkeys(_RESOURCES, resource)
    return arguments


async def _parsed(
    request: web.Request, route: Route, parameters: type[ParametersT], read_values: ReadValues
) -> ParametersT:
    values = await read_values()
    params = structure(values, parameters)
    if route.ignores:
        unsupported.check_ignored(request, values, route.ignores)
    return params


def caller(request: web.Request) -> Actor:
    """Return the actor with whose rights the request is made; only for routes that need credentials."""
    return request[CALLER]


def caller_or_anonymous(request: web.Request) -> Actor | auth.Anonymous:
    """Return the actor with whose rights the request is made, for routes that also allow callers without
    credentials."""
    actor: Actor | auth.Anonymous | None = request.get(CALLER)
    return auth.Anonymous(address=request.remote) if actor is None else actor


async def _caller(request: web.Request, route: Route) -> Actor | None:
    """Return the caller, or None without credentials if the route allows that."""
    services = context.services(request)
    of_job, reads_body = route.access.kind == "job", not route.streams_body
    actor = await auth.authenticate(
        request, services, takes_job_token=of_job or route.takes_job_token, reads_body=reads_body
    )
    if actor is None and route.access.anonymous:
        await auth.refuse_sudo(request, reads_body=reads_body)
        return None
    if actor is None:
        raise unauthorized()
    request[CALLER] = actor  # the log names the caller of refused requests too
    if actor.rate is not None and not (route.never_throttled and actor.admin):
        services[THROTTLE].count(actor.user_id, actor.rate, services.now)
    if of_job and actor.job_id is None:
        raise ApiError(404, {"message": "404 Job Not Found"})
    if actor.job_id is None and not actor.scopes.intersection(route.scopes):
        raise insufficient_scope(" ".join(route.scopes))
    acting = await auth.acting_caller(request, services, actor, reads_body=reads_body)
    if route.access.kind == "administrator" and not acting.admin:
        raise forbidden()
    auth.rely_on_caller(services, acting)
    return acting
