"""What the scopes of personal access tokens open, with GitLab's names for them (decision D11)."""

from typing import Any, get_args

import pytest

from api_server.web.auth import Scope
from api_server.web.errors import insufficient_scope
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.route_table import ROUTES, name_of

#: Those that GitLab 17 lists.
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
#: Tokens show and end themselves whatever their scopes.
BY_ITSELF = {"GET /personal_access_tokens/self", "DELETE /personal_access_tokens/self"}
#: What a scope opens beside that.
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
WITH_TOKENS = [route for route in ROUTES if route.access.who not in ("anyone", "job")]


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
