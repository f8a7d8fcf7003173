"""Routes with their declarations: who may call, with which scopes and parameters, in which tier.

A handler is `async def handler(request, services: Services, actor: Actor, params: Parameters, project: Project)` and
takes what it needs of that, by name. Its annotations are part of the declaration: `services` are the server's parts as
this request uses them, `actor` is who asks (`Actor | Anonymous` if the route is for strangers too), `params` is given
the request's parameters as that class (`web/params.py`), `project` (or `group`, or `resource` where it may be either)
what the path's `{id}` names, to which the route's rule has been applied. What does not fit together fails when the
module is imported."""

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
    """Access levels of members."""

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
        """As people read it: `Minimal Access`."""
        return self.name.replace("_", " ").title()


@attrs.frozen
class Access:
    """A route's rule about its caller."""

    who: Literal["anyone", "signed_in", "administrator", "job", "project", "group"]
    #: Those without credentials may call too; credentials that are sent have to be valid.
    strangers: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class ResourceAccess(Access, abc.ABC):
    """A rule about what `{id}` of the route's path names: callers need at least `role` there; without one, all who can
    see it may call."""

    role: Role = Role.NO_ACCESS

    #: What the rule finds.
    finds: ClassVar[type]

    @abc.abstractmethod
    async def find(self, request: web.Request, reference: str) -> Any:
        """What has that id or full path. Raises 404 where the caller cannot see it, and 403."""


#: No credentials are needed; the route answers everybody, or checks credentials of its own kind (runner tokens).
ANYONE = Access("anyone")
SIGNED_IN = Access("signed_in")
SIGNED_IN_OR_NOT = Access("signed_in", strangers=True)
ADMINISTRATOR = Access("administrator")
#: A running job's token.
JOB = Access("job")


_TIER_ORDER: tuple[Tier, ...] = get_args(Tier)


@attrs.frozen
class License:
    """A capability as refusals name it, with the least tier and the offerings that have it."""

    name: str
    tier: Tier = "free"
    offerings: tuple[Offering, ...] = get_args(Offering)


def require_license(required: License, settings: Settings) -> None:
    """Raise 403, which says what is missing, if this server's tier or offering does not have `required`."""
    if _TIER_ORDER.index(settings.tier) < _TIER_ORDER.index(required.tier):
        raise forbidden(f"{required.name} is not available on the {settings.tier} tier")
    if settings.offering not in required.offerings:
        raise forbidden(f"{required.name} is not available on the {settings.offering} offering")


Handler = Callable[..., Awaitable[web.StreamResponse]]
HandlerT = TypeVar("HandlerT", bound=Handler)
#: Gives what a request sends, by name.
Sent = Callable[[], Awaitable[dict[str, Any]]]
ParametersT = TypeVar("ParametersT")

CALLER = web.RequestKey("caller", Actor)
#: A handler's names for what the path's `{id}` names.
_FOUND = ("project", "group", "resource")
_IN_PATH = re.compile(r"{(\w+)")


class Declaration(TypedDict, total=False):
    """What a route says of itself beside its path and its handler."""

    access: Required[Access]
    #: What the route answers where it does not refuse: `200 [Job]` is a status and a body, further ones stand behind
    #: commas. A body is an entity of `description/entities.toml`, whose first lines say how types are written, a list
    #: of them, any of several | of them (the larger first: clients take the first that fits), `text`, or `bytes` of
    #: whatever type; a status without a body has none.
    answers: Required[str]
    license: License
    scopes: tuple[str, ...]
    #: Running jobs' tokens are taken too, with their users' rights where the project lets them in.
    takes_job_token: bool
    #: Administrators may ask it however often they have asked already.
    never_throttled: bool
    #: The media type of a body of bytes that the handler streams; parameters are in the path and the query only then.
    streams_body: str
    #: Whose rights it takes away: the name of that, with parameters' names in braces (`state/preconditions.py`).
    revokes: str


