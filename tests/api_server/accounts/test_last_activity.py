"""The day on which a user was last here: by the API, by git, on a page; written once a day."""

import datetime

import aiohttp

from tests.support.browser import browsing
from tests.support.clock import shared_forge_with_clock
from tests.support.forge import Forge, SharedForges

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
