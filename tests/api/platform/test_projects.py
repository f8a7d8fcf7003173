"""Projects: life cycle, what is shown of them, and to whom."""

import asyncio
from typing import Any

from api_server.web.access import Role
from tests.support.forge import Forge


async def test_archiving_and_unarchiving(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for action, archived in (("archive", True), ("unarchive", False)):
        answer = await alice.api.post(f"/projects/{project['id']}/{action}")
        assert answer.status == 201
        assert answer.body == project | {"archived": archived, "updated_at": answer.body["updated_at"]}


async def test_lists_of_an_external_user_leave_internal_things_out(forge: Forge) -> None:
    external = await forge.user("external", external=True)
    insider = await forge.user("insider")
    group = await forge.group(visibility="internal")
    project = await forge.project(visibility="internal")
    for path, made in (("/projects", project), ("/groups", group)):
        query = f"{path}?search={made['path']}"
        assert [item["id"] for item in (await insider.api.get(query)).body] == [made["id"]]
        assert (await external.api.get(query)).body == []
        assert (await external.api.get(f"{path}/{made['id']}")).status == 404


async def test_lists_by_role(forge: Forge) -> None:
    """`membership`, `min_access_level` and `owned` look at inherited roles too."""
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    await forge.member("groups", group["id"], alice, Role.DEVELOPER)
    inherited = await forge.project(namespace_id=subgroup["id"])
    guest = await forge.project(members={Role.GUEST: alice})
    own = await forge.project(alice)
    await forge.project(visibility="public")

    async def ids(query: str, path: str = "/projects") -> list[int]:
        return sorted(item["id"] for item in (await alice.api.get(f"{path}?{query}")).body)

    hers = [inherited["id"], guest["id"], own["id"]]
    assert await ids("membership=true") == hers
    assert await ids("visibility=private") == hers
    assert await ids("min_access_level=30") == [inherited["id"], own["id"]]
    assert await ids("owned=true") == [own["id"]]
    assert await ids("owned=true&min_access_level=10") == [own["id"]]
    below = f"/groups/{group['id']}/projects"
    assert await ids("", below) == []
    assert await ids("include_subgroups=true", below) == [inherited["id"]]
    assert await ids("include_subgroups=true&owned=true", below) == []
    assert await ids("include_subgroups=true&min_access_level=30", below) == [inherited["id"]]
    groups = [group["id"], subgroup["id"]]
    assert await ids("min_access_level=30", "/groups") == groups
    assert await ids("owned=true", "/groups") == []
    assert set(groups) <= set(await ids("per_page=100", "/groups"))


async def test_a_search_takes_every_character_as_itself(forge: Forge) -> None:
    project = await forge.project(name="100% sure_of it", path=f"sure-{forge.settings.port}")
    for text, found in (("100%25+SURE_", True), ("1%25it", False), ("sure%25of", False), ("sureXof", False)):
        listed = (await forge.root.get(f"/projects?search={text}")).body
        assert (project["id"] in [item["id"] for item in listed]) == found, text


async def test_a_project_may_begin_with_a_readme(forge: Forge) -> None:
    alice = await forge.user("alice")
    made = await alice.api.post(
        "/projects",
        {
            "name": "Sea Charts",
            "description": "Where it is deep",
            "initialize_with_readme": True,
            "default_branch": "trunk",
        },
    )
    assert (made.status, made.body["empty_repo"], made.body["default_branch"]) == (201, False, "trunk")
    assert made.body == (await alice.api.get(f"/projects/{made.body['id']}")).body
    where = f"/projects/{made.body['id']}/repository"
    raw = await alice.api.get(f"{where}/files/README.md/raw?ref=trunk")
    assert raw.body == "# Sea Charts\n\nWhere it is deep\n"
    (branch,) = (await alice.api.get(f"{where}/branches")).body
    assert (branch["name"], branch["protected"]) == ("trunk", True)
    assert (branch["commit"]["message"], branch["commit"]["author_email"]) == ("Initial commit", alice.email)


async def test_a_developer_of_a_group_may_begin_a_project_with_a_readme(forge: Forge) -> None:
    group, bob = await forge.group(), await forge.user("bob")
    await forge.member("groups", group["id"], bob, Role.DEVELOPER)
    made = await forge.project(bob, namespace_id=group["id"], initialize_with_readme=True)
    assert (made["empty_repo"], made["default_branch"]) == (False, "main")


async def test_a_default_branch_has_a_name_that_git_takes(forge: Forge) -> None:
    wanted = {"path": "x", "default_branch": "a..b", "initialize_with_readme": True}
    answer = await forge.root.post("/projects", wanted)
    assert (answer.status, answer.body) == (400, {"message": {"default_branch": ["is invalid"]}})


async def test_nobody_has_more_personal_projects_than_her_limit(forge: Forge) -> None:
    """However many are asked for at once; groups have room all the same."""
    alice = await forge.user("alice", projects_limit=2)
    group = await forge.group(alice)
    tried = await asyncio.gather(*(alice.api.post("/projects", {"path": f"p{n}"}) for n in range(4)))
    assert sorted(answer.status for answer in tried) == [201, 201, 403, 403]
    text = "Your project limit is 2 projects! Please contact your administrator to increase it"
    assert all(answer.body == {"error": [text]} for answer in tried if answer.status == 403)
    await forge.project(alice, namespace_id=group["id"])
    await forge.root.put(f"/users/{alice.id}", {"projects_limit": 3})
    await forge.project(alice)


async def test_a_user_whose_limit_is_none_makes_no_personal_project(forge: Forge) -> None:
    alice = await forge.user("alice", projects_limit=0)
    answer = await alice.api.post("/projects", {"path": "p"})
    text = "Personal project creation is not allowed. Please contact your administrator with questions"
    assert (answer.status, answer.body) == (403, {"error": [text]})


async def test_a_limit_is_a_number_that_can_be_kept(forge: Forge) -> None:
    alice = await forge.user("alice")
    for wrong in (-1, 2**31):
        answer = await forge.root.put(f"/users/{alice.id}", {"projects_limit": wrong})
        expected = {"message": {"projects_limit": ["is not included in the list"]}}
        assert (answer.status, answer.body) == (400, expected)


async def test_new_users_have_the_limit_that_the_instance_sets(new_forge: Any) -> None:
    async with new_forge() as forge:
        await forge.root.put("/application/settings", {"default_projects_limit": 1})
        alice, bob = await forge.user("alice"), await forge.user("bob", projects_limit=5)
        limits = [(await forge.root.get(f"/users/{user.id}")).body["projects_limit"] for user in (alice, bob)]
        assert limits == [1, 5]
        await forge.project(alice)
        assert (await alice.api.post("/projects", {"path": "more"})).status == 403
