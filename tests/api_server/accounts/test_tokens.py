"""Personal access tokens: creation, scopes, expiry, recorded use, and the rate limit of requests with them."""

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import aiohttp
import gitlab
import pytest

from api_server.web.auth import Scope
from api_server.web.errors import insufficient_scope
from tests.support.browser import browsing
from tests.support.clock import MovedClock, forge_with_clock, shared_forge_with_clock
from tests.support.forge import Answer, Client, Forge, Person, SharedForges
from tests.support.route_table import ROUTES, name_of


async def test_an_administrator_makes_a_token_whose_text_is_shown_once(forge: Forge) -> None:
    user = await forge.user()
    wanted = {"name": "ci", "scopes": ["read_api"], "expires_at": "2999-12-31", "description": "for CI"}
    made = await forge.root.post(f"/users/{user.id}/personal_access_tokens", wanted, expect=201)
    token = made.body.pop("token")
    assert token.startswith("flpat-")
    assert made.body == {
        "id": made.body["id"],
        "name": "ci",
        "revoked": False,
        "created_at": made.body["created_at"],
        "description": "for CI",
        "scopes": ["read_api"],
        "user_id": user.id,
        "last_used_at": None,
        "active": True,
        "expires_at": "2999-12-31",
    }
    shown = await user.api.get(f"/personal_access_tokens/{made.body['id']}")
    assert (shown.status, shown.body) == (200, made.body)
    own = await Client(forge.session, forge.base, token).get("/personal_access_tokens/self")
    assert own.body | {"last_used_at": None} == made.body


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"scopes": ["api"]}, "name is missing"),
        ({"name": "", "scopes": ["api"]}, "name is empty"),
        ({"name": "a"}, "scopes is missing"),
        ({"name": "a", "scopes": []}, "scopes is empty"),
        ({"name": "a", "scopes": ["everything"]}, "scopes does not have a valid value"),
        ({"name": "a", "scopes": ["api"], "expires_at": "tomorrow"}, "expires_at is invalid"),
    ],
)
async def test_a_token_that_cannot_be_made_is_refused(forge: Forge, wanted: dict, error: str) -> None:
    user = await forge.user()
    answer = await forge.root.post(f"/users/{user.id}/personal_access_tokens", wanted)
    assert (answer.status, answer.body) == (400, {"error": error})


async def test_only_administrators_make_tokens_and_only_for_users_that_exist(forge: Forge) -> None:
    user = await forge.user()
    wanted = {"name": "a", "scopes": ["api"]}
    assert (await user.api.post(f"/users/{user.id}/personal_access_tokens", wanted)).status == 403
    assert (await forge.anonymous.post(f"/users/{user.id}/personal_access_tokens", wanted)).status == 401
    unknown = await forge.root.post("/users/999999999/personal_access_tokens", wanted)
    assert (unknown.status, unknown.body) == (404, {"message": "404 User Not Found"})


async def test_a_revoked_token_opens_nothing_from_then_on(forge: Forge) -> None:
    user = await forge.user()
    assert (await user.api.get("/user")).status == 200
    assert (await user.api.delete("/personal_access_tokens/self")).status == 204
    refused = await user.api.get("/user")
    assert refused.status == 401
    assert refused.body == {
        "error": "invalid_token",
        "error_description": "Token was revoked. You have to re-authorize from the user.",
    }
    assert refused.headers["WWW-Authenticate"].startswith('Bearer realm="The API", error="invalid_token"')