@attrs.frozen(kw_only=True)
class Route:
    """One endpoint as declared."""

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
    #: The parameters that GitLab's route has and this one has no use for.
    ignores: tuple[unsupported.Ignored, ...] = ()
    #: The attrs class of the handler's `params`.
    parameters: type | None = None
    #: What the handler takes, by name.
    takes: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class ById:
    """The parameters of a route that needs nothing but what its path names."""

    id: str


#: The routes of each handler.
_ROUTES: dict[Handler, list[Route]] = {}


class Routes:
    """The routes of one resource, in the order in which they are tried."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, **declared: Unpack[Declaration]) -> Callable[[HandlerT], HandlerT]:
        """Also answers HEAD."""
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
            taken = _taken(handler, path, declared["access"])
            if declared.get("takes_job_token") and declared["access"].who != "project":
                raise TypeError(f"{path}: only projects say which jobs they let in")
            ignored = unsupported.ignored_parameters().get(f"{method} {path}", ())
            declaration: dict[str, Any] = {"scopes": scopes, "ignores": ignored, **declared, **taken}
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


def _taken(handler: Handler, path: str, access: Access) -> dict[str, Any]:
    """What the handler takes. Raises TypeError where that does not fit the path and the rule."""
    names = frozenset(inspect.signature(handler).parameters)
    if unknown := names - {"request", "services", "actor", "params", *_FOUND}:
        raise TypeError(
            f"{path}: a handler takes request, services, actor, params and one of {_FOUND}, not {unknown}"
        )
    types_of = typing.get_type_hints(handler)
    if types_of.get("actor") is Actor and (access.strangers or access.who == "anyone"):
        raise TypeError(f"{path}: who asks may be Anonymous")
    parameters = types_of.get("params")
    if parameters is not None:
        known = {public_name(field) for field in attrs.fields(parameters)}
        if missing := set(_IN_PATH.findall(path)) - known:
            raise TypeError(f"{path}: {parameters.__name__} has no {', '.join(sorted(missing))}")
    for name in names.intersection(_FOUND):
        if not (isinstance(access, ResourceAccess) and access.finds in _arms(types_of[name])):
            raise TypeError(f"{path}: its rule does not find a {types_of[name]}")
    return {"parameters": parameters, "takes": names}


def _arms(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def endpoint(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """`route`'s handler behind its declarations, in the order of decision D1: authentication, scopes, tier, parameters,
    what the path names and the caller's role there."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if route.access.who == "anyone":
            limit_body(request, context.services(request).settings.runner_body_limit)
            await auth.refuse_sudo(request, reads_body=not route.streams_body)
        elif (actor := await _caller(request, route)) is not None:
            request[CALLER] = actor

        async def sent() -> dict[str, Any]:
            return in_url(request) if route.streams_body else await merged(request)

        response = await _handled(request, route, sent)
        unsupported.tell(request, response)
        return response

    return answer


async def ask(
    request: web.Request, handler: Handler, resource: Any = None, /, **sent: Any
) -> web.StreamResponse:
    """What the API's route of `handler` answers the caller of `request`, who has sent it these parameters: for pages,
    which show what the API shows, and do what it does, by the same rules. `resource` is the project or the group that
    the route's `{id}` names, for handlers that have routes of both. Strangers may look at what the route's rule lets
    everybody see. Raises what the route raises."""
    route = _route_of(handler, resource)
    if resource is not None and isinstance(route.access, ResourceAccess):
        sent["id"] = str(resource.id)
    is_stranger = CALLER not in request
    if is_stranger:
        if route.method != "GET" or not (route.access.strangers or isinstance(route.access, ResourceAccess)):
            raise unauthorized()
        request[CALLER] = typing.cast("Actor", auth.Anonymous(address=request.remote))
    if route.access.who == "administrator" and not caller(request).admin:
        raise forbidden()

    async def given() -> dict[str, Any]:
        return sent

    try:
        return await _handled(request, route, given)
    finally:
        if is_stranger:  # for this question only
            del request[CALLER]


