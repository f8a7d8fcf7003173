"""`sudo`, and rights that are taken away while a request is under way."""

import asyncio
from pathlib import Path
from typing import Any

import gitlab
import pytest
from structlog.testing import capture_logs

from api_server.web.routes import Role, Route
from tests.support.ci import ci_project, run
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Client, Forge, Person, new_name
from tests.support.furnished import furnish
from tests.support.git_client import git_url, push_files
from tests.support.rights import stopped_before_acting, stopped_while_acting
from tests.support.route_table import ROUTES, in_parts, name_of, path_of, required
from tests.support.takings import TAKINGS, Stage
from tests.support.waiting import until_somebody_waits

NOBODY = {"message": "404 User with ID or username 'nobody-at-all' Not Found"}
MUST_BE_ADMIN = {"message": "403 Forbidden - Must be admin to use sudo"}
NEEDS_TOKEN = {
    "message": "403 Forbidden - Must be authenticated using an OAuth or personal access token to use sudo"
}
INSUFFICIENT = {
    "error": "insufficient_scope",
    "error_description": "The request requires higher privileges than provided by the access token.",
    "scope": "sudo",
}
WAYS = ("header", "query", "form", "json")


@pytest.fixture(scope="module")
async def sudoer(forge: Forge) -> Person:
    """An administrator for these tests, in case a route carries the request out."""
    return await forge.user("sudoer", admin=True, scopes=("api", "sudo"))


async def ask(client: Client, route: Route, way: str, who: str = "nobody-at-all") -> Answer:
    """Send a valid request of the route that names `who` in this way."""
    path, values = path_of(route, {}), required(route)
    match way:
        case "header":
            return await client.request(route.method, path, json=values, headers={"Sudo": who})
        case "query":
            return await client.request(route.method, f"{path}?sudo={who}", json=values)
        case "form":
            return await client.request(route.method, path, data={"sudo": who})
        case _:
            return await client.request(route.method, path, json=values | {"sudo": who})


def _ways(route: Route) -> tuple[str, ...]:
    return WAYS[:2] if route.streams_body else WAYS


@in_parts(ROUTES, 10)
async def test_no_route_passes_it_over(sudoer: Person, routes: list[Route]) -> None:
    """Routes for users' tokens answer that this user is not found; routes for other tokens refuse the request."""
    expected = {"job": (404, {"message": "404 Job Not Found"}), "anyone": (403, NEEDS_TOKEN)}
    deviations = Deviations()
    for route in routes:
        for way in _ways(route):
            with deviations.of(f"{name_of(route)}, {way}"):
                answer = await ask(sudoer.api, route, way)
                assert (answer.status, answer.body) == expected.get(route.access.kind, (404, NOBODY))
    assert not deviations, deviations.report


async def test_the_request_is_made_with_the_named_users_rights(forge: Forge) -> None:
    alice = await forge.user("alice")
    own, roots = await forge.project(alice), await forge.project()
    for who in (alice.username, alice.username.upper(), str(alice.id)):
        headers = {"Sudo": who}
        shown = await forge.root.get("/user", headers=headers)
        assert (shown.status, shown.body) == (200, (await alice.api.get("/user")).body)
        assert (await forge.root.get(f"/projects/{own['id']}", headers=headers)).status == 200
        hidden = await forge.root.get(f"/projects/{roots['id']}", headers=headers)
        assert (hidden.status, hidden.body) == (404, {"message": "404 Project Not Found"})
        refused = await forge.root.post("/users", {}, headers=headers)
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    made = await forge.root.post("/projects", {"path": new_name("hers"), "sudo": alice.id})
    assert (made.status, made.body["creator_id"]) == (201, alice.id)
    both = await forge.root.get(f"/user?sudo={alice.id}", headers={"Sudo": "nobody-at-all"})
    assert both.body["id"] == alice.id, "the parameter counts"


async def test_another_administrators_rights_are_an_administrators(forge: Forge) -> None:
    other = await forge.user("admin", admin=True)
    private = await forge.project(await forge.user())
    answer = await forge.root.get(f"/projects/{private['id']}", headers={"Sudo": other.username})
    assert answer.status == 200
    await forge.root.post(f"/users/{other.id}/block")
    blocked = await forge.root.get("/user", headers={"Sudo": other.username})
    assert (blocked.status, blocked.body["state"]) == (200, "blocked"), "as at GitLab"


