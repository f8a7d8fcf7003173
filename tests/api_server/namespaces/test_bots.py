"""Bots of projects and groups: their tokens, their rights, and their end."""

import asyncio
import datetime
import re
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest

from api_server.accounts import user_queries
from api_server.invitations import queries
from api_server.namespaces.access_tokens import KEPT_DAYS
from tests.api_server.namespaces.conftest import WANTED, Scene, events, refused
from tests.support.browser import browsing
from tests.support.clock import forge_with_clock
from tests.support.forge import Forge, new_name
from tests.support.git_client import Git
from tests.support.rights import stopped_while_acting
from tests.support.waiting import until_somebody_waits


async def test_a_bots_membership_goes_with_its_token_only(scene: Scene) -> None:
    made, _ = await scene.made()
    path = f"/projects/{scene.project['id']}/members/{made['user_id']}"
    assert (await scene.owner.api.put(path, {"access_level": 50})).status == 403
    assert (await scene.owner.api.delete(path)).status == 403


async def test_a_bot_is_no_last_owner(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = (await alice.api.post("/groups", {"name": "hers", "path": f"{alice.username}-s"})).body
    url = f"/groups/{group['id']}"
    assert (await alice.api.post(f"{url}/access_tokens", WANTED | {"access_level": 50})).status == 201
    kept = await alice.api.delete(f"{url}/members/{alice.id}")
    assert refused(kept, 403, "403 Forbidden - The last owner of a group stays its owner")


async def test_a_revoked_token_takes_its_bot_with_it_but_not_its_name(scene: Scene) -> None:
    made, bot = await scene.made()
    itself = (await bot.get("/user")).body
    project = f"/projects/{scene.project['id']}"
    commit = {"branch": "main", "content": "x", "commit_message": "Add [ci skip]"}
    for name, branch in (("a", {}), ("b", {"branch": "topic", "start_branch": "main"})):
        assert (
            await bot.post(f"{project}/repository/files/{name}{made['id']}", commit | branch)
        ).status == 201
    wanted = {"title": "x", "source_branch": "topic", "target_branch": "main"}
    request = (await bot.post(f"{project}/merge_requests", wanted)).body
    assert request["author"]["id"] == made["user_id"]

    url = f"{scene.url('project')}/{made['id']}"
    assert (await scene.owner.api.delete(url)).status == 204
    refusal = await bot.get("/user")
    assert (refusal.status, refusal.body["error_description"].split(".")[0]) == (401, "Token was revoked")
    assert refused(await scene.owner.api.delete(url), 404, "404 project Access Token Not Found")
    assert refused(await scene.owner.api.get(url), 404, "404 project Access Token Not Found")
    for path in (f"/users/{itself['id']}", f"{project}/members/{itself['id']}"):
        assert (await scene.forge.root.get(path)).status == 404
    assert (await scene.forge.root.get("/user", headers={"Sudo": itself["username"]})).status == 404
    assert (await scene.forge.root.get(f"/users?username={itself['username']}")).body == []
    author = (await scene.owner.api.get(f"{project}/merge_requests/{request['iid']}")).body["author"]
    assert (author["username"], author["state"]) == (itself["username"], "deactivated")


async def test_what_a_bot_is_at_by_another_token_is_over_before_it_is_gone(
    two_forges: tuple[Forge, Forge], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two_forges
    project = (await one.project())["id"]
    made = (await one.root.post(f"/projects/{project}/access_tokens", WANTED)).body
    second = (await one.root.post(f"/users/{made['user_id']}/personal_access_tokens", WANTED)).body
    bot = attrs.evolve(other.root, token=second["token"])
    assert (await bot.get("/user")).status == 200, "from now on its use is known"
    with stopped_while_acting(other, monkeypatch) as stop:
        writing = asyncio.create_task(
            bot.post(f"/projects/{project}/variables", {"key": "BOT", "value": "was here"})
        )
        await stop.until(1)
        revoking = asyncio.create_task(one.root.delete(f"/projects/{project}/access_tokens/{made['id']}"))
        await until_somebody_waits(one.database)
        stop.open()
        assert ((await writing).status, (await revoking).status) == (201, 204)
    assert (await bot.get("/user")).status == 401


async def test_a_bot_that_gives_up_its_own_token_is_gone(scene: Scene) -> None:
    made, bot = await scene.made()
    assert (await bot.delete("/personal_access_tokens/self")).status == 204
    assert (await scene.forge.root.get(f"/users/{made['user_id']}")).status == 404


async def test_a_bot_that_revokes_one_of_its_tokens_goes_on_with_the_other(scene: Scene) -> None:
    made, bot = await scene.made()
    wanted = {"name": "for kubectl", "scopes": ["k8s_proxy"]}
    second = (await bot.post("/user/personal_access_tokens", wanted)).body
    assert (await bot.delete(f"/personal_access_tokens/{second['id']}")).status == 204
    assert (await bot.get("/user")).body["id"] == made["user_id"]


async def test_a_bot_gets_no_token_of_another_one(scene: Scene) -> None:
    """Otherwise that token would still give access when the bot's own is revoked."""
    other, _ = await scene.made("group", access_level=20)
    made, bot = await scene.made("group", access_level=50)
    refusal = await bot.post(f"{scene.url('group')}/{other['id']}/rotate")
    assert refused(refusal, 403, "403 Forbidden")
    assert refused(await bot.post(f"{scene.url('group')}/{made['id']}/rotate"), 403, "403 Forbidden")
    assert (await bot.post(f"{scene.url('group')}/self/rotate")).status == 200


async def test_a_token_has_its_bots_role_in_its_own_place_and_its_bot_leaves_all_others(forge: Forge) -> None:
    group, other = await forge.group(), await forge.group()
    url = f"/groups/{group['id']}"
    made = (await forge.root.post(f"{url}/access_tokens", WANTED | {"access_level": 30})).body
    bot = attrs.evolve(forge.root, token=made["token"])
    project = (await bot.post("/projects", {"name": "of a bot", "namespace_id": group["id"]})).body
    member = f"/projects/{project['id']}/members/{made['user_id']}"
    assert (await bot.get(member)).body["access_level"] == 40, "as whoever makes a project in a group"
    assert (await forge.root.get(f"{url}/access_tokens/{made['id']}")).body["access_level"] == 30
    assert [token["access_level"] for token in (await forge.root.get(f"{url}/access_tokens")).body] == [30]
    moved = await forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": other["id"]})
    assert moved.status == 200
    assert (await forge.root.delete(url)).status == 202
    assert (await forge.root.get(member)).status == 404


async def test_a_bot_is_not_mailed_what_becomes_of_its_invitations(scene: Scene) -> None:
    _, bot = await scene.made(access_level=40)
    url = f"/projects/{scene.project['id']}/invitations"
    email = f"{new_name('guest')}@example.org"
    assert (await bot.post(url, {"email": email, "access_level": 10})).body == {"status": "success"}
    (invited,) = (await bot.get(f"{url}?query={email}")).body
    invitation = await queries.find(scene.forge.database, invited["id"])
    assert invitation is not None
    assert (invitation.inviter_name, invitation.inviter_email) == ("ci", None)


@pytest.mark.parametrize("goes", ["project", "group", "bot"])
async def test_bots_go_with_their_place(forge: Forge, goes: str) -> None:
    owner = await forge.user("owner")
    group = await forge.group(owner)
    project = await forge.project(namespace_id=group["id"])
    places = {
        "project": [f"/projects/{project['id']}"],
        "group": [f"/projects/{project['id']}", f"/groups/{group['id']}"],
    }
    made = [
        (await owner.api.post(f"{place}/access_tokens", WANTED)).body
        for place in places.get(goes, places["project"])
    ]
    gone = f"/users/{made[0]['user_id']}" if goes == "bot" else places[goes][-1]
    assert (await forge.root.delete(gone)).status in (202, 204)
    for token in made:
        assert (await attrs.evolve(owner.api, token=token["token"]).get("/user")).status == 401
        assert (await forge.root.get(f"/users/{token['user_id']}")).status == 404


async def test_lists_of_users_tell_bots_from_people(scene: Scene) -> None:
    made, bot = await scene.made()
    username = (await bot.get("/user")).body["username"]

    async def found(query: str) -> list[int]:
        return [
            user["id"] for user in (await scene.forge.root.get(f"/users?username={username}{query}")).body
        ]

    assert await found("") == await found("&exclude_humans=true") == [made["user_id"]]
    assert await found("&without_project_bots=true") == await found("&humans=true") == []
    people = (await scene.forge.root.get(f"/users?username={scene.owner.username}&exclude_humans=true")).body
    assert people == []


async def test_expired_tokens_open_nothing_and_their_bots_go_a_month_later(
    new_database: Any, tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path) as (forge, clock):
        project = await forge.project(initialize_with_readme=True)
        url = f"/projects/{project['id']}/access_tokens"
        made = (await forge.root.post(url, WANTED)).body
        assert made["expires_at"] == str(clock.today + datetime.timedelta(days=365))
        bot, stranger = (attrs.evolve(forge.root, token=token) for token in (made["token"], None))
        of_files = (await bot.post("/user/static_object_token/rotate")).body["token"]
        file = f"{project['web_url']}/-/raw/main/README.md?token={of_files}"
        assert (await stranger.get(file)).status == 200
        clock.move(days=365)
        assert (await bot.get("/user")).status == (await stranger.get(file)).status == 401
        assert (await forge.root.get(f"{url}?state=inactive")).body[0]["id"] == made["id"]
        assert await user_queries.bots_without_tokens(forge.database, KEPT_DAYS) == []
        clock.move(days=KEPT_DAYS)
        (bot,) = await user_queries.bots_without_tokens(forge.database, KEPT_DAYS)
        assert bot.id == made["user_id"]


async def test_a_bot_signs_in_by_token_only(scene: Scene) -> None:
    made, bot = await scene.made()
    username = (await bot.get("/user")).body["username"]
    await scene.forge.root.put(f"/users/{made['user_id']}", {"password": "long enough"})
    async with browsing(scene.forge) as browser:
        await browser.get("/-/sign_in")
        await browser.send("/-/sign_in", login=username, password="long enough")
        assert browser.status == 401


async def test_git_with_a_token_of_a_project(scene: Scene, tmp_path: Path) -> None:
    made, _ = await scene.made(scopes=["write_repository"], access_level=40)
    url = scene.project["http_url_to_repo"].replace("://", f"://bot:{made['token']}@")
    git = Git(tmp_path / "clone")
    await git.init()
    await git.commit_files({"README.md": "Hello\n"})
    await git("push", "-q", url, "HEAD:refs/heads/by-bot")
    branch = await scene.owner.api.get(f"/projects/{scene.project['id']}/repository/branches/by-bot")
    assert branch.status == 200
    await scene.owner.api.delete(f"{scene.url('project')}/{made['id']}")
    await git("ls-remote", url, fails=True)


KEYS = [
    "id", "name", "revoked", "created_at", "description", "scopes", "user_id", "last_used_at", "active",
    "expires_at", "access_level",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["project", "group"])
async def test_a_token_is_a_bot_with_that_role_there(scene: Scene, kind: str) -> None:
    values = {
        "access_level": 30,
        "description": "for CI",
        "expires_at": "2999-01-31",
        "scopes": ["api", "api"],
    }
    made, bot = await scene.made(kind, **values)
    token = made.pop("token")
    assert token.startswith("flpat-")
    assert list(made) == KEYS
    assert made == {
        "id": made["id"],
        "name": "ci",
        "revoked": False,
        "created_at": made["created_at"],
        "description": "for CI",
        "scopes": ["api"],
        "user_id": made["user_id"],
        "last_used_at": None,
        "active": True,
        "expires_at": "2999-01-31",
        "access_level": 30,
    }
    assert (await scene.owner.api.get(f"{scene.url(kind)}/{made['id']}")).body == made
    assert made in (await scene.owner.api.get(scene.url(kind))).body
    itself = (await bot.get("/user")).body
    place = getattr(scene, kind)["id"]
    assert re.fullmatch(rf"{kind}_{place}_bot_[0-9a-f]{{32}}", itself["username"])
    assert (itself["id"], itself["name"], itself["bot"]) == (made["user_id"], "ci", True)
    assert itself["email"] == f"{itself['username']}@noreply.127.0.0.1"
    assert (itself["can_create_group"], itself["can_create_project"]) == (False, False)
    shown = (await bot.get(f"/{kind}s/{place}/members/{itself['id']}")).body
    assert (shown["access_level"], shown["expires_at"]) == (30, None)
    assert (await bot.get(f"/projects/{scene.project['id']}")).status == 200
    assert (await bot.get("/personal_access_tokens/self")).body["id"] == made["id"]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"scopes": ["api"]}, "name is missing"),
        ({"name": "a"}, "scopes is missing"),
        ({"name": "a", "scopes": []}, "scopes is empty"),
        ({"name": "a", "scopes": ["sudo"]}, "scopes does not have a valid value"),
        ({"name": "a", "scopes": ["api"], "access_level": 5}, "access_level does not have a valid value"),
        ({"name": "a", "scopes": ["api"], "expires_at": "soon"}, "expires_at is invalid"),
    ],
)
async def test_a_token_that_cannot_be_made_is_refused(
    scene: Scene, wanted: dict[str, Any], error: str
) -> None:
    answer = await scene.owner.api.post(scene.url("project"), wanted)
    assert (answer.status, answer.body) == (400, {"error": error})


