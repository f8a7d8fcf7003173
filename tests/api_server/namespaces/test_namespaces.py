"""`/namespaces`: which ones a caller has, and which paths are taken."""

from tests.support.forge import Forge, Person


async def test_whether_a_path_is_taken_and_what_is_free_beside_it(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    taken = await alice.api.get(f"/namespaces/{group['path'].upper()}/exists")
    assert (taken.status, taken.body["exists"]) == (200, True)
    free = taken.body["suggests"]
    assert (await alice.api.get(f"/namespaces/{free[0]}/exists")).body == {"exists": False, "suggests": []}
    assert (await alice.api.get(f"/namespaces/{alice.username}/exists")).body["exists"] is True


async def test_what_is_below_a_hidden_group_is_not_told(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    path = f"/namespaces/{subgroup['path']}/exists?parent_id={group['id']}"
    assert (await alice.api.get(path)).body["exists"] is False
    assert (await forge.root.get(path)).body["exists"] is True


async def test_a_caller_has_her_own_namespace_and_those_of_her_groups(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(alice, visibility="private")
    listed = await alice.api.get("/namespaces")
    assert [namespace["full_path"] for namespace in listed.body] == [alice.username, group["full_path"]]
    assert (await alice.api.get(f"/namespaces/{group['id']}")).body == listed.body[1]
    assert (await alice.api.get(f"/namespaces/{alice.username}")).body == listed.body[0]
    bob = await forge.user("bob")
    hidden = await bob.api.get(f"/namespaces/{group['id']}")
    assert (hidden.status, hidden.body) == (404, {"message": "404 Namespace Not Found"})


async def test_descendant_groups_are_all_below_that_the_caller_sees(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    top = await forge.group(alice)
    middle = await forge.group(parent_id=top["id"])
    lowest = await forge.group(parent_id=middle["id"], visibility="private")
    await forge.group()

    async def ids(person: Person, group: dict[str, object], query: str = "") -> list[int]:
        answer = await person.api.get(f"/groups/{group['id']}/descendant_groups{query}")
        assert answer.status == 200, answer
        return sorted(one["id"] for one in answer.body)

    assert await ids(alice, top) == [middle["id"], lowest["id"]]
    assert await ids(bob, top) == [middle["id"]]
    assert await ids(alice, middle) == [lowest["id"]]
    assert await ids(alice, lowest) == []
    assert await ids(alice, top, f"?search={lowest['path']}") == [lowest["id"]]
    assert await ids(alice, top, "?owned=true") == [middle["id"], lowest["id"]]
    assert await ids(alice, top, f"?skip_groups[]={lowest['id']}&skip_groups[]={top['id']}") == [middle["id"]]
    hers = (await alice.api.get(f"/groups?owned=true&skip_groups={top['id']},{middle['id']}")).body
    assert [group["id"] for group in hers] == [lowest["id"]]


async def test_the_smallest_number_is_no_groups(forge: Forge) -> None:
    smallest = -(2**63)
    free = await forge.root.get(f"/namespaces/free/exists?parent_id={smallest}")
    assert (free.status, free.body) == (200, {"exists": False, "suggests": []})
    assert (await forge.root.get(f"/groups/{smallest}")).status == 404