@pytest.mark.parametrize("way", WAYS)
async def test_who_may_not_is_refused_in_gitlabs_words(forge: Forge, way: str) -> None:
    alice, admin = await forge.user("alice"), await forge.user("admin", admin=True)
    sudo = Client(forge.session, forge.base, await forge.token(alice.id, ("api", "sudo")))
    reads = Client(forge.session, forge.base, await forge.token(admin.id, ("read_api", "sudo")))
    only = Client(forge.session, forge.base, await forge.token(admin.id, ("sudo",)))
    update, show = _route("PUT", "/users/{id}"), _route("GET", "/user")
    for client, route, expected in [
        (alice.api, show, (403, MUST_BE_ADMIN)),
        (sudo, show, (403, MUST_BE_ADMIN)),
        (admin.api, show, (403, INSUFFICIENT)),
        (reads, update, (403, INSUFFICIENT | {"scope": "api"})),
        (only, show, (403, INSUFFICIENT | {"scope": "api read_api read_user"})),
        (forge.anonymous, show, (401, {"message": "401 Unauthorized"})),
    ]:
        answer = await ask(client, route, way, alice.username)
        assert (answer.status, answer.body) == expected
    read = await ask(reads, show, way, alice.username)
    assert (read.status, read.body["id"]) == (200, alice.id)


def _route(method: str, path: str) -> Route:
    return next(route for route in ROUTES if name_of(route) == f"{method} {path}")


async def test_a_running_jobs_token_is_no_personal_access_token(forge: Forge) -> None:
    project = await ci_project(forge)
    token = await run(forge, (await project.job())["id"])
    for path in ("/job", "/job/allowed_agents", f"{project.url}/repository/branches"):
        headers = {"JOB-TOKEN": token}
        assert (await forge.anonymous.get(path, headers=headers)).status == 200
        answer = await forge.anonymous.get(path, headers=headers | {"Sudo": project.developer.username})
        assert (answer.status, answer.body) == (403, NEEDS_TOKEN)


@pytest.mark.parametrize(
    "who", ["0", "9" * 19, "9" * 400, "", " ", "a b", "a\\b", "'--", "x" * 300, "%", "b\xfcro", "1.5", "-1"]
)
async def test_whoever_is_nobody_is_not_found(forge: Forge, who: str) -> None:
    answer = await forge.root.post("/projects", {"path": new_name("none"), "sudo": who})
    assert (answer.status, answer.body) == (
        404,
        {"message": f"404 User with ID or username '{who}' Not Found"},
    )