async def test_tokens_of_others_are_hidden_from_everybody_but_administrators(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    hers = (await alice.api.get("/personal_access_tokens/self")).body["id"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        answer = await bob.api.request(method, f"/personal_access_tokens/{hers}{path}")
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"}), method
    assert (await bob.api.get(f"/personal_access_tokens?user_id={alice.id}")).status == 403
    assert [token["user_id"] for token in (await bob.api.get("/personal_access_tokens")).body] == [bob.id]
    assert (await forge.root.delete(f"/personal_access_tokens/{hers}")).status == 204
    assert (await alice.api.get("/user")).status == 401


async def test_the_list_can_be_filtered(forge: Forge) -> None:
    user = await forge.user()
    await forge.token(user.id, name="old", expires_at="2020-01-01")
    gone = await forge.token(user.id, name="gone")
    await Client(forge.session, forge.base, gone).delete("/personal_access_tokens/self")

    async def names(query: str) -> list[str]:
        answer = await forge.root.get(f"/personal_access_tokens?user_id={user.id}&{query}")
        return [token["name"] for token in answer.body]

    assert await names("") == ["gone", "old", "test"]
    assert await names("state=active") == ["test"]
    assert await names("state=inactive") == ["gone", "old"]
    assert await names("revoked=true") == ["gone"]
    assert await names("revoked=false") == ["old", "test"]
    assert await names("search=OL") == ["old"]
    assert await names("expires_before=2020-01-01") == ["old"]
    assert await names("expires_before=2019-12-31") == []
    assert await names("expires_after=2020-01-01") == ["old"]
    assert await names("created_after=2100-01-01T00:00:00Z") == []
    assert await names("created_before=2100-01-01T00:00:00Z&revoked=true") == ["gone"]
    assert await names("last_used_after=2020-01-01T00:00:00Z") == ["gone"]
    assert await names("last_used_before=2020-01-01T00:00:00Z") == []


async def test_rotating_gives_a_new_token_and_ends_the_old_one(forge: Forge) -> None:
    user = await forge.user()
    old = (await user.api.get("/personal_access_tokens/self")).body
    rotated = await user.api.post("/personal_access_tokens/self/rotate", expect=200)
    token = rotated.body.pop("token")
    in_a_week = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=7)
    assert rotated.body == old | {
        "id": rotated.body["id"],
        "created_at": rotated.body["created_at"],
        "last_used_at": None,
        "expires_at": str(in_a_week),
    }
    assert (await user.api.get("/user")).status == 401
    assert (await Client(forge.session, forge.base, token).get("/user")).status == 200
    again = await forge.root.post(f"/personal_access_tokens/{old['id']}/rotate")
    assert (again.status, again.body) == (400, {"message": "400 Bad request - Token already revoked"})


async def test_an_expired_token_is_refused_by_name(forge: Forge) -> None:
    user = await forge.user()
    expired = await forge.token(user.id, expires_at="2020-01-01")
    answer = await Client(forge.session, forge.base, expired).get("/user")
    assert (answer.status, answer.body["error"]) == (401, "invalid_token")
    assert (
        answer.body["error_description"]
        == "Token is expired. You can either do re-authorization or token refresh."
    )


async def test_a_token_shows_itself_whatever_its_scopes(forge: Forge) -> None:
    user = await forge.user(scopes=("read_repository",))
    assert (await user.api.get("/personal_access_tokens/self")).body["scopes"] == ["read_repository"]
    refused = await user.api.get("/personal_access_tokens")
    assert (refused.status, refused.body["error"]) == (403, "insufficient_scope")


async def test_python_gitlab_manages_tokens(forge: Forge) -> None:
    user = await forge.user()

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
            made = client.users.get(user.id).personal_access_tokens.create({"name": "a", "scopes": ["api"]})
            assert client.personal_access_tokens.get(made.id).name == "a"
            found = client.personal_access_tokens.list(user_id=user.id, iterator=True, per_page=1)
            assert {token.id for token in found} > {made.id}
            rotated = client.personal_access_tokens.get(made.id)
            rotated.rotate()
            assert rotated.token != made.token
            client.personal_access_tokens.delete(rotated.id)
            with gitlab.Gitlab(forge.base, private_token=user.token) as own:
                assert own.personal_access_tokens.get("self").user_id == user.id

    await asyncio.to_thread(use)


async def test_everybody_makes_tokens_that_open_next_to_nothing(forge: Forge) -> None:
    """The tokens end at the end of the day in UTC, as in GitLab."""
    alice = await forge.user("alice")
    before = datetime.datetime.now(datetime.UTC).date()
    made = await alice.api.post(
        "/user/personal_access_tokens", {"name": "agent", "scopes": ["k8s_proxy", "self_rotate"]}
    )
    after = datetime.datetime.now(datetime.UTC).date()
    assert (made.status, made.body["user_id"], made.body["active"]) == (201, alice.id, True)
    tomorrow = {str(day + datetime.timedelta(days=1)) for day in (before, after)}
    assert made.body["expires_at"] in tomorrow
    client = Client(forge.session, forge.base, made.body["token"])
    assert (await client.get("/user")).status == 403
    rotated = await client.post("/personal_access_tokens/self/rotate", {"expires_at": "2999-01-01"})
    assert (rotated.status, rotated.body["scopes"]) == (200, ["k8s_proxy", "self_rotate"])
    for scopes, error in (
        (["api"], "scopes does not have a valid value"),
        ([], "scopes is empty"),
        (None, "scopes is empty"),
    ):
        answer = await alice.api.post("/user/personal_access_tokens", {"name": "a", "scopes": scopes})
        assert (answer.status, answer.body) == (400, {"error": error})


async def test_python_gitlab_makes_a_token_for_its_user(forge: Forge) -> None:
    user = await forge.user()

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=user.token) as client:
            client.auth()
            assert client.user is not None
            made = client.http_post(
                "/user/personal_access_tokens", post_data={"name": "a", "scopes": ["self_rotate"]}
            )
            assert isinstance(made, dict)
            with gitlab.Gitlab(forge.base, private_token=made["token"]) as own:
                rotated = own.personal_access_tokens.rotate("self")
                assert rotated["token"] != made["token"]

    await asyncio.to_thread(use)


