"""Lists of merge requests: their filters, and what of a group and of everything the caller is shown."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project, open_merge_request


async def test_the_list_shows_what_matches_every_filter(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    base = f"/projects/{project['id']}/merge_requests"
    await open_merge_request(alice, project, "one", title="First", labels="a,b")
    await open_merge_request(alice, project, "two", title="Draft: second", description="the FIRST try")
    await open_merge_request(alice, project, "three", "one", title="100%_third")
    await alice.api.put(f"{base}/1", {"state_event": "close"})
    for query, iids in [
        ("", [3, 2, 1]),
        ("?sort=asc", [1, 2, 3]),
        ("?order_by=title&sort=asc", [3, 2, 1]),
        ("?state=opened", [3, 2]),
        ("?state=closed", [1]),
        ("?state=merged", []),
        ("?iids[]=1&iids[]=3", [3, 1]),
        ("?iids=2", [2]),
        ("?source_branch=two", [2]),
        ("?target_branch=one", [3]),
        (f"?author_id={alice.id}", [3, 2, 1]),
        (f"?author_username={alice.username.upper()}", [3, 2, 1]),
        ("?author_username=nobody", []),
        ("?labels=b", [1]),
        ("?labels=a,c", []),
        ("?search=first", [2, 1]),
        ("?wip=yes", [2]),
        ("?draft=false", [3, 1]),
        ("?created_before=2001-01-01", []),
        ("?updated_after=2001-01-01T00:00:00Z", [3, 2, 1]),
        ("?per_page=1&page=2", [2]),
        ("?pagination=keyset&per_page=2", [3, 2]),
    ]:
        answer = await alice.api.get(base + query)
        assert (answer.status, [found["iid"] for found in answer.body]) == (200, iids), query
    assert (await alice.api.get(f"{base}?state=open")).status == 400


async def iids(client: Any, path: str) -> list[int]:
    answer = await client.get(path, expect=200)
    return [found["iid"] for found in answer.body]


async def test_lists_are_filtered_by_people_and_by_the_part_of_the_caller(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    await open_merge_request(alice, project, "one", assignee_ids=[bob.id], labels="a")
    await open_merge_request(alice, project, "two", assignee_ids=[alice.id, bob.id], reviewer_ids=[bob.id])
    await open_merge_request(bob, project, "three", description="only there")
    base = f"/projects/{project['id']}/merge_requests"
    for query, expected in [
        (f"assignee_id={bob.id}", [2, 1]),
        (f"assignee_id={bob.id}&scope=assigned_to_me", [2]),
        (f"assignee_username={bob.username.upper()}", [2, 1]),
        (f"assignee_username[]={alice.username}", [2]),
        ("assignee_id=None", [3]),
        ("assignee_id=Any", [2, 1]),
        (f"reviewer_id={bob.id}", [2]),
        (f"reviewer_username={bob.username}", [2]),
        ("reviewer_id=None", [3, 1]),
        ("reviewer_id=Any", [2]),
        ("labels=None", [3, 2]),
        ("labels=Any", [1]),
        ("search=ONLY", [3]),
        ("search=only&in=title", []),
        ("search=only&in=description", [3]),
        ("scope=all", [3, 2, 1]),
        ("scope=created_by_me", [2, 1]),
        (f"scope=created_by_me&author_id={bob.id}", []),
        ("scope=created-by-me", [2, 1]),
        ("scope=assigned_to_me", [2]),
        ("scope=reviews_for_me", []),
        (f"source_project_id={project['id']}", [3, 2, 1]),
        ("source_project_id=0", []),
        ("order_by=merged_at", [3, 2, 1]),
    ]:
        assert await iids(alice.api, f"{base}?{query}") == expected, query
    assert await iids(bob.api, f"{base}?scope=reviews_for_me") == [2]
    for nobody in ("me", "9" * 19, "1" * 1000):
        refused = await alice.api.get(f"{base}?assignee_id={nobody}")
        text = f"assignee_id should be an integer, 'None' or 'Any', however got {nobody}"
        assert (refused.status, refused.body) == (400, {"error": text})


READABLE = [  # of visibility, of whom the repository is open to, and the least role that reads it
    ("private", "enabled", "reporter"),
    ("internal", "enabled", "stranger"),
    ("public", "enabled", "stranger"),
    ("public", "private", "guest"),
    ("public", "disabled", None),
]
ROLES = ["stranger", "guest", "reporter", "developer", "maintainer", "owner"]


@pytest.mark.parametrize("place", ["projects", "groups"])
async def test_all_that_the_caller_may_read_is_listed_and_nothing_else(forge: Forge, place: str) -> None:
    """As the project's own list, which refuses what these leave out; membership is the project's or the group's."""
    alice = await forge.user("alice")
    group = await forge.group(alice)
    below = await forge.group(alice, parent_id=group["id"])
    clients = {role: (await forge.user(role)) for role in ROLES}
    clients["external"] = await forge.user("external", external=True)
    for visibility, access, least in READABLE:
        project = await new_project(forge, alice, namespace_id=below["id"], visibility=visibility)
        await open_merge_request(alice, project)
        await alice.api.put(f"/projects/{project['id']}", {"repository_access_level": access})
        for role in ROLES[1:] if place == "projects" or visibility == "private" else []:
            source_id = project["id"] if place == "projects" else group["id"]
            await forge.member(place, source_id, clients[role], Role[role.upper()])
        for role, client in [*((role, person.api) for role, person in clients.items()), ("root", forge.root)]:
            own = (await client.get(f"/projects/{project['id']}/merge_requests")).status == 200
            if role in ROLES:
                assert own == (least is not None and ROLES.index(role) >= ROLES.index(least)), (access, role)
            for path in ("/merge_requests", f"/groups/{group['id']}/merge_requests"):
                query = f"scope=all&source_project_id={project['id']}"
                listed = (await client.get(f"{path}?{query}")).body
                assert len(listed) == own, (visibility, access, role, path)


async def test_the_list_of_everything_shows_the_callers_own_and_a_groups_no_archived_projects(
    forge: Forge,
) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group = await forge.group(alice)
    await forge.member("groups", group["id"], bob, Role.DEVELOPER)
    first = await new_project(forge, alice, namespace_id=group["id"])
    await open_merge_request(alice, first, reviewer_ids=[bob.id])
    second = await new_project(forge, alice, namespace_id=group["id"])
    mine = await open_merge_request(bob, second)
    assert [one["id"] for one in (await bob.api.get("/merge_requests")).body] == [mine["id"]]
    assert len((await bob.api.get("/merge_requests?scope=reviews_for_me")).body) == 1
    path = f"/groups/{group['id']}/merge_requests"
    assert len((await bob.api.get(path)).body) == 2
    await alice.api.post(f"/projects/{second['id']}/archive")
    assert len((await bob.api.get(path)).body) == 1
    assert len((await bob.api.get(f"{path}?non_archived=false")).body) == 2
    assert len((await bob.api.get("/merge_requests")).body) == 1
    assert (await bob.api.get("/merge_requests?non_archived=true")).body == []
    assert (await forge.anonymous.get("/merge_requests")).status == 401

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        assert len(client.mergerequests.list(scope="created_by_me", get_all=True)) == 1
        assert len(client.groups.get(group["id"]).mergerequests.list(get_all=True)) == 1

    await asyncio.to_thread(use)