async def test_two_names_are_nobodys_and_no_name_is_an_error(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    headers = [("PRIVATE-TOKEN", forge.root.token), ("Sudo", alice.username), ("Sudo", bob.username)]
    async with forge.session.get(f"{forge.base}/api/v4/user", headers=headers) as answer:
        assert answer.status == 404
    reader, writer = await asyncio.open_connection("127.0.0.1", forge.settings.port)
    head = (
        f"GET /api/v4/user HTTP/1.1\r\nHost: x\r\nConnection: close\r\nPRIVATE-TOKEN: {forge.root.token}\r\n"
    )
    writer.write(head.encode() + b"Sudo: \xff\r\n\r\n")
    raw = await reader.read()
    assert raw.startswith(b"HTTP/1.1 404 ")
    assert raw.endswith(b"404 User with ID or username '?' Not Found\"}")
    writer.close()
    for value in (True, [alice.username], {"id": alice.id}, 1.5):
        answer = await forge.root.request("GET", "/user", json={"sudo": value})
        assert (answer.status, answer.body) == (400, {"error": "sudo is invalid"})


async def test_the_token_stays_the_administrators(forge: Forge) -> None:
    """The person who acts as somebody else neither sees nor revokes the token with which she does so."""
    alice, admin = await forge.user("alice"), await forge.user("admin", admin=True)
    client = Client(forge.session, forge.base, await forge.token(admin.id, ("api", "sudo")))
    headers = {"Sudo": alice.username}
    for method, path in [("GET", "self"), ("DELETE", "self"), ("POST", "self/rotate")]:
        answer = await client.request(method, f"/personal_access_tokens/{path}", headers=headers)
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert (await client.get("/user")).body["id"] == admin.id


async def test_pages_lead_on_with_the_same_rights(forge: Forge) -> None:
    alice = await forge.user("alice")
    own = [(await forge.project(alice))["id"] for _ in range(3)]
    first = await forge.root.get(f"/projects?membership=true&per_page=2&sudo={alice.username}")
    rest = await forge.root.get(_next(first))
    assert [project["id"] for project in first.body + rest.body] == own[::-1]


def _next(answer: Answer) -> str:
    return next(link[1:].split(">")[0] for link in answer.headers["Link"].split(", ") if 'rel="next"' in link)


async def test_audit_events_and_the_log_name_both(forge: Forge) -> None:
    alice = await forge.user("alice")
    with capture_logs() as lines:
        made = await forge.root.post(
            "/projects", {"path": new_name("seen")}, headers={"Sudo": alice.username}
        )
        await forge.root.get(f"/projects/{made.body['id']}")
        await alice.api.get("/user", headers={"Sudo": "root"})
    told = [(line.get("user"), line.get("sudo")) for line in lines if line["event"] == "request"]
    assert told == [("root", alice.username), ("root", None), (alice.username, None)]
    (event,) = (await forge.root.get(f"/projects/{made.body['id']}/audit_events")).body
    assert (event["author_id"], event["details"]["author_name"]) == (alice.id, alice.username.title())
    assert event["details"]["impersonated_by"] == "root"
    assert event["details"]["impersonated_by_id"] == "1"
    await forge.root.put(f"/projects/{made.body['id']}", {"name": "Renamed", "sudo": "root"})
    event, _ = (await forge.root.get(f"/projects/{made.body['id']}/audit_events")).body
    assert event["author_id"] == 1
    assert not [name for name in event["details"] if name.startswith("impersonated")], "root is herself"


async def test_git_and_static_objects_know_nobody_else(forge: Forge, tmp_path: Path) -> None:
    """Otherwise a request that was meant to have fewer rights would have all of them."""
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "work", project, alice, {"a": "1"})
    root = Person(1, "root", "", forge.root)
    headers = {"Sudo": alice.username}
    path = project["path_with_namespace"]
    git = git_url(forge, path, root)
    for url in (
        f"{git}/info/refs?service=git-upload-pack",
        f"{git}/info/lfs/objects/{'0' * 64}",
        f"{forge.base}/{path}/-/raw/main/a",
        f"{forge.base}/{path}/-/archive/main/x.zip",
    ):
        answer = await forge.root.get(url, headers=headers)
        assert answer.status == 403, url
        assert "Sudo is for requests of the API only." in str(answer.body)


async def test_python_gitlab_acts_as_somebody_else(forge: Forge) -> None:
    alice = await forge.user("alice")

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
            made = client.projects.create({"name": new_name("py")}, sudo=alice.username)
            assert made.creator_id == alice.id
            assert (
                client.projects.get(made.id, sudo=alice.id).permissions["project_access"]["access_level"]
                == 50
            )
            assert [
                one.id for one in client.projects.list(owned=True, sudo=alice.username, iterator=True)
            ] == [made.id]
            with pytest.raises(gitlab.GitlabGetError, match="404 User with ID or username 'nobody'"):
                client.projects.get(made.id, sudo="nobody")
            client.projects.delete(made.id, sudo=alice.username)
        with (
            gitlab.Gitlab(forge.base, private_token=alice.token) as client,
            pytest.raises(gitlab.GitlabListError, match="Must be admin to use sudo"),
        ):
            client.projects.list(sudo="root")

    await asyncio.to_thread(use)


WRITES = [
    route
    for route in ROUTES
    if route.method != "GET"
    and route.access.kind not in ("anyone", "job")
    and name_of(route) != "POST /projects/{id}/ci/lint"  # this writes nothing
    and not route.path.endswith("/access_tokens/self/rotate")  # only bots may do this
]