#: Days from today until a token expires, and whether it still works.
DAYS = [(-1, False), (0, False), (1, True)]


@pytest.fixture
async def clocked(shared_forge: SharedForges) -> tuple[Forge, MovedClock]:
    return await shared_forge_with_clock(shared_forge)


async def _token(forge: Forge, clock: MovedClock, days: int) -> tuple[str, Client]:
    """Return the path of a new token that expires in this many days, and a client that uses it."""
    user = await forge.user()
    made = await forge.root.post(
        f"/users/{user.id}/personal_access_tokens",
        {"name": "a", "scopes": ["api"], "expires_at": str(clock.today + datetime.timedelta(days))},
        expect=201,
    )
    client = Client(forge.session, forge.base, made.body["token"])
    return f"/personal_access_tokens/{made.body['id']}", client


@pytest.mark.parametrize(("days", "works"), DAYS)
async def test_a_token_works_until_its_day_of_expiry_begins(
    clocked: tuple[Forge, MovedClock], days: int, works: bool
) -> None:
    forge, clock = clocked
    path, client = await _token(forge, clock, days)
    assert (await client.get("/user")).status == (200 if works else 401)
    shown = (await forge.root.get(path)).body
    assert shown["active"] is works
    for state in ("active", "inactive"):
        listed = await forge.root.get(f"/personal_access_tokens?user_id={shown['user_id']}&state={state}")
        assert (shown["id"] in [token["id"] for token in listed.body]) is (works == (state == "active"))
    assert (await forge.root.post(f"{path}/rotate")).status == (200 if works else 400)