def _route_of(handler: Handler, resource: Any) -> Route:
    """The handler's route; of several the one whose rule finds what `resource` is."""
    fitting = (
        route
        for route in _ROUTES[handler]
        if isinstance(route.access, ResourceAccess) and route.access.finds is type(resource)
    )
    return next(fitting, _ROUTES[handler][-1])


async def _handled(request: web.Request, route: Route, sent: Sent) -> web.StreamResponse:
    """The handler's answer to a known caller, behind the rest of the route's declarations."""
    if route.license:
        require_license(route.license, context.services(request).settings)
    given = await _given(request, route, sent)
    if route.revokes is not None:
        context.services(request).revoke(_named(route.revokes, request, given))
    return await route.handler(**{name: given[name] for name in route.takes})


def _named(pattern: str, request: web.Request, given: dict[str, Any]) -> str:
    """What `pattern` names in this request: `{id}` of a project or a group is that of what was found, `{token_id}` that
    of the token that was sent."""
    values = {"token_id": caller(request).token_id}
    if "params" in given:
        values |= attrs.asdict(given["params"], recurse=False)
    if "project" in given:
        values["id"] = given["project"].id
    return pattern.format(**values)


async def _given(request: web.Request, route: Route, sent: Sent) -> dict[str, Any]:
    """What a handler may take, by name. Raises 400, and what the route's rule raises."""
    given: dict[str, Any] = {
        "request": request,
        "services": context.services(request),
        "actor": caller_or_stranger(request),
    }
    if route.parameters is not None:
        given["params"] = await _parsed(request, route, route.parameters, sent)
    if isinstance(route.access, ResourceAccess):
        named: Any = given.get("params") or await _parsed(request, route, ById, sent)
        resource = await route.access.find(request, named.id)
        given |= dict.fromkeys(_FOUND, resource)
    return given


async def _parsed(
    request: web.Request, route: Route, parameters: type[ParametersT], sent: Sent
) -> ParametersT:
    values = await sent()
    params = structure(values, parameters)
    if route.ignores:
        unsupported.look_at(request, values, route.ignores)
    return params


def caller(request: web.Request) -> Actor:
    """With whose rights the request is made; only for routes that need credentials."""
    return request[CALLER]


def caller_or_stranger(request: web.Request) -> Actor | auth.Anonymous:
    """With whose rights the request is made, for routes that strangers may call too."""
    actor: Actor | auth.Anonymous | None = request.get(CALLER)
    return auth.Anonymous(address=request.remote) if actor is None else actor


async def _caller(request: web.Request, route: Route) -> Actor | None:
    """None is a stranger, where the route is for them too."""
    services = context.services(request)
    of_job, reads_body = route.access.who == "job", not route.streams_body
    actor = await auth.authenticate(
        request, services, takes_job_token=of_job or route.takes_job_token, reads_body=reads_body
    )
    if actor is None and route.access.strangers:
        await auth.refuse_sudo(request, reads_body=reads_body)
        return None
    if actor is None:
        raise unauthorized()
    request[CALLER] = actor  # also of what is refused the log tells who asked
    if actor.rate is not None and not (route.never_throttled and actor.admin):
        services[THROTTLE].count(actor.user_id, actor.rate, services.now)
    if of_job and actor.job_id is None:
        raise ApiError(404, {"message": "404 Job Not Found"})
    if actor.job_id is None and not actor.scopes.intersection(route.scopes):
        raise insufficient_scope(" ".join(route.scopes))
    acting = await auth.acting_caller(request, services, actor, reads_body=reads_body)
    if route.access.who == "administrator" and not acting.admin:
        raise forbidden()
    auth.rely_on_caller(services, acting)
    return acting
