"""The table of routes: their declarations, how a path finds its route, and extra slashes."""

import re
from itertools import product
from urllib.parse import quote

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from aiohttp.web_urldispatcher import UrlDispatcher, UrlMappingMatchInfo
from hypothesis import given
from hypothesis import strategies as st

from api_server.api import ROUTES as API
from api_server.namespaces.access import ProjectAccess, project
from api_server.namespaces.resources import Feature, Group
from api_server.web.auth import Actor
from api_server.web.errors import insufficient_scope
from api_server.web.route_index import RouteIndex
from api_server.web.routes import SIGNED_IN_OR_NOT, Access, ById, Handler, Role, Route, Routes
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.route_table import ROUTES, in_parts, name_of, path_of, required

#: Routes that take no personal access token, and what they check themselves.
OPEN_TO_ANYONE = {
    "POST /runners": "a registration token", "POST /runners/verify": "the runner's token",
    "POST /runners/reset_authentication_token": "the runner's token",
    "DELETE /runners": "the runner's token", "DELETE /runners/managers": "the runner's token",
    "POST /jobs/request": "the runner's token", "PATCH /jobs/{id}/trace": "the job's token",
    "PUT /jobs/{id}": "the job's token", "POST /jobs/{id}/artifacts/authorize": "the job's token",
    "POST /jobs/{id}/artifacts": "the job's token", "GET /jobs/{id}/artifacts": "the job's token",
    "POST /projects/{id}/trigger/pipeline": "the trigger's token, or a job's",
    "POST /projects/{id}/ref/{ref:.+}/trigger/pipeline": "the trigger's token, or a job's",
}  # fmt: skip

#: Routes without any secrets.
OPEN_TO_EVERYBODY = {"GET /openapi.json"}

#: Routes that show anonymous callers public entities, and others more.
OPEN_TO_STRANGERS = {"GET /groups", "GET /projects"}

#: The lowest role for these routes, which their handlers require beyond the route's own rule.
ASKS_FOR_MORE = {
    "DELETE /groups/{id}/members/{user_id}": Role.OWNER,
    "DELETE /projects/{id}/members/{user_id}": Role.MAINTAINER,
}

#: The feature of the project that has to be open to the caller, by the beginning of the route's path below the
#: project; the longest match counts. A new path has to be added here.
OPENS: dict[str, Feature | None] = {
    "": None, "/access_tokens": None, "/archive": None, "/artifacts": "builds", "/audit_events": None,
    "/ci/lint": "builds", "/cluster_agents": None, "/external_status_checks": None, "/invitations": None,
    "/issues": None, "/job_token_scope": None, "/jobs": "builds", "/members": None, "/merge_requests": "repository",
    "/merge_requests/{merge_request_iid}/pipelines": "builds", "/pipeline": "builds",
    "/pipeline_schedules": "builds", "/pipelines": "builds", "/protected_branches": None, "/protected_tags": None,
    "/releases": "repository", "/remote_mirrors": None, "/repository": "repository",
    "/repository/commits/{sha}/statuses": "builds", "/runners": None, "/statuses": "builds", "/transfer": None,
    "/triggers": "builds", "/unarchive": None, "/users": None, "/variables": None,
}  # fmt: skip

SECURED = [route for route in ROUTES if route.access.kind not in ("anyone", "job")]
OF_SOURCES = [route for route in ROUTES if route.access.kind in ("project", "group")]
OF_PROJECTS = [(route, route.access) for route in ROUTES if isinstance(route.access, ProjectAccess)]
ROLES = [role for role in Role if role >= Role.GUEST]
FORBIDDEN = (403, {"message": "403 Forbidden"})


def test_no_two_routes_are_the_same() -> None:
    assert len({name_of(route) for route in ROUTES}) == len(ROUTES)


def test_what_is_open_to_anyone_is_known_by_name() -> None:
    assert {name_of(route) for route in ROUTES if route.access.kind == "anyone"} == {
        *OPEN_TO_ANYONE,
        *OPEN_TO_EVERYBODY,
    }
    assert {name_of(route) for route in ROUTES if route.access.anonymous} == OPEN_TO_STRANGERS