async def _schedule_of(owner: Person, url: str) -> int:
    """Create a schedule of the person, with a variable."""
    schedules = f"{url}/pipeline_schedules"
    made = await owner.api.post(schedules, {"description": "hers", "ref": "main", "cron": "0 4 1 1 *"})
    variable = {"key": "KEY", "value": "x"}
    assert (await owner.api.post(f"{schedules}/{made.body['id']}/variables", variable)).status == 201
    return int(made.body["id"])


@pytest.fixture(scope="module")
async def stage(two_forges: tuple[Forge, Forge]) -> Stage:
    one, other = two_forges
    furnished = await furnish(one)
    owner, admin = await one.user("owner"), await one.user("admin", admin=True)
    ids = furnished.ids
    await one.member("projects", ids["id"], owner, Role.OWNER)
    await one.member("groups", ids["group_id"], owner, Role.OWNER)
    url = f"/projects/{ids['id']}"
    token = await one.root.post(
        f"/users/{owner.id}/personal_access_tokens", {"name": "other", "scopes": ["api"]}
    )
    furnished.of_root["personal_access_tokens_id"] = token.body["id"]
    branch = await one.root.post(f"{url}/repository/branches", {"branch": "v2", "ref": "main"})
    assert branch.status == 201, branch
    other_project = await one.project(owner)
    runner = await one.root.post(
        "/user/runners", {"runner_type": "project_type", "project_id": other_project["id"]}
    )
    merge_request = (await one.root.get(f"{url}/merge_requests/{ids['merge_request_iid']}")).body
    ids |= {
        "runner_id": runner.body["id"],
        "head": merge_request["sha"],
        "other_project_id": other_project["id"],
        "schedule_of_root_id": ids["pipeline_schedule_id"],
        "pipeline_schedule_id": await _schedule_of(owner, url),
        "trigger_id": (await owner.api.post(f"{url}/triggers", {"description": "hers"})).body["id"],
    }
    return Stage(one, other, furnished, owner, admin)


@pytest.mark.parametrize("taking", TAKINGS)
async def test_what_was_judged_before_a_right_was_taken_away_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, taking: str
) -> None:
    """For all routes at once: the rights are checked, then the right is taken away and this is answered, then the
    routes go on."""
    wanted = TAKINGS[taking]
    routes = [route for route in WRITES if wanted.needs(route)]
    await stage.warm()
    with stopped_before_acting(stage.other, monkeypatch) as stop:
        answers = [asyncio.create_task(stage.call(route)) for route in routes]
        await stop.until(len(routes), answers)
        early = {
            name_of(route): answer.result()
            for route, answer in zip(routes, answers, strict=True)
            if answer.done()
        }
        assert early == {}, "each request has to be one that would be done"
        await wanted.take(stage)
        stop.open()
        refused = await asyncio.gather(*answers)
        await wanted.give(stage)
    told = {name_of(route): _told(answer) for route, answer in zip(routes, refused, strict=True)}
    assert {name: answer for name, answer in told.items() if answer not in wanted.refusals} == {}


def _told(answer: Answer) -> tuple[int, Any]:
    body = answer.body
    return answer.status, (body.get("message") or body.get("error")) if isinstance(body, dict) else body


@pytest.mark.parametrize("taking", TAKINGS)
async def test_who_takes_a_right_away_waits_for_what_is_being_done_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, taking: str
) -> None:
    wanted = TAKINGS[taking]
    name = (
        "POST /member_roles"
        if "administrator" in taking
        else "POST /projects/{id}/merge_requests/{merge_request_iid}/approve"
    )
    route = next(route for route in WRITES if name_of(route) == name)
    await stage.warm()
    with stopped_while_acting(stage.other, monkeypatch) as stop:
        answer = asyncio.create_task(stage.call(route))
        await stop.until(1, [answer])
        taken = asyncio.create_task(wanted.take(stage))
        await until_somebody_waits(stage.one.database)
        assert not taken.done()
        assert not answer.done()
        stop.open()
        assert (await answer).status == 201
        await taken
        await wanted.give(stage)
