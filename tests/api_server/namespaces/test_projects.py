"""Projects: life cycle, what is shown of them, and to whom."""

import asyncio
from collections.abc import Callable
from typing import Any

import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.forge import Forge, new_name


async def test_archiving_and_unarchiving(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for action, archived in (("archive", True), ("unarchive", False)):
        answer = await alice.api.post(f"/projects/{project['id']}/{action}")
        assert answer.status == 201
        changed = {"archived": archived, "can_create_merge_request_in": not archived}
        assert answer.body == project | changed | {"updated_at": answer.body["updated_at"]}


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


async def test_where_the_repository_is_closed_there_is_no_readme(forge: Forge) -> None:
    made = await forge.project(initialize_with_readme=True, repository_access_level="disabled")
    assert made["empty_repo"] is True


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


async def test_new_users_have_the_limit_that_the_instance_sets(forge: Forge) -> None:
    async with forge.instance_settings(default_projects_limit=1):
        alice, bob = await forge.user("alice"), await forge.user("bob", projects_limit=5)
    limits = [(await forge.root.get(f"/users/{user.id}")).body["projects_limit"] for user in (alice, bob)]
    assert limits == [1, 5]
    await forge.project(alice)
    assert (await alice.api.post("/projects", {"path": "more"})).status == 403


async def test_the_projects_of_a_user_are_those_in_her_namespace_that_the_caller_sees(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group = await forge.group(alice)
    await forge.project(alice, namespace_id=group["id"], visibility="public")
    private, public = await forge.project(alice), await forge.project(alice, visibility="public")
    shared = await forge.project(alice, members={Role.GUEST: bob})

    async def ids(person: Any, query: str = "", user: Any = alice.id) -> list[int]:
        answer = await person.get(f"/users/{user}/projects{query}")
        assert answer.status == 200, answer
        return [one["id"] for one in answer.body]

    everything = [shared["id"], public["id"], private["id"]]
    assert await ids(alice.api) == everything
    assert await ids(forge.root) == everything
    assert await ids(bob.api) == [shared["id"], public["id"]]
    assert await ids(bob.api, user=alice.username.upper()) == [shared["id"], public["id"]]
    assert await ids(alice.api, "?visibility=public") == [public["id"]]
    assert await ids(bob.api, "?membership=true") == [shared["id"]]
    for nobody in ("999999999", "no-such-user"):
        missing = await alice.api.get(f"/users/{nobody}/projects")
        assert (missing.status, missing.body) == (404, {"message": "404 User Not Found"})


async def test_the_users_of_a_project_are_its_members_and_those_of_its_groups(forge: Forge) -> None:
    alice, bob, carol = [await forge.user(name) for name in ("alice", "bob", "carol")]
    group = await forge.group(alice)
    project = await forge.project(
        alice, namespace_id=group["id"], members={Role.GUEST: bob, Role.OWNER: carol}
    )
    where = f"/projects/{project['id']}/users"
    listed = (await bob.api.get(f"{where}?sort=asc")).body
    names = ("id", "username", "public_email", "name", "state", "locked", "avatar_url", "web_url")
    shown = (await forge.root.get(f"/users/{alice.id}")).body
    assert {name: shown[name] for name in names} in listed
    members = {alice.id, bob.id, carol.id}
    assert members <= {one["id"] for one in listed}
    search = (await bob.api.get(f"{where}?search={carol.username}")).body
    assert [one["id"] for one in search] == [carol.id]
    skipped = (await bob.api.get(f"{where}?skip_users[]={alice.id}&skip_users[]={bob.id}")).body
    assert {one["id"] for one in skipped} & members == {carol.id}


async def test_the_memberships_of_a_user_for_administrators(forge: Forge) -> None:
    alice = await forge.user("alice")
    group, project = await forge.group(alice), await forge.project(members={Role.DEVELOPER: alice})
    of_group = {
        "source_id": group["id"], "source_name": group["name"], "source_type": "Namespace", "access_level": 50,
    }  # fmt: skip
    of_project = {
        "source_id": project["id"], "source_name": project["name"], "source_type": "Project", "access_level": 30,
    }  # fmt: skip
    where = f"/users/{alice.id}/memberships"
    assert (await forge.root.get(where)).body == [of_project, of_group]
    assert (await forge.root.get(f"{where}?type=Project")).body == [of_project]
    assert (await forge.root.get(f"{where}?type=Namespace")).body == [of_group]
    assert (await alice.api.get(where)).status == 403
    assert (await forge.root.get("/users/999999999/memberships")).status == 404


async def test_a_project_is_transferred_and_its_old_path_redirects(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(alice, visibility="private")
    project = await forge.project(alice, visibility="public")
    answer = await alice.api.put(f"/projects/{project['id']}/transfer", {"namespace": group["full_path"]})
    assert answer.status == 200
    assert answer.body["path_with_namespace"] == f"{group['full_path']}/{project['path']}"
    assert (answer.body["namespace"]["id"], answer.body["visibility"]) == (group["id"], "private")
    old = project["path_with_namespace"].replace("/", "%2F")
    redirect = await alice.api.get(f"/projects/{old}?statistics=true")
    to = f"{forge.base}/api/v4/projects/{project['id']}?statistics=true"
    assert (redirect.status, redirect.headers["Location"]) == (301, to)
    back = await alice.api.put(f"/projects/{project['id']}/transfer", {"namespace": alice.username})
    assert back.body["path_with_namespace"] == project["path_with_namespace"]
    assert (await alice.api.get(f"/projects/{old}")).status == 200
    rows = await forge.database.rows(
        "SELECT event_type, entity_path FROM audit_events"
        " WHERE entity_type = 'Project' AND entity_id = %(id)s AND event_type LIKE %(type)s ORDER BY id",
        id=project["id"],
        type="project_%_updated",
    )
    assert [row.event_type for row in rows] == [
        "project_namespace_updated", "project_visibility_level_updated", "project_namespace_updated",
    ]  # fmt: skip


@pytest.mark.parametrize("encode", [str.upper, str.lower])
async def test_an_old_path_redirects_in_whatever_way_it_is_encoded(
    forge: Forge, encode: Callable[[str], str]
) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    url = f"/projects/{project['id']}"
    assert (await alice.api.put(url, {"path": f"{project['path']}-2"})).status == 200
    old = project["path_with_namespace"].replace("/", encode("%2f")).replace("a", encode("%61"), 1)
    redirect = await alice.api.get(f"/projects/{old}/repository/files/a%2Fb/raw?ref=main")
    to = f"{forge.base}/api/v4{url}/repository/files/a%2Fb/raw?ref=main"
    assert (redirect.status, redirect.headers["Location"]) == (301, to)


@pytest.mark.parametrize("part", ["ap", "v4", "a"])
async def test_an_old_path_that_stands_elsewhere_in_the_url_too(forge: Forge, part: str) -> None:
    group = await forge.group(path=part)
    assert (await forge.root.put(f"/groups/{group['id']}", {"path": new_name(part)})).status == 200
    redirect = await forge.root.get(f"/groups/{part}/projects")
    to = f"{forge.base}/api/v4/groups/{group['id']}/projects"
    assert (redirect.status, redirect.headers["Location"]) == (301, to)


async def test_a_transfer_that_cannot_be_is_refused(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group, hidden = await forge.group(), await forge.group(visibility="private")
    project = await forge.project(alice, members={Role.MAINTAINER: bob})
    await forge.member("groups", group["id"], alice, Role.DEVELOPER)
    where = f"/projects/{project['id']}/transfer"

    async def refused(namespace: object) -> str:
        answer = await alice.api.put(where, {"namespace": namespace})
        assert answer.status == 400, answer
        return str(answer.body["message"])

    permission = "You don't have permission to transfer projects into that namespace."
    assert await refused(group["id"]) == f'Failed to transfer project {{:new_namespace=>["{permission}"]}}'
    assert "Project is already in this namespace." in await refused(alice.username)
    assert permission in await refused(bob.username)
    for missing in ("nowhere", 999_999_999, hidden["id"]):
        answer = await alice.api.put(where, {"namespace": missing})
        assert (answer.status, answer.body) == (404, {"message": "404 Namespace Not Found"})
    assert (await bob.api.put(where, {"namespace": bob.username})).status == 403
    await forge.root.put(f"/groups/{group['id']}/members/{alice.id}", {"access_level": 40})
    await forge.project(namespace_id=group["id"], path=project["path"])
    assert "Project with same name or path in target namespace already exists" in await refused(group["id"])


async def test_python_gitlab_on_projects_of_users(forge: Forge) -> None:
    alice = await forge.user("alice")
    group, project = await forge.group(alice), await forge.project(alice)

    def walk() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        client.projects.get(project["id"]).transfer(group["id"])
        assert client.users.get(alice.id).projects.list(get_all=True) == []
        assert [one.id for one in client.projects.get(project["id"]).users.list(get_all=True)]
        root = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        assert root.users.get(alice.id).memberships.list(get_all=True)
        assert client.groups.get(group["id"]).descendant_groups.list(get_all=True) == []

    await asyncio.to_thread(walk)