async def test_what_checks_its_own_kind_of_token_refuses_to_go_without(forge: Forge) -> None:
    deviations = Deviations()
    for route in ROUTES:
        if name_of(route) in OPEN_TO_ANYONE:
            with deviations.of(name_of(route)):
                answer = await forge.anonymous.request(route.method, path_of(route, {}), json={})
                assert answer.status in (400, 401, 403), answer
    assert not deviations, deviations.report


@in_parts(SECURED, 2)
async def test_without_a_token_the_answer_is_401(forge: Forge, routes: list[Route]) -> None:
    deviations = Deviations()
    for route in routes:
        with deviations.of(name_of(route)):
            client = (
                Client(forge.session, forge.base, "no-such-token")
                if route.access.anonymous
                else forge.anonymous
            )
            answer = await client.request(route.method, path_of(route, {}), json={})
            assert (answer.status, answer.body) == (401, {"message": "401 Unauthorized"})
    assert not deviations, deviations.report


@in_parts(SECURED, 2)
async def test_a_token_needs_one_of_the_routes_scopes(forge: Forge, routes: list[Route]) -> None:
    user, deviations = await forge.user(scopes=("write_repository",)), Deviations()
    for route in routes:
        if "write_repository" not in route.scopes:
            with deviations.of(name_of(route)):
                answer = await user.api.request(route.method, path_of(route, {}), json={})
                assert (answer.status, answer.body) == (
                    403,
                    insufficient_scope(" ".join(route.scopes)).body,
                )
    assert not deviations, deviations.report


async def test_administrators_only(forge: Forge) -> None:
    user, deviations = await forge.user(), Deviations()
    for route in SECURED:
        if route.access.kind == "administrator":
            with deviations.of(name_of(route)):
                answer = await user.api.request(route.method, path_of(route, {}), json=required(route))
                assert (answer.status, answer.body) == FORBIDDEN
    assert not deviations, deviations.report


@in_parts(OF_SOURCES, 4)
async def test_what_the_caller_cannot_see_is_not_there(forge: Forge, routes: list[Route]) -> None:
    stranger, sources = await forge.user("stranger"), Sources(forge)
    deviations = Deviations()
    for route in routes:
        with deviations.of(name_of(route)):
            hidden = await sources.call(stranger, route)
            missing = await _call(stranger, route, 999_999_999)
            thing = "Project" if route.access.kind == "project" else "Group"
            assert (hidden.status, hidden.body) == (404, {"message": f"404 {thing} Not Found"})
            assert (missing.status, missing.body) == (hidden.status, hidden.body)
    assert not deviations, deviations.report


@pytest.fixture(scope="module")
async def people(forge: Forge) -> dict[Role, Person]:
    """Users without any role yet, by the role that they will get."""
    return {role: await forge.user(role.name.lower()) for role in ROLES}


def _least(route: Route) -> Role:
    return ASKS_FOR_MORE.get(name_of(route), route.access.role)


@in_parts([route for route in OF_SOURCES if _least(route) > Role.GUEST], 8)
async def test_a_role_below_the_least_one_is_refused_and_the_least_one_is_not(
    forge: Forge, people: dict[Role, Person], routes: list[Route]
) -> None:
    sources, deviations = Sources(forge), Deviations()
    for route in routes:
        least = _least(route)
        below = max(role for role in ROLES if role < least)
        for role in (below, least):
            await sources.let_in(route, role, people[role])
        with deviations.of(name_of(route)):
            refused = await sources.call(people[below], route)
            assert (refused.status, refused.body) == FORBIDDEN
            allowed = await sources.call(people[least], route)
            assert allowed.status < 500, allowed
            assert (allowed.status, allowed.body) != FORBIDDEN
    assert not deviations, deviations.report


