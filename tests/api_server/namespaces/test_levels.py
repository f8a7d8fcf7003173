"""A project is never more visible than its group, a group never more than the one above it (decision D11)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Forge, new_name
from tests.support.waiting import until_somebody_waits

Json = dict[str, Any]


async def test_a_project_is_not_made_more_visible_than_its_group(forge: Forge) -> None:
    for limit, wanted in (("private", "internal"), ("private", "public"), ("internal", "public")):
        group = await forge.group(visibility=limit)
        text = f"{wanted} is not allowed in a {limit} group."
        refusal = (400, {"message": {"visibility_level": [text]}})
        new = {"path": new_name("new"), "namespace_id": group["id"], "visibility": wanted}
        made = await forge.root.post("/projects", new)
        assert (made.status, made.body) == refusal
        project = await forge.project(namespace_id=group["id"], visibility=limit)
        changed = await forge.root.put(f"/projects/{project['id']}", {"visibility": wanted})
        assert (changed.status, changed.body) == refusal
        assert (await forge.root.get(f"/projects/{project['id']}")).body["visibility"] == limit


async def test_a_project_of_a_users_own_is_as_visible_as_she_likes(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for visibility in ("internal", "public", "private"):
        changed = await alice.api.put(f"/projects/{project['id']}", {"visibility": visibility})
        assert (changed.status, changed.body["visibility"]) == (200, visibility)


@pytest.mark.parametrize(
    ("limit", "shown"), [("private", "private"), ("internal", "internal"), ("public", "public")]
)
async def test_a_project_that_is_transferred_shows_no_more_than_its_new_group(
    forge: Forge, limit: str, shown: str
) -> None:
    group, project = await forge.group(visibility=limit), await forge.project(visibility="public")
    moved = await forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": group["id"]})
    assert (moved.status, moved.body["visibility"]) == (200, shown)


async def test_a_group_is_not_made_more_visible_than_the_one_above(forge: Forge) -> None:
    parent = await forge.group(visibility="internal")
    name = new_name("new")
    new = {"name": name, "path": name, "parent_id": parent["id"]}
    text = "public is not allowed since the parent group has a internal visibility."
    made = await forge.root.post("/groups", new | {"visibility": "public"})
    refusal = f'Failed to save group {{:visibility_level=>["{text}"]}}'
    assert (made.status, made.body) == (400, {"message": refusal})
    group = (await forge.root.post("/groups", new)).body
    assert group["visibility"] == "internal"
    changed = await forge.root.put(f"/groups/{group['id']}", {"visibility": "public"})
    assert (changed.status, changed.body) == (400, {"message": {"visibility_level": [text]}})


async def test_a_group_is_not_made_less_visible_than_what_is_in_it(forge: Forge) -> None:
    group = await forge.group(visibility="public")
    project = await forge.project(namespace_id=group["id"], visibility="internal")
    subgroup = await forge.group(parent_id=group["id"], visibility="public")

    async def refused(wanted: str) -> list[str]:
        answer = await forge.root.put(f"/groups/{group['id']}", {"visibility": wanted})
        return [] if answer.status == 200 else answer.body["message"]["visibility_level"]

    projects = "private is not allowed since this group contains projects with higher visibility."
    subgroups = "{} is not allowed since there are sub-groups with higher visibility."
    assert await refused("private") == [projects, subgroups.format("private")]
    assert await refused("internal") == [subgroups.format("internal")]
    await forge.root.put(f"/groups/{subgroup['id']}", {"visibility": "private"})
    assert await refused("private") == [projects]
    await forge.root.put(f"/projects/{project['id']}", {"visibility": "private"})
    assert await refused("private") == []


async def test_what_is_changed_at_once_fits_together_all_the_same(forge: Forge) -> None:
    """A group is closed while something public is made in it, opened in it, or moved into it."""
    for number in range(8):
        group = await forge.group(visibility="public")
        inside = await forge.project(namespace_id=group["id"])
        outside = await forge.project(visibility="public")
        new = {"path": f"p{number}", "namespace_id": group["id"], "visibility": "public"}
        below = {"name": "g", "path": f"g{number}", "parent_id": group["id"], "visibility": "public"}
        await asyncio.gather(
            forge.root.post("/projects", new),
            forge.root.post("/groups", below),
            forge.root.put(f"/projects/{inside['id']}", {"visibility": "public"}),
            forge.root.put(f"/projects/{outside['id']}/transfer", {"namespace": group["id"]}),
            forge.root.put(f"/groups/{group['id']}", {"visibility": "private"}),
        )
        limit = (await forge.root.get(f"/groups/{group['id']}")).body["visibility"]
        projects = (await forge.root.get(f"/groups/{group['id']}/projects")).body
        subgroups = (await forge.root.get(f"/groups/{group['id']}/subgroups")).body
        if limit == "private":
            assert {one["visibility"] for one in [*projects, *subgroups]} <= {"private"}


async def test_what_only_owners_change(forge: Forge) -> None:
    """Visibility and path; a maintainer may repeat what is so already."""
    alice = await forge.user("alice")
    project = await forge.project(members={Role.MAINTAINER: alice})
    url = f"/projects/{project['id']}"
    for wanted in ({"visibility": "public"}, {"path": "other"}, {"name": "Other", "visibility": "internal"}):
        refused = await alice.api.put(url, wanted)
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    allowed = {"name": "Other", "description": "New", "visibility": "private", "path": project["path"]}
    changed = await alice.api.put(url, allowed)
    assert (changed.status, changed.body["name"]) == (200, "Other")


WAYS: dict[str, Callable[[Forge, Json], Awaitable[Callable[[], Awaitable[Answer]]]]] = {}


def _way(prepare: Callable[[Forge, Json], Awaitable[Callable[[], Awaitable[Answer]]]]) -> None:
    WAYS[prepare.__name__] = prepare


@_way
async def create_a_project(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    new = {"path": new_name("new"), "namespace_id": group["id"], "visibility": "public"}
    return lambda: forge.root.post("/projects", new)


@_way
async def change_a_project(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    project = await forge.project(namespace_id=group["id"])
    return lambda: forge.root.put(f"/projects/{project['id']}", {"visibility": "public"})


@_way
async def transfer_a_project(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    project = await forge.project(visibility="public")
    return lambda: forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": group["id"]})


@_way
async def create_a_subgroup(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    name = new_name("new")
    new = {"name": name, "path": name, "parent_id": group["id"], "visibility": "public"}
    return lambda: forge.root.post("/groups", new)


@_way
async def change_a_subgroup(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    return lambda: forge.root.put(f"/groups/{subgroup['id']}", {"visibility": "public"})


HIDE = "UPDATE namespaces SET visibility = 'private' WHERE id = %(id)s"
SHOWN_BELOW = """
    SELECT visibility FROM projects WHERE namespace_id = %(id)s AND visibility <> 'private'
    UNION ALL SELECT visibility FROM namespaces WHERE parent_id = %(id)s AND visibility <> 'private'
"""


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_shown_in_a_group_that_somebody_is_making_private(forge: Forge, way: str) -> None:
    group = await forge.group(visibility="public")
    show = await WAYS[way](forge, group)
    async with forge.database.transaction() as hiding:
        await hiding.run(HIDE, id=group["id"])
        showing = asyncio.ensure_future(show())
        await until_somebody_waits(forge.database)
    answer = await showing
    assert answer.status == (200 if way == "transfer_a_project" else 400), answer
    assert await forge.database.rows(SHOWN_BELOW, id=group["id"]) == []
