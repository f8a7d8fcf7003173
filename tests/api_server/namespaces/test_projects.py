"""Projects: who creates them, their life cycle, their lists, their content, and who sees it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gitlab
import pygit2
import pytest
from pygit2.references import References

from api_server.namespaces.projects import CREATION_LISTENERS
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.deviations import Deviations
from tests.support.forge import Client, Forge, new_name
from tests.support.purges import Told


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
    """`membership`, `min_access_level` and `owned` include inherited roles."""
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
    assert await ids(f"membership=true&id_after={hers[0]}&id_before={hers[2]}") == [guest["id"]]
    assert await ids("membership=true&last_activity_after=2100-01-01") == []
    assert await ids("membership=true&last_activity_before=2000-01-01") == []
    below = f"/groups/{group['id']}/projects"
    assert await ids("", below) == []
    assert await ids("include_subgroups=true", below) == [inherited["id"]]
    assert await ids("include_subgroups=true&owned=true", below) == []
    assert await ids("include_subgroups=true&min_access_level=30", below) == [inherited["id"]]
    groups = [group["id"], subgroup["id"]]
    assert await ids("min_access_level=30", "/groups") == groups
    assert await ids("owned=true", "/groups") == []
    assert set(groups) <= set(await ids("per_page=100&order_by=id&sort=desc", "/groups"))


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
    """This holds for parallel requests too; groups do not have the limit."""
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


async def test_simple_lists_have_few_keys(forge: Forge) -> None:
    group = await forge.group(alice := await forge.user("alice"))
    project = await forge.project(alice, namespace_id=group["id"])
    for path in (
        f"/groups/{group['id']}/projects?",
        "/projects?",
        "/projects?owned=true&",
        "/projects?visibility=private&",
    ):
        full = (await alice.api.get(f"{path}per_page=1")).body[0]
        listed = await alice.api.get(f"{path}per_page=1&simple=true")
        assert (full["id"], listed.headers.get("X-Ignored-Parameters")) == (project["id"], None)
        assert listed.body == [{key: full[key] for key in listed.body[0]}]
        assert len(listed.body[0]) == 20
        assert {"_links", "permissions", "owner"}.isdisjoint(listed.body[0])


#: Requests of anonymous callers, and which of the three projects they are shown.
STRANGERS = [
    ("", ["public"]),
    ("&simple=true", ["public"]),
    ("&visibility=public", ["public"]),
    ("&visibility=internal", []),
    ("&visibility=private", []),
    ("&archived=true", []),
    ("&membership=true", ["public"]),
    ("&owned=true&min_access_level=50", ["public"]),
    ("&order_by=last_activity_at&pagination=keyset", None),
    ("&pagination=keyset&order_by=id", ["public"]),
]


async def test_strangers_see_the_public_projects_with_few_keys(forge: Forge) -> None:
    alice, word = await forge.user("alice"), f"w{forge.settings.port}"
    made = {
        visibility: await forge.project(alice, name=f"{word} {visibility}", visibility=visibility)
        for visibility in ("public", "internal", "private")
    }
    few = (await alice.api.get(f"/projects?simple=true&search={word}&visibility=public")).body
    deviations = Deviations()
    for query, names in STRANGERS:
        with deviations.of(query):
            answer = await forge.anonymous.get(f"/projects?search={word}{query}")
            assert answer.status == (405 if names is None else 200)
            assert names is None or answer.body == (few if names else [])
    assert not deviations, deviations.report
    assert few[0]["id"] == made["public"]["id"]
    assert few[0].keys() == (await alice.api.get("/projects?simple=true&per_page=1")).body[0].keys()
    assert (await Client(forge.session, forge.base, "no-such-token").get("/projects")).status == 401
    assert (await forge.anonymous.get("/projects?sudo=root")).status == 403


async def test_a_search_takes_every_character_as_itself(forge: Forge) -> None:
    project = await forge.project(name="100% sure_of it", path=f"sure-{forge.settings.port}")
    for text, found in (("100%25+SURE_", True), ("1%25it", False), ("sure%25of", False), ("sureXof", False)):
        listed = (await forge.root.get(f"/projects?search={text}")).body
        assert (project["id"] in [item["id"] for item in listed]) == found, text


WITH_README = {"path": "app", "initialize_with_readme": True}


def _repositories(data_dir: Path) -> list[Path]:
    return list(data_dir.glob("repositories/[0-9a-f][0-9a-f]/*"))


async def _fails_and_leaves_nothing(forge: Forge, data_dir: Path) -> None:
    """Check that neither rows nor files nor events remain, and that the path is free."""
    answer = await forge.root.post("/projects", WITH_README)
    assert (answer.status, answer.body) == (500, {"message": "500 Internal Server Error"})
    assert (await forge.root.get("/projects/root%2Fapp")).status == 404
    for table in ("projects", "pushes", "protected_branches", "routes WHERE path = 'root/app'"):
        assert await forge.database.value(f"SELECT count(*) FROM {table}") == 0
    events = "SELECT count(*) FROM audit_events WHERE event_type = 'project_created'"
    assert await forge.database.value(events) == 0
    assert _repositories(data_dir) == []
    made = await forge.root.post("/projects", {"path": "app"})
    assert made.status == 201, made


async def test_where_no_repository_can_be_made_there_is_no_project(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "repositories").write_text("in the way")
    async with new_forge() as forge:
        await _fails_and_leaves_nothing(forge, tmp_path)


async def test_where_no_branch_can_be_made_there_is_no_project(
    new_forge: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise pygit2.GitError("no")

    monkeypatch.setattr(References, "create", fail)
    async with new_forge() as forge:
        await _fails_and_leaves_nothing(forge, tmp_path)


async def test_a_first_commit_needs_no_git(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start one would take longer than everything else."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    project = await forge.project(initialize_with_readme=True)
    branch = await forge.root.get(f"/projects/{project['id']}/repository/branches/main")
    assert branch.body["commit"]["title"] == "Initial commit"


async def test_where_another_listener_fails_the_first_commit_goes_too(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError

    async with new_forge() as forge:
        forge.server.app[SERVICES][CREATION_LISTENERS].append(fail)
        answer = await forge.root.post("/projects", WITH_README)
        assert answer.status == 500
        assert await forge.database.value("SELECT count(*) FROM projects") == 0
        assert _repositories(tmp_path) == []


async def test_a_first_commit_moves_refs_as_every_commit_does(with_edge: tuple[Forge, Told]) -> None:
    """Listeners handle it in the transaction: nothing has to be settled later."""
    forge, _ = with_edge
    project = await forge.project(initialize_with_readme=True)
    waiting = "SELECT count(*) FROM pushes WHERE project_id = %(id)s"
    assert await forge.database.value(waiting, id=project["id"]) == 0
    queued = (
        "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'create_pushed_pipeline'"
        " AND args ->> 'project_id' = %(id)s::text"
    )
    assert await forge.database.value(queued, id=project["id"]) == 1


@pytest.mark.parametrize("name", ["a..b", "", "HEAD", "-x", "0" * 40])
async def test_a_default_branch_has_a_name_that_a_branch_can_have(forge: Forge, name: str) -> None:
    for with_readme in (True, False):
        wanted = {"path": "x", "default_branch": name, "initialize_with_readme": with_readme}
        answer = await forge.root.post("/projects", wanted)
        assert (answer.status, answer.body) == (400, {"message": {"default_branch": ["is invalid"]}})


async def test_a_project_in_no_namespace_is_404(forge: Forge) -> None:
    for client in (forge.root, (await forge.user()).api):
        await _refused(client, 999_999_999)


async def _refused(client: Client, namespace_id: int) -> None:
    answer = await client.post("/projects", {"path": "x", "namespace_id": namespace_id})
    assert (answer.status, answer.body) == (404, {"message": "404 Namespace Not Found"})


async def test_what_is_made_in_a_group_that_moves_is_where_the_group_is(forge: Forge) -> None:
    for number in range(8):
        group, outside = await forge.group(), await forge.project()
        url, new = f"/groups/{group['id']}", new_name("moved")
        answers = await asyncio.gather(
            forge.root.post("/projects", {"path": f"p{number}", "namespace_id": group["id"]}),
            forge.root.post("/groups", {"name": "g", "path": f"g{number}", "parent_id": group["id"]}),
            forge.root.put(f"/projects/{outside['id']}/transfer", {"namespace": group["id"]}),
            forge.root.put(url, {"path": new}),
        )
        assert [answer.status for answer in answers] == [201, 201, 200, 200]
        projects = (await forge.root.get(f"{url}/projects")).body
        subgroups = (await forge.root.get(f"{url}/subgroups")).body
        assert len(projects) == 2
        paths = [one["path_with_namespace"] for one in projects] + [one["full_path"] for one in subgroups]
        assert {path.partition("/")[0] for path in paths} == {new}
        for path in paths[:2]:
            assert (await forge.root.get(f"/projects/{path.replace('/', '%2F')}")).status == 200


async def test_a_project_is_made_with_what_it_demands_of_merges(forge: Forge) -> None:
    demands = {
        "only_allow_merge_if_pipeline_succeeds": True,
        "allow_merge_on_skipped_pipeline": True,
        "only_allow_merge_if_all_status_checks_passed": True,
        "only_allow_merge_if_all_discussions_are_resolved": True,
    }
    made = await forge.project(**demands)
    assert {name: made[name] for name in demands} == demands


ROLES = ("stranger", "reporter", "developer", "maintainer", "owner")
LEVELS = {
    "developer": {"developer", "maintainer", "owner", "administrator"},
    "maintainer": {"maintainer", "owner", "administrator"},
    "owner": {"owner", "administrator"},
    "administrator": {"administrator"},
    "noone": set(),
}


async def test_projects_are_made_by_those_whom_the_group_lets(forge: Forge) -> None:
    group = await forge.group()
    people = await forge.people(group["id"], "groups")
    clients = {role: people[role].api for role in ROLES} | {"administrator": forge.root}
    deviations = Deviations()
    for level, allowed in LEVELS.items():
        changed = await forge.root.put(f"/groups/{group['id']}", {"project_creation_level": level})
        assert (changed.status, changed.body["project_creation_level"]) == (200, level)
        for role, client in clients.items():
            made = await client.post("/projects", {"name": new_name("made"), "namespace_id": group["id"]})
            with deviations.of(f"{level}: {role}"):
                assert made.status == (201 if role in allowed else 403), made.body
    assert not deviations, deviations.report


async def test_a_group_is_made_with_a_level_and_takes_no_others_projects(forge: Forge) -> None:
    group = await forge.group(project_creation_level="noone")
    assert group["project_creation_level"] == "noone"
    assert (await forge.group())["project_creation_level"] == "developer"
    project = await forge.project()
    moved = await forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": group["id"]})
    assert moved.status == 400
    refused = await forge.root.put(f"/groups/{group['id']}", {"project_creation_level": "everybody"})
    assert refused.body == {"error": "project_creation_level does not have a valid value"}


@pytest.mark.parametrize("says", [None, False, True])
async def test_merge_requests_begin_with_what_the_project_says_of_their_branch(
    forge: Forge, says: bool | None
) -> None:
    project = await forge.project(initialize_with_readme=True, remove_source_branch_after_merge=True)
    where = f"/projects/{project['id']}"
    await forge.root.post(f"{where}/repository/branches", {"branch": "topic", "ref": "main"})
    new = {"source_branch": "topic", "target_branch": "main", "title": "a", "remove_source_branch": says}
    made = await forge.root.post(f"{where}/merge_requests", new)
    assert (made.status, made.body["force_remove_source_branch"]) == (201, says is not False)