@attrs.define
class Sources:
    """A private project and a private group for a test. If a route has changed one, the next route gets a new one."""

    forge: Forge
    _ids: dict[str, int] = attrs.field(factory=dict)
    _members: set[tuple[str, Role]] = attrs.field(factory=set)

    async def id_for(self, route: Route) -> int:
        kind = route.access.kind
        if kind not in self._ids:
            made = await (
                self.forge.project() if kind == "project" else self.forge.group(visibility="private")
            )
            self._ids[kind] = made["id"]
        return self._ids[kind]

    async def let_in(self, route: Route, role: Role, person: Person) -> None:
        """Give the person this role in the route's source. There is one person of each role."""
        kind, source_id = route.access.kind, await self.id_for(route)
        if (kind, role) not in self._members:
            await self.forge.member(f"{kind}s", source_id, person, role)
            self._members.add((kind, role))

    async def call(self, person: Person, route: Route) -> Answer:
        kind = route.access.kind
        answer = await _call(person, route, await self.id_for(route))
        if answer.status < 400 and route.method != "GET":
            del self._ids[kind]
            self._members = {member for member in self._members if member[0] != kind}
        return answer


async def _call(person: Person, route: Route, source_id: int) -> Answer:
    values = {"id": source_id, "user_id": 999_999_999}
    return await person.api.request(route.method, path_of(route, values), json=required(route))


def test_the_feature_that_a_route_opens_is_declared() -> None:
    """A new path has to be added to OPENS."""
    declared, expected = {}, {}
    for route, access in OF_PROJECTS:
        rest = re.sub(r"^/projects/{id}", "", route.path)
        known = [path for path in OPENS if rest == path or (path and rest.startswith(f"{path}/"))]
        declared[name_of(route)] = access.feature
        expected[name_of(route)] = OPENS[max(known, key=len)] if known else "not in OPENS"
    assert declared == expected


async def test_what_is_closed_is_closed_to_those_who_may_call_the_route(forge: Forge) -> None:
    """The project's owner may do everything, but not in a disabled feature."""
    owner, deviations = await forge.user("owner"), Deviations()
    closed = {
        feature: (await forge.project(owner, **{f"{feature}_access_level": "disabled"}))["id"]
        for feature in {access.feature for _, access in OF_PROJECTS if access.feature is not None}
    }
    for route, access in OF_PROJECTS:
        if access.feature is not None:
            with deviations.of(name_of(route)):
                answer = await _call(owner, route, closed[access.feature])
                assert (answer.status, answer.body) == FORBIDDEN
    assert not deviations, deviations.report


async def test_what_is_closed_to_guests_is_closed(forge: Forge) -> None:
    """Guests of a private project see no files, and no jobs if these are not public."""
    guest, deviations = await forge.user("guest"), Deviations()
    project = await forge.project(members={Role.GUEST: guest}, public_jobs=False)
    for route, access in OF_PROJECTS:
        if access.feature is not None and access.role < Role.REPORTER:
            with deviations.of(name_of(route)):
                answer = await _call(guest, route, project["id"])
                assert (answer.status, answer.body) == FORBIDDEN
    assert not deviations, deviations.report


async def _nothing(_request: web.Request) -> web.Response:
    return web.Response()


def _router() -> UrlDispatcher:
    """Return a router with all routes of the API, without its prefix."""
    api, app = web.Application(), web.Application()
    for routes in API:
        routes.register(api)
    app.add_subapp("/api/v4", api)
    return api.router


ROUTER = _router()
INDEX = RouteIndex(ROUTER)


async def test_the_whole_application_is_searched_alike(forge: Forge) -> None:
    """This applies to pages, git, files and the root folder too. Only the first segments of a deep path are
    searched."""
    router = forge.server.app.router
    for method, path in product(("GET", "POST", "PROPFIND"), PATHS):
        request = make_mocked_request(method, path)
        found = await router.resolve(request)
        assert _told(found) == _told(await UrlDispatcher.resolve(router, request)), path


PATHS = (
    *(
        "/",
        "//",
        "/-/sign_in",
        "/-/sign_in/",
        "/-/assets/pages.css",
        "/-/nothing",
        "/admin",
        "/api",
        "/api/v4/version",
    ),
    *(
        "/alice",
        "/alice/app",
        "/alice/app.git",
        "/alice/app.git/info/refs",
        "/alice/app/info/refs",
        "/groups/a/b",
    ),
    *(
        "/alice/app/-/raw/main/a",
        "/alice/app/raw/main/a",
        "/alice/app/-/archive/main/a.zip",
        "/alice/app/-/jobs/1",
    ),
    *("/alice/app.git/info/lfs/objects/batch", "/-/emails/1/a", "/-/liveness", "/a" * 3000),
)