async def test_nobody_hands_out_more_than_she_has(scene: Scene) -> None:
    """A bot cannot create further bots, so that its rights cannot outlive it."""
    url = scene.url("project")
    more = await scene.maintainer.api.post(url, WANTED | {"access_level": 50})
    text = "400 Bad request - Access level of the token contains permissions not held by the creating user"
    assert refused(more, 400, text)
    made = await scene.maintainer.api.post(url, WANTED | {"access_level": 40})
    assert made.status == 201
    owned, owner_bot = await scene.made(access_level=50)
    text = "400 Bad request - Not eligible to rotate tokens with permissions not held by the user"
    assert refused(await scene.maintainer.api.post(f"{url}/{owned['id']}/rotate"), 400, text)
    text = "400 Bad request - User does not have permission to create project access token"
    assert refused(await owner_bot.post(url, WANTED), 400, text)
    elsewhere = await scene.forge.project()
    assert (await owner_bot.get(f"/projects/{elsewhere['id']}")).status == 404
    for source, place in (("groups", await scene.forge.group()), ("projects", elsewhere)):
        added = await scene.forge.root.post(
            f"/{source}/{place['id']}/members", {"user_id": owned["user_id"], "access_level": 30}
        )
        assert refused(added, 400, {"user": ["project bots cannot be added to other groups / projects"]})
        invited = await scene.forge.root.post(
            f"/{source}/{place['id']}/invitations", {"user_id": owned["user_id"], "access_level": 30}
        )
        assert (invited.status, invited.body["status"]) == (201, "error")
        assert "project bots cannot be added" in str(invited.body["message"])


