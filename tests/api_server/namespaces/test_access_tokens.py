"""`/projects/:id/access_tokens` and `/groups/:id/access_tokens`: tokens of bots that are members of that place only."""

import asyncio
import datetime
import re
from typing import Any

import attrs
import gitlab
import pytest

from tests.api_server.namespaces.bots import WANTED, Scene, refused
from tests.api_server.namespaces.trail import events
from tests.support.forge import Forge

KEYS = [
    "id",
    "name",
    "revoked",
    "created_at",
    "description",
    "scopes",
    "user_id",
    "last_used_at",
    "active",
    "expires_at",
    "access_level",
]


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
    """And a bot makes no further bots, so that what it gives cannot outlive it."""
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
