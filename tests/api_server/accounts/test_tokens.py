"""Personal access tokens: making, showing, revoking, rotating."""

import asyncio
import datetime

import gitlab
import pytest

from tests.support.forge import Client, Forge


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
    """They end with the day, as GitLab says, in UTC."""
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
