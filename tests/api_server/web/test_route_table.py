"""The whole route table: each route has a rule, and each handler applies it."""

import re

import pytest

from api_server.namespaces.projects.access import ProjectAccess
from api_server.namespaces.projects.project import Feature
from api_server.web.access import Role
from api_server.web.errors import insufficient_scope
from api_server.web.routes import Route
from tests.support.forge import Forge, Person
from tests.support.route_table import ROUTES, name_of, path_of, required

#: Routes that take no personal access token, and what they check themselves.
OPEN_TO_ANYONE = {
    "POST /runners": "a registration token",
    "POST /runners/verify": "the runner's token",
    "POST /runners/reset_authentication_token": "the runner's token",
    "DELETE /runners": "the runner's token",
    "DELETE /runners/managers": "the runner's token",
    "POST /jobs/request": "the runner's token",
    "PATCH /jobs/{id}/trace": "the job's token",
    "PUT /jobs/{id}": "the job's token",
    "POST /jobs/{id}/artifacts/authorize": "the job's token",
    "POST /jobs/{id}/artifacts": "the job's token",
    "GET /jobs/{id}/artifacts": "the job's token",
    "POST /projects/{id}/trigger/pipeline": "the trigger's token, or a job's",
    "POST /projects/{id}/ref/{ref:.+}/trigger/pipeline": "the trigger's token, or a job's",
}

#: Those that have nothing to hide.
OPEN_TO_EVERYBODY = {"GET /openapi.json"}

#: The least role that may call these, which their handlers ask for beside the route's own rule.
ASKS_FOR_MORE = {
    "DELETE /groups/{id}/members/{user_id}": Role.OWNER,
    "DELETE /projects/{id}/members/{user_id}": Role.MAINTAINER,
}

#: The feature of the project that has to be open to the caller, by how the route's path goes on behind the project;
#: the longest beginning counts. A path that is new has to be entered here.
OPENS: dict[str, Feature | None] = {
    "": None,
    "/access_tokens": None,
    "/archive": None,
    "/artifacts": "builds",
    "/audit_events": None,
    "/ci/lint": "builds",
    "/cluster_agents": None,
    "/external_status_checks": None,
    "/invitations": None,
    "/issues": None,
    "/job_token_scope": None,
    "/jobs": "builds",
    "/members": None,
    "/merge_requests": "repository",
    "/merge_requests/{merge_request_iid}/pipelines": "builds",
    "/pipeline": "builds",
    "/pipeline_schedules": "builds",
    "/pipelines": "builds",
    "/protected_branches": None,
    "/protected_tags": None,
    "/releases": "repository",
    "/remote_mirrors": None,
    "/repository": "repository",
    "/repository/commits/{sha}/statuses": "builds",
    "/runners": None,
    "/statuses": "builds",
    "/transfer": None,
    "/triggers": "builds",
    "/unarchive": None,
    "/users": None,
    "/variables": None,
}

SECURED = [route for route in ROUTES if route.access.who not in ("anyone", "job")]
OF_SOURCES = [route for route in ROUTES if route.access.who in ("project", "group")]