def _told(found: UrlMappingMatchInfo) -> object:
    if found.http_exception is None:
        return id(found.route), dict(found)
    return found.http_exception.status, getattr(found.http_exception, "allowed_methods", None)


#: Copying it costs a hundredth of mocking a new request.
REQUEST = make_mocked_request("GET", "/")


async def _assert_alike(method: str, path: str) -> None:
    request = REQUEST.clone(method=method, rel_url=path)
    assert _told(await INDEX.resolve(request)) == _told(await UrlDispatcher.resolve(ROUTER, request))


def _filled(path: str, value: str) -> str:
    return "/api/v4" + re.sub(r"{\w+(?::[^{}]*(?:{[^{}]*}[^{}]*)*)?}", lambda _m: value, path)


@pytest.mark.parametrize(
    "value", ["7", "group%2Fapp", "group%2Fsub%2Fapp", "a.b-c_d", "jobs", "a/b", "%7Bid%7D", "%25"]
)
async def test_every_route_is_found_as_before(value: str) -> None:
    for route in ROUTES:
        for method in (route.method, "HEAD", "DELETE", "OPTIONS", "PROPFIND"):
            await _assert_alike(method, _filled(route.path, value))


async def test_every_route_is_refused_as_before_where_its_path_is_another_one() -> None:
    for route in ROUTES:
        path = _filled(route.path, "7")
        for other in (f"{path}/", f"{path}/x", path.replace("/", "//"), path.rpartition("/")[0], path[:-1]):
            await _assert_alike(route.method, other)


async def test_few_routes_are_tried() -> None:
    """There are hundreds of routes."""
    await INDEX.resolve(make_mocked_request("GET", "/api/v4/version"))
    for route in ROUTES:
        path = _filled(route.path, "7")
        tried = [
            resource
            for beginning, continued in INDEX._beginnings.items()
            if path == beginning or path.startswith(f"{beginning}/")
            for resource in continued.candidates(path[len(beginning) :])
        ]
        assert len(tried) <= 10, path


_SEGMENTS = st.sampled_from(sorted({part for route in ROUTES for part in route.path.split("/")} - {""}))
_ODD = st.sampled_from(["", ".", "..", "7", "%2F", "a%2Fb", "%25", "%2f", "{id}", "\u00e9", "*", "-", " "])


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]),
    segments=st.lists(_SEGMENTS | _ODD | st.text(min_size=1, max_size=4), max_size=7),
)
async def test_any_path_is_found_or_refused_as_before(method: str, segments: list[str]) -> None:
    await _assert_alike(method, "/api/v4/" + quote("/".join(segments), safe="/%{}*"))


#: A path, and its equivalent; `None` if there is none.
SLASHED_PATHS: dict[str, str | None] = {
    "/api/v4//user": "/api/v4/user", "/api/v4/user/": "/api/v4/user", "/api/v4/user//": "/api/v4/user",
    "//api/v4/version": "/api/v4/version", "/api//v4/version": "/api/v4/version",
    "///api///v4///version///": "/api/v4/version", "/api/v4/projects/": "/api/v4/projects",
    "/api/v4/projects/{id}/": "/api/v4/projects/{id}", "/api/v4/projects//{id}": "/api/v4/projects/{id}",
    "/api/v4/projects/{id}//jobs/": "/api/v4/projects/{id}/jobs",
    "/api/v4/projects/{path}/": "/api/v4/projects/{path}",
    "/api/v4//projects/{path}//repository//branches/main/": "/api/v4/projects/{path}/repository/branches/main",
    "/api/v4/projects/{id}/repository/tree/?ref=main": "/api/v4/projects/{id}/repository/tree?ref=main",
    "/api/v4/projects//jobs": None, "/api/v4/projects/{id}/repository/branches//protect": None,
    "/api/v4/groups//members": None, "/api/v4/nothing/": None, "/api/v4//nothing": None, "/api/v4/": None,
    "/api/v4": None, "/api//v5/version": None, "/api/v4version/": None,
}  # fmt: skip