async def test_a_token_ends_with_the_first_moment_of_the_day(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    _, client = await _token(forge, clock, 1)
    clock.move(hours=23, minutes=59, seconds=59)
    assert (await client.get("/user")).status == 200
    clock.move(seconds=1)
    refused = await client.get("/user")
    assert (refused.status, refused.body["error_description"]) == (
        401,
        "Token is expired. You can either do re-authorization or token refresh.",
    )


async def test_a_rotated_token_lives_for_a_week(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    path, _ = await _token(forge, clock, 1)
    rotated = (await forge.root.post(f"{path}/rotate")).body
    assert rotated["expires_at"] == str(clock.today + datetime.timedelta(7))
    assert rotated["created_at"] == f"{clock.now:%Y-%m-%dT%H:%M:%S}.000Z"


WRITES = "SELECT xmin::text FROM users WHERE id = %(id)s"


async def _last(forge: Forge, user_id: int) -> str | None:
    return (await forge.root.get(f"/users/{user_id}")).body["last_activity_on"]


async def test_each_way_of_use_is_noted_and_once_a_day(shared_forge: SharedForges) -> None:
    forge, clock = await shared_forge_with_clock(shared_forge)
    alice = await forge.user("alice")
    project = await forge.project(alice, initialize_with_readme=True)
    repository = f"{forge.base}/{project['path_with_namespace']}.git/info/refs?service=git-upload-pack"

    async def by_api() -> None:
        assert (await alice.api.get("/version")).status == 200

    async def by_git() -> None:
        headers = {"Authorization": aiohttp.encode_basic_auth("alice", alice.token)}
        assert (await forge.anonymous.get(repository, headers=headers)).status == 200

    async def by_page() -> None:
        async with browsing(forge, alice) as browser:
            assert (await browser.get("/")).status == 200

    assert await _last(forge, alice.id) == clock.today.isoformat(), "she has made a project"
    for use in (by_api, by_git, by_page):
        clock.move(days=1)
        day = clock.today.isoformat()
        assert await _last(forge, alice.id) != day
        await use()
        assert await _last(forge, alice.id) == day
        written = await forge.database.value(WRITES, id=alice.id)
        clock.move(minutes=11)
        await by_api()
        assert await forge.database.value(WRITES, id=alice.id) == written
    shown = (await alice.api.get("/user")).body
    assert shown["last_activity_on"] == day
    assert datetime.date.fromisoformat(day) == clock.today


async def test_who_has_never_been_here_has_no_day(forge: Forge) -> None:
    alice = await forge.user("alice")
    assert await _last(forge, alice.id) is None
    await forge.root.get("/user", headers={"Sudo": str(alice.id)})
    assert await _last(forge, alice.id) is None, "an administrator has been here"
    refused = await forge.anonymous.get("/user", headers={"PRIVATE-TOKEN": "flpat-nobody"})
    assert (refused.status, await _last(forge, alice.id)) == (401, None)


async def test_who_has_made_an_account_is_shown_to_administrators(forge: Forge) -> None:
    boss = await forge.user("boss", admin=True)
    new = {
        "username": "made-by-boss",
        "name": "A",
        "email": "made-by-boss@example.org",
        "force_random_password": True,
    }
    made = await boss.api.post("/users", new)
    assert (made.status, made.body["created_by"]["username"]) == (201, boss.username)
    await forge.root.delete(f"/users/{boss.id}")
    assert (await forge.root.get(f"/users/{made.body['id']}")).body["created_by"] is None


#: The scopes that GitLab 17 lists.
GITLABS = {
    "admin_mode",
    "ai_features",
    "api",
    "create_runner",
    "k8s_proxy",
    "manage_runner",
    "read_api",
    "read_registry",
    "read_repository",
    "read_service_ping",
    "read_user",
    "read_virtual_registry",
    "self_rotate",
    "sudo",
    "write_registry",
    "write_repository",
    "write_virtual_registry",
}
#: Routes on which tokens show and revoke themselves, whatever their scopes are.
BY_ITSELF = {"GET /personal_access_tokens/self", "DELETE /personal_access_tokens/self"}
#: Other routes that a scope opens.
OPENS: dict[str, set[str]] = {
    "create_runner": {"POST /user/runners"},
    "manage_runner": {
        "GET /runners/{id}",
        "GET /runners/{id}/jobs",
        "GET /runners/{id}/managers",
        "PUT /runners/{id}",
        "DELETE /runners/{id}",
        "POST /runners/{id}/reset_authentication_token",
    },
    "self_rotate": {
        "POST /personal_access_tokens/self/rotate",
        "POST /projects/{id}/access_tokens/self/rotate",
        "POST /groups/{id}/access_tokens/self/rotate",
    },
    "read_user": {
        "GET /user",
        "GET /user/emails",
        "GET /user/emails/{email_id}",
        "GET /users",
        "GET /users/{id}",
        "GET /users/{id}/emails",
        "GET /users/{id}/memberships",
        "GET /version",
        "GET /metadata",
    },
}
WITH_TOKENS = [route for route in ROUTES if route.access.kind not in ("anyone", "job")]


def test_all_of_gitlabs_names_are_known() -> None:
    assert set(get_args(Scope)) == GITLABS


@pytest.mark.parametrize("scope", sorted(GITLABS - {"api", "read_api"}))
def test_a_scope_opens_what_is_its_own(scope: str) -> None:
    assert {name_of(route) for route in WITH_TOKENS if scope in route.scopes} == BY_ITSELF | OPENS.get(
        scope, set()
    )


@pytest.mark.parametrize("scope", ["api", "read_api"])
def test_the_scopes_of_the_api_open_all_that_they_are_for(scope: str) -> None:
    closed = {name_of(route) for route in WITH_TOKENS if scope not in route.scopes}
    writes = {name_of(route) for route in WITH_TOKENS if route.method != "GET"} - BY_ITSELF
    assert closed == (writes if scope == "read_api" else set())


async def _with(forge: Forge, person: Person, *scopes: str) -> Client:
    return Client(forge.session, forge.base, await forge.token(person.id, scopes))


async def test_every_scope_is_kept_and_shown_as_it_was_asked_for(forge: Forge) -> None:
    alice = await forge.user("alice")
    asked = sorted(GITLABS, reverse=True)
    made = await forge.root.post(
        f"/users/{alice.id}/personal_access_tokens", {"name": "all", "scopes": [*asked, "api"]}
    )
    assert (made.status, made.body["scopes"]) == (201, asked)
    unknown = await forge.root.post(
        f"/users/{alice.id}/personal_access_tokens", {"name": "none", "scopes": ["api", "read_everything"]}
    )
    assert (unknown.status, unknown.body) == (400, {"error": "scopes does not have a valid value"})


@pytest.mark.parametrize("scope", sorted(GITLABS - {"api", "read_api", *OPENS}))
async def test_a_scope_without_a_meaning_opens_nothing(forge: Forge, scope: str) -> None:
    alice = await forge.user("alice", scopes=(scope,))
    assert (await alice.api.get("/personal_access_tokens/self")).body["scopes"] == [scope]
    for method, path, accepted in [
        ("GET", "/user", "api read_api read_user"),
        ("GET", "/projects", "api read_api"),
        ("POST", "/projects", "api"),
        ("POST", "/personal_access_tokens/self/rotate", "api self_rotate"),
        ("POST", "/user/runners", "api create_runner"),
        ("GET", "/runners/1", "api read_api manage_runner"),
    ]:
        answer = await alice.api.request(method, path)
        assert (answer.status, answer.body) == (403, insufficient_scope(accepted).body)


async def test_a_runner_is_made_by_one_scope_and_looked_after_by_another(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    wanted = {"runner_type": "project_type", "project_id": project["id"]}
    creates, manages = await _with(forge, alice, "create_runner"), await _with(forge, alice, "manage_runner")
    assert _is_refused(await manages.post("/user/runners", wanted))
    made = await creates.post("/user/runners", wanted, expect=201)
    path = f"/runners/{made.body['id']}"
    assert _is_refused(await creates.get(path))
    assert _is_refused(await manages.get("/runners"))
    assert (await manages.get(path)).body["id"] == made.body["id"]
    assert (await manages.put(path, {"paused": True})).body["paused"] is True
    assert (await manages.post(f"{path}/reset_authentication_token")).status == 201
    assert (await manages.delete(path)).status == 204


async def test_a_token_that_rotates_itself_does_nothing_else(forge: Forge) -> None:
    alice = await forge.user("alice")
    client = await _with(forge, alice, "self_rotate")
    other = (await alice.api.get("/personal_access_tokens/self")).body["id"]
    assert _is_refused(await client.post(f"/personal_access_tokens/{other}/rotate"))
    rotated = await client.post("/personal_access_tokens/self/rotate")
    assert (rotated.status, rotated.body["scopes"]) == (200, ["self_rotate"])


async def test_the_preset_token_may_act_for_others(forge: Forge) -> None:
    shown = (await forge.root.get("/personal_access_tokens/self")).body
    assert (shown["name"], shown["scopes"]) == ("preset", ["api", "sudo"])


def _is_refused(answer: Answer) -> bool:
    body: Any = answer.body
    return answer.status == 403 and body["error"] == "insufficient_scope"


PATH = "/application/settings"


def throttled(requests: int, seconds: int) -> dict[str, object]:
    return {
        "throttle_authenticated_api_enabled": True,
        "throttle_authenticated_api_requests_per_period": requests,
        "throttle_authenticated_api_period_in_seconds": seconds,
    }


async def test_each_user_has_her_share_of_each_period(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path) as (forge, clock):
        alice, bob = await forge.user("alice"), await forge.user("bob")
        clock.move(seconds=60 - clock().timestamp() % 60)  # to the beginning of a period
        assert (await forge.root.put(PATH, throttled(2, 60))).status == 200
        assert [(await alice.api.get("/user")).status for _ in range(2)] == [200, 200]
        clock.move(seconds=15.5)
        refused = await alice.api.get("/projects")
        assert (refused.status, refused.body) == (429, "Retry later\n")
        reset = int(clock().timestamp() // 60 + 1) * 60
        told = {name: refused.headers[name] for name in refused.headers if name.startswith("RateLimit")}
        assert told | {"Retry-After": refused.headers["Retry-After"]} == {
            "Retry-After": "45",
            "RateLimit-Limit": "2",
            "RateLimit-Name": "throttle_authenticated_api",
            "RateLimit-Observed": "3",
            "RateLimit-Remaining": "0",
            "RateLimit-Reset": str(reset),
            "RateLimit-ResetTime": f"{datetime.datetime.fromtimestamp(reset, datetime.UTC):%a, %d %b %Y %H:%M:%S} GMT",
        }
        await asyncio.to_thread(refused_to_python_gitlab, forge.base, alice.token)
        assert (await bob.api.get("/user")).status == 200
        clock.move(seconds=45)
        assert (await alice.api.get("/user")).status == 200


async def test_administrators_can_always_set_it_higher(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path) as (forge, _clock):
        alice = await forge.user("alice")
        assert (await forge.root.put(PATH, throttled(1, 86_400))).status == 200
        assert [(await forge.root.get("/user")).status for _ in range(2)] == [200, 429]
        assert [(await alice.api.get(PATH)).status for _ in range(2)] == [403, 429], "for administrators only"
        assert (await forge.root.get(PATH)).status == 200
        assert (await forge.root.put(PATH, throttled(9, 86_400))).status == 200
        assert (await forge.root.get("/user")).status == 200


def refused_to_python_gitlab(base: str, token: str) -> None:
    with gitlab.Gitlab(base, private_token=token) as client, pytest.raises(gitlab.GitlabHttpError) as refused:
        client.http_get("/user", obey_rate_limit=False)
    assert (refused.value.response_code, str(refused.value)) == (429, "429: Retry later\n")