async def test_the_trail_tells_of_tokens_bots_and_members(forge: Forge) -> None:
    owner = await forge.user("owner")
    project = await forge.project(owner)
    url = f"/projects/{project['id']}/access_tokens"
    made = (await owner.api.post(url, WANTED | {"scopes": ["api", "read_repository"]})).body
    rotated = (await owner.api.post(f"{url}/{made['id']}/rotate")).body
    await owner.api.delete(f"{url}/{rotated['id']}")
    created = "Created project access token with token_id: {} with scopes: api, read_repository"
    created += " and access level Maintainer"
    deleted = "Revoked project access token with token_id: {}"
    told = [
        event for event in await events(forge, "Project", project["id"]) if "project_created" not in event
    ]
    assert sorted(told) == sorted(
        [
            ("member_created", "Membership created"),
            ("member_destroyed", "Membership destroyed"),
            ("project_access_token_created", created.format(made["id"])),
            ("project_access_token_created", created.format(rotated["id"])),
            ("project_access_token_deleted", deleted.format(made["id"])),
            ("project_access_token_deleted", deleted.format(rotated["id"])),
        ]
    )
    bot = [name for name, _ in await events(forge, "User", made["user_id"])]
    assert sorted(bot) == ["user_created", "user_destroyed"]


async def test_rotating(scene: Scene) -> None:
    made, bot = await scene.made("group", access_level=20, scopes=["self_rotate", "read_api"])
    url = scene.url("group")
    in_a_week = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=7)
    own = await bot.post(f"{url}/self/rotate")
    assert (own.status, list(own.body)) == (200, [*KEYS, "token"])
    kept = ("name", "scopes", "user_id", "access_level", "description")
    assert {key: own.body[key] for key in kept} == {key: made[key] for key in kept}
    assert own.body["expires_at"] == str(in_a_week)
    assert (await bot.get("/user")).status == 401
    again = await scene.owner.api.post(f"{url}/{made['id']}/rotate")
    assert refused(again, 400, "400 Bad request - Token already revoked")
    by_owner = await scene.owner.api.post(f"{url}/{own.body['id']}/rotate", {"expires_at": "2999-01-01"})
    assert (by_owner.status, by_owner.body["expires_at"]) == (200, "2999-01-01")
    listed = (await scene.owner.api.get(f"{url}?search=ci&per_page=100")).body
    states = {token["id"]: token["active"] for token in listed if token["user_id"] == made["user_id"]}
    assert states == {made["id"]: False, own.body["id"]: False, by_owner.body["id"]: True}
    newest = attrs.evolve(bot, token=by_owner.body["token"])
    assert refused(await newest.post(f"{scene.url('project')}/self/rotate"), 401, "401 Unauthorized")
    assert refused(await scene.owner.api.post(f"{url}/self/rotate"), 405, "405 Method Not Allowed")