def _table(routes: list[Route]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("route", routes, ids=name_of)


def test_no_two_routes_are_the_same() -> None:
    assert len({name_of(route) for route in ROUTES}) == len(ROUTES)


def test_what_is_open_to_anyone_is_known_by_name() -> None:
    assert {name_of(route) for route in ROUTES if route.access.who == "anyone"} == {
        *OPEN_TO_ANYONE,
        *OPEN_TO_EVERYBODY,
    }


@_table([route for route in ROUTES if name_of(route) in OPEN_TO_ANYONE])
async def test_what_checks_its_own_kind_of_token_refuses_to_go_without(forge: Forge, route: Route) -> None:
    answer = await forge.anonymous.request(route.method, path_of(route, {}), json={})
    assert answer.status in (400, 401, 403), answer


@_table(SECURED)
async def test_without_a_token_the_answer_is_401(forge: Forge, route: Route) -> None:
    answer = await forge.anonymous.request(route.method, path_of(route, {}), json={})
    assert (answer.status, answer.body) == (401, {"message": "401 Unauthorized"})


@_table([route for route in SECURED if "write_repository" not in route.scopes])
async def test_a_token_needs_one_of_the_routes_scopes(forge: Forge, route: Route) -> None:
    user = await forge.user(scopes=("write_repository",))
    answer = await user.api.request(route.method, path_of(route, {}), json={})
    assert (answer.status, answer.body) == (403, insufficient_scope(" ".join(route.scopes)).body)


@_table([route for route in SECURED if route.access.who == "administrator"])
async def test_administrators_only(forge: Forge, route: Route) -> None:
    user = await forge.user()
    answer = await user.api.request(route.method, path_of(route, {}), json=required(route))
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


@_table(OF_SOURCES)
async def test_what_the_caller_cannot_see_is_not_there(forge: Forge, route: Route) -> None:
    stranger = await forge.user("stranger")
    source_id = await _source(forge, route)
    answer = await _call(stranger, route, source_id)
    missing = await _call(stranger, route, 999_999_999)
    thing = "Project" if route.access.who == "project" else "Group"
    assert (answer.status, answer.body) == (404, {"message": f"404 {thing} Not Found"})
    assert (missing.status, missing.body) == (answer.status, answer.body)


@_table([route for route in OF_SOURCES if ASKS_FOR_MORE.get(name_of(route), route.access.role) > Role.GUEST])
async def test_a_role_below_the_least_one_is_refused_and_the_least_one_is_not(
    forge: Forge, route: Route
) -> None:
    least = ASKS_FOR_MORE.get(name_of(route), route.access.role)
    below = max(role for role in Role if role < least and role != Role.MINIMAL_ACCESS)
    source_id = await _source(forge, route)
    weak, strong = await forge.user(below.name.lower()), await forge.user(least.name.lower())
    kind = "projects" if route.access.who == "project" else "groups"
    await forge.member(kind, source_id, weak, below)
    await forge.member(kind, source_id, strong, least)
    refused = await _call(weak, route, source_id)
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    allowed = await _call(strong, route, source_id)
    assert allowed.status < 500, allowed
    assert (allowed.status, allowed.body) != (403, {"message": "403 Forbidden"})


async def _source(forge: Forge, route: Route) -> int:
    """A private project or group of the test's own."""
    if route.access.who == "project":
        return int((await forge.project())["id"])
    return int((await forge.group(visibility="private"))["id"])


async def _call(person: Person, route: Route, source_id: int):
    values = {"id": source_id, "user_id": 999_999_999}
    return await person.api.request(route.method, path_of(route, values), json=required(route))


OF_PROJECTS = [route for route in ROUTES if isinstance(route.access, ProjectAccess)]


@_table(OF_PROJECTS)
def test_the_feature_that_a_route_opens_is_declared(route: Route) -> None:
    assert isinstance(route.access, ProjectAccess)
    rest = re.sub(r"^/projects/{id}", "", route.path)
    known = [path for path in OPENS if rest == path or (path and rest.startswith(f"{path}/"))]
    assert known, "a new path: enter it in OPENS"
    assert route.access.opens == OPENS[max(known, key=len)]


@_table([route for route in OF_PROJECTS if route.access.opens is not None])
async def test_what_is_closed_is_closed_to_those_who_may_call_the_route(forge: Forge, route: Route) -> None:
    """The project's owner may do all there is, but not in a feature that is switched off."""
    owner = await forge.user("owner")
    project = await forge.project(owner, **{f"{route.access.opens}_access_level": "disabled"})
    answer = await _call(owner, route, project["id"])
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


@_table(
    [route for route in OF_PROJECTS if route.access.opens is not None and route.access.role < Role.REPORTER]
)
async def test_what_is_closed_to_guests_is_closed(forge: Forge, route: Route) -> None:
    """Guests of a private project see no files, and no jobs where these are not for everybody."""
    guest = await forge.user("guest")
    project = await forge.project(await forge.user("owner"), members={Role.GUEST: guest}, public_jobs=False)
    answer = await _call(guest, route, project["id"])
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})