async def test_they_count_as_one_and_as_none(forge: Forge) -> None:
    project = await forge.project(initialize_with_readme=True)
    full_path = quote(project["path_with_namespace"], safe="")
    deviations = Deviations()
    for path, plain in SLASHED_PATHS.items():
        asked, meant = (
            f"{forge.base}{text.format(id=project['id'], path=full_path)}" if text else None
            for text in (path, plain)
        )
        answer = await forge.root.get(asked or "")
        with deviations.of(path):
            if meant is None:
                assert answer.status == 404
            else:
                right = await forge.root.get(meant)
                assert (answer.status, answer.body) == (200, right.body)
    assert not deviations, deviations.report


async def test_slashes_within_an_encoded_id_are_its_own(forge: Forge) -> None:
    project = await forge.project()
    for path in (project["path_with_namespace"].replace("/", "//"), project["path_with_namespace"] + "/"):
        answer = await forge.root.get(f"/projects/{quote(path, safe='')}")
        assert (answer.status, answer.body) == (404, {"message": "404 Project Not Found"})


async def test_writes_are_what_they_say(forge: Forge) -> None:
    project = await forge.project()
    changed = await forge.root.put(f"/projects/{project['id']}/", {"description": "a"})
    assert (changed.status, changed.body["description"]) == (200, "a")
    assert (await forge.root.delete(f"/projects/{project['id']}/variables/")).status == 405
    assert (await forge.root.post("/user/", {})).status == 405


async def test_a_missing_parameter_leads_to_no_other_resource(forge: Forge) -> None:
    resolve = forge.server.app.router.resolve
    request = make_mocked_request("GET", "/")

    async def found(method: str, path: str) -> UrlMappingMatchInfo:
        return await resolve(request.clone(method=method, rel_url=f"/api/v4{path}"))

    deviations = Deviations()
    for route in ROUTES:
        parts = re.sub(r"{(\w+)(?::[^{}]*(?:{[^{}]*}[^{}]*)*)?}", r"{\1}", route.path).split("/")
        for number, part in enumerate(parts[:-1]):
            if part.startswith("{"):
                filled = ["7" if one.startswith("{") else one for one in parts]
                path = "/".join([*filled[:number], "", *filled[number + 1 :]])
                with deviations.of(f"{route.method} {path}"):
                    assert (await found(route.method, path)).http_exception is not None
    assert not deviations, deviations.report


async def test_moved_projects_are_found_behind_them(forge: Forge) -> None:
    project = await forge.project()
    old = quote(project["path_with_namespace"], safe="")
    await forge.root.put(f"/projects/{project['id']}", {"path": f"{project['path']}-moved"})
    answer = await forge.root.get(f"//projects//{old}//jobs/?page=1")
    assert (answer.status, answer.headers["Location"]) == (
        301,
        f"{forge.base}/api/v4/projects/{project['id']}/jobs?page=1",
    )


async def _takes_more(database: object) -> web.Response:
    return web.Response()


async def _takes_an_actor(actor: Actor) -> web.Response:
    return web.Response()


async def _takes_a_group(group: Group) -> web.Response:
    return web.Response()


async def _takes_less(params: ById) -> web.Response:
    return web.Response()


@pytest.mark.parametrize(
    ("path", "access", "handler", "problem"),
    [
        ("/a", SIGNED_IN_OR_NOT, _takes_more, "a handler takes request, services, actor, params and one of"),
        ("/a", SIGNED_IN_OR_NOT, _takes_an_actor, "who asks may be Anonymous"),
        ("/projects/{id}", project(), _takes_a_group, "its rule does not find a"),
        ("/a/{id}/{more}", SIGNED_IN_OR_NOT, _takes_less, "ById has no more"),
    ],
)
def test_a_handler_that_does_not_fit_its_route_is_refused(
    path: str, access: Access, handler: Handler, problem: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(f'{path}: {problem}')}"):
        Routes().get(path, access=access, answers="204")(handler)