async def test_a_place_has_only_so_many(forge: Forge) -> None:
    with forge.changed_settings(access_tokens_limit=1):
        url = f"/projects/{(await forge.project())['id']}/access_tokens"
        made = await forge.root.post(url, WANTED)
        assert made.status == 201
        beyond = await forge.root.post(url, WANTED)
        assert refused(beyond, 400, "400 Bad request - Access token limit reached")
        await forge.root.delete(f"{url}/{made.body['id']}")
        assert (await forge.root.post(url, WANTED)).status == 201


async def test_python_gitlab_manages_them(scene: Scene) -> None:
    def use() -> None:
        with gitlab.Gitlab(scene.forge.base, private_token=scene.owner.token) as client:
            for place in (client.projects.get(scene.project["id"]), client.groups.get(scene.group["id"])):
                token = place.access_tokens.create(WANTED | {"access_level": 40, "expires_at": "2999-01-01"})
                assert place.access_tokens.get(token.id).scopes == ["api"]
                assert token.id in [one.id for one in place.access_tokens.list(iterator=True, state="active")]
                with gitlab.Gitlab(scene.forge.base, private_token=token.token) as bot:
                    bot.auth()
                    assert bot.user is not None
                    assert bot.user.attributes["bot"] is True
                    (bot.projects if place.manager is client.projects else bot.groups).get(place.id)
                token.rotate()
                place.access_tokens.delete(token.id)
                assert token.user_id not in [member.id for member in place.members.list(get_all=True)]

    await asyncio.to_thread(use)


async def test_of_two_who_revoke_a_token_one_is_told_that_it_is_gone(scene: Scene) -> None:
    made, _ = await scene.made()
    url = f"{scene.url('project')}/{made['id']}"
    answers = await asyncio.gather(scene.owner.api.delete(url), scene.forge.root.delete(url))
    assert sorted(answer.status for answer in answers) == [204, 404]
    (late,) = (answer for answer in answers if answer.status == 404)
    assert refused(late, 404, "404 project Access Token Not Found")
    assert (
        len([one for one in await events(scene.forge, "User", made["user_id"]) if "destroyed" in one[0]]) == 1
    )
