"""The content that is removed with a project, a group and a user, its audit events, and the surrogate keys of which
edges are notified."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import attrs
import pytest

from api_server.code.refs import ref_key
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces import removal
from api_server.state.audit_trail import Author
from api_server.state.database import Database, Transaction
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from scripts.bench.filling import fill_jobs as fill
from tests.support.ci import ci_project
from tests.support.forge import Answer, Client, Forge, Person, new_name
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import open_merge_request
from tests.support.purges import Told
from tests.support.waiting import until

Json = dict[str, Any]
#: The three ways in which a project is removed.
WAYS = ("alone", "with its group", "with its owner")


async def _project(forge: Forge, way: str) -> tuple[Json, str]:
    """Create a project with a repository; return it with the URL whose DELETE removes it in that way."""
    alice = await forge.user("alice")
    if way == "with its group":
        group = await forge.group(alice)
        subgroup = await forge.group(parent_id=group["id"])
        project = await forge.project(alice, namespace_id=subgroup["id"], initialize_with_readme=True)
        return project, f"/groups/{group['id']}"
    project = await forge.project(alice, initialize_with_readme=True)
    return project, f"/projects/{project['id']}" if way == "alone" else f"/users/{alice.id}"


async def _removed(forge: Forge, url: str) -> Answer:
    answer = await forge.root.delete(url)
    assert answer.status in (202, 204), answer
    return answer


async def _events(forge: Forge, kind: str) -> dict[str, tuple[str, str]]:
    """Return the authors and messages of the events of this type, by the path of their entity."""
    rows = await forge.database.rows(
        "SELECT entity_path, author_name, details::json ->> 'custom_message' AS message FROM audit_events"
        " WHERE event_type = %(kind)s",
        kind=kind,
    )
    return {row.entity_path: (row.author_name, row.message) for row in rows}


@pytest.mark.parametrize("way", WAYS)
async def test_a_project_leaves_an_event_and_nothing_on_disk(forge: Forge, way: str) -> None:
    project, url = await _project(forge, way)
    repositories = forge.server.app[SERVICES][REPOSITORIES]
    assert repositories.exists(project["id"])
    await _removed(forge, url)
    assert (await forge.root.get(f"/projects/{project['id']}")).status == 404
    events = await _events(forge, "project_destroyed")
    assert events[project["path_with_namespace"]] == ("Administrator", "Removed project")

    async def is_gone() -> bool:
        return not repositories.exists(project["id"])

    await until(is_gone)


@pytest.mark.parametrize("way", WAYS)
async def test_edges_are_told_of_a_removed_project(with_edge: tuple[Forge, Told], way: str) -> None:
    forge, told = with_edge
    project, url = await _project(forge, way)
    assert await told.by(forge.root.delete(url)) == {f"project-{project['id']}"}


async def test_a_group_goes_with_all_that_is_below_it_and_each_leaves_an_event(forge: Forge) -> None:
    group = await forge.group()
    middle = await forge.group(parent_id=group["id"])
    lowest = await forge.group(parent_id=middle["id"])
    projects = [await forge.project(namespace_id=place["id"]) for place in (group, middle, lowest)]
    beside = await forge.group()
    await _removed(forge, f"/groups/{group['id']}")
    groups, gone = await _events(forge, "group_destroyed"), await _events(forge, "project_destroyed")
    assert {group["full_path"], middle["full_path"], lowest["full_path"]} <= groups.keys()
    assert {project["path_with_namespace"] for project in projects} <= gone.keys()
    assert beside["full_path"] not in groups
    for place in (group, middle, lowest):
        assert (await forge.root.get(f"/groups/{place['id']}")).status == 404


async def test_what_is_removed_twice_at_once_leaves_one_event(forge: Forge) -> None:
    group = await forge.group()
    project = await forge.project(namespace_id=group["id"])
    urls = [f"/projects/{project['id']}", f"/groups/{group['id']}", f"/groups/{group['id']}"]
    answers = await asyncio.gather(*(forge.root.delete(url) for url in urls))
    assert {answer.status for answer in answers} <= {202, 404}
    count = "SELECT count(*) FROM audit_events WHERE event_type = %(kind)s AND entity_id = %(id)s"
    for kind, gone in (("project_destroyed", project), ("group_destroyed", group)):
        assert await forge.database.value(count, kind=kind, id=gone["id"]) == 1


async def test_nothing_is_left_behind_in_a_group_that_is_removed_meanwhile(forge: Forge) -> None:
    """A project or subgroup that is created while its group is removed is either not created, or removed with it."""
    for number in range(5):
        group = await forge.group()
        made = [
            forge.root.post("/projects", {"path": f"p{number}", "namespace_id": group["id"]}),
            forge.root.post("/groups", {"name": "g", "path": f"g{number}", "parent_id": group["id"]}),
        ]
        project, subgroup, removed = await asyncio.gather(*made, forge.root.delete(f"/groups/{group['id']}"))
        assert removed.status == 202
        for answer, kind in ((project, "project_destroyed"), (subgroup, "group_destroyed")):
            assert answer.status in (201, 404), answer
            if answer.status == 201:
                path = answer.body.get("path_with_namespace") or answer.body["full_path"]
                assert path in await _events(forge, kind)


async def test_a_users_memberships_end_with_her_and_so_does_what_she_has_invited_to(forge: Forge) -> None:
    alice = await forge.user("alice")
    group, project = await forge.group(alice), await forge.project(members={Role.MAINTAINER: alice})
    for url in (f"/groups/{group['id']}", f"/projects/{project['id']}"):
        invited = await alice.api.post(
            f"{url}/invitations", {"email": f"{alice.username}@example.net", "access_level": 30}
        )
        assert invited.body == {"status": "success"}
    await _removed(forge, f"/users/{alice.id}")
    for kind, place in (("Group", group), ("Project", project)):
        rows = await forge.database.rows(
            "SELECT author_name, target_details, details::json ->> 'custom_message' AS message FROM audit_events"
            " WHERE event_type = 'member_destroyed' AND entity_type = %(kind)s AND entity_id = %(id)s ORDER BY id",
            kind=kind,
            id=place["id"],
        )
        assert [tuple(row) for row in rows] == [
            ("Administrator", alice.username.title(), "Membership destroyed"),
            ("Administrator", f"{alice.username}@example.net", "Invitation destroyed"),
        ]
        invitations = await forge.root.get(f"/{kind.lower()}s/{place['id']}/invitations")
        assert invitations.body == []


#: Rows of a project that exist without it.
LEFT = """
    SELECT (SELECT count(*) FROM pipelines WHERE project_id = %(id)s)
        + (SELECT count(*) FROM jobs WHERE project_id = %(id)s)
        + (SELECT count(*) FROM job_artifacts WHERE project_id = %(id)s)
"""
OF_JOBS = """
    INSERT INTO job_artifacts (project_id, job_id, file_type, file_format, filename, size, object_key, sha256)
    SELECT project_id, id, 'archive', 'zip', 'artifacts.zip', 1, 'none/' || id, '' FROM jobs
    WHERE project_id = %(id)s AND status = 'success'
"""


async def _full_project(forge: Forge, jobs: int) -> int:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    async with forge.database.transaction() as transaction:
        await fill(transaction, project_id=project["id"], user_id=alice.id, runner_id=None, jobs=jobs)
        await transaction.run(OF_JOBS, id=project["id"])
    return int(project["id"])


async def test_a_removal_waits_for_none_of_the_jobs_that_have_finished(forge: Forge) -> None:
    """The number of jobs does not matter: they are removed after the project."""
    project_id = await _full_project(forge, 2 * removal.STEP_JOBS)
    finished = (
        "SELECT id FROM jobs WHERE project_id = $1 AND status = 'success' ORDER BY id DESC LIMIT 1 FOR UPDATE"
    )
    holder = await asyncpg.connect(forge.settings.database_url)
    try:
        async with holder.transaction():
            job_id = await holder.fetchval(finished, project_id)
            assert (await forge.root.delete(f"/projects/{project_id}")).status == 202
            for path in ("", f"/jobs/{job_id}", f"/jobs/{job_id}/trace", f"/jobs/{job_id}/artifacts"):
                assert (await forge.root.get(f"/projects/{project_id}{path}")).status == 404
    finally:
        await holder.close()

    async def nothing_is_left() -> bool:
        return not await forge.database.value(LEFT, id=project_id)

    await until(nothing_is_left)


async def test_a_running_job_ends_with_its_project(forge: Forge) -> None:
    project = await ci_project(forge)
    job = await project.job_in("running")
    async with forge.database.transaction() as transaction:
        await removal.remove_project(transaction, project.id, Author(id=-1, name="Nobody"))
        assert not await transaction.value("SELECT count(*) FROM jobs WHERE id = %(id)s", id=job["id"])


class _Ending(Exception):
    """The end of the process."""


class _Mortal:
    """A database that fails after this many transactions."""

    def __init__(self, database: Database, transactions: int) -> None:
        self.database, self.left = database, transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.database.transaction() as transaction:
            yield transaction
            self.left -= 1
            if self.left < 0:
                raise _Ending


@pytest.mark.parametrize("transactions", [0, 1, 3])
async def test_a_removal_that_was_killed_goes_on(forge: Forge, transactions: int) -> None:
    project_id = await _full_project(forge, 3 * removal.STEP_JOBS + 200)
    before = await forge.database.value(LEFT, id=project_id)
    await removal.remove_pipelines(forge.database, project_id)
    assert await forge.database.value(LEFT, id=project_id) == before, "the project is there"
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM projects WHERE id = %(id)s", id=project_id)
    with pytest.raises(_Ending):
        await removal.remove_pipelines(cast("Database", _Mortal(forge.database, transactions)), project_id)
    left = await forge.database.value(LEFT, id=project_id)
    assert 0 < left <= before
    assert (left < before) == (transactions > 0)
    await removal.remove_pipelines(forge.database, project_id)
    assert await forge.database.value(LEFT, id=project_id) == 0


REMOVALS: dict[str, Callable[[Client, str], Awaitable[Answer]]] = {
    "show": lambda client, url: client.get(url),
    "change": lambda client, url: client.put(url, {"description": "changed"}),
    "archive": lambda client, url: client.post(f"{url}/archive"),
    "transfer": lambda client, url: client.put(f"{url}/transfer", {"namespace": "root"}),
    "delete": lambda client, url: client.delete(url),
    "protect": lambda client, url: client.post(f"{url}/protected_branches", {"name": "x"}),
    "branches": lambda client, url: client.get(f"{url}/repository/branches"),
    "commit": lambda client, url: client.post(
        f"{url}/repository/files/new", {"branch": "main", "content": "", "commit_message": "Add"}
    ),
    "protected": lambda client, url: client.get(f"{url}/protected_branches/main"),
    "add a member": lambda client, url: client.post(
        f"{url}/members", {"username": "root", "access_level": 40}
    ),
    "invite": lambda client, url: client.post(
        f"{url}/invitations", {"email": "a@example.org", "access_level": 30}
    ),
}


@pytest.mark.parametrize("way", REMOVALS)
async def test_what_another_process_has_deleted_is_404_while_it_is_remembered(
    two_forges: tuple[Forge, Forge], way: str
) -> None:
    one, other = two_forges
    project = await one.project(initialize_with_readme=True)
    url = f"/projects/{project['id']}"
    assert (await other.root.get(url)).status == 200
    assert (await one.root.delete(url)).status == 202
    repositories = one.server.app[SERVICES][REPOSITORIES]
    await repositories.delete(project["id"])
    answer = await REMOVALS[way](other.root, url)
    assert answer.status == 404, answer
    assert answer.body["message"].startswith("404 ")
    assert not repositories.exists(project["id"]), "nothing of it comes back"


async def test_a_change_by_another_process_is_seen_within_a_second(two_forges: tuple[Forge, Forge]) -> None:
    one, other = two_forges
    stranger = await one.user("stranger")
    project = await one.project(visibility="public")
    url = f"{other.base}/api/v4/projects/{project['id']}"
    assert (await stranger.api.get(url)).status == 200
    await one.root.put(f"/projects/{project['id']}", {"visibility": "private"})
    await asyncio.sleep(1)
    assert (await stranger.api.get(url)).status == 404


@pytest.mark.parametrize("kind", ["projects", "groups"])
async def test_gets_that_race_a_delete_show_it_whole_or_not_at_all(
    two_forges: tuple[Forge, Forge], kind: str
) -> None:
    for _ in range(3):
        made = await (two_forges[0].project() if kind == "projects" else two_forges[0].group())
        url = f"/{kind}/{made['id']}"
        reads = [forge.root.get(url) for forge in two_forges for _ in range(20)]
        deletes = [two_forges[0].root.delete(url)]
        answers = await asyncio.gather(*reads[:20], *deletes, *reads[20:])
        gone = {"message": f"404 {'Project' if kind == 'projects' else 'Group'} Not Found"}
        for answer in answers[:20] + answers[21:]:
            if answer.status == 200:
                assert answer.body["id"] == made["id"]
            else:
                assert answer.status == 404
                assert answer.body in (gone, {"message": "404 Not found"})
        assert answers[20].status == 202


@attrs.frozen
class Scene:
    """A group with a subgroup; a project with commits in each, and one in its owner's namespace.

    Each has the branches `main` and `feature` and the tag `v1`; a merge request of `project` is open.
    """

    forge: Forge
    owner: Person
    group: Json
    subgroup: Json
    project: Json
    below: Json
    own: Json

    def url(self, rest: str = "", project: Json | None = None) -> str:
        return f"/projects/{(project or self.project)['id']}{rest}"

    async def put(self, rest: str = "", project: Json | None = None, **values: Any) -> Answer:
        return await self.owner.api.put(self.url(rest, project), values)

    async def post(self, rest: str, **values: Any) -> Answer:
        return await self.owner.api.post(self.url(rest), values)

    async def put_group(self, **values: Any) -> Answer:
        return await self.owner.api.put(f"/groups/{self.group['id']}", values)

    async def put_user(self, **values: Any) -> Answer:
        return await self.forge.root.put(f"/users/{self.owner.id}", values)


async def _public_project(owner: Person, forge: Forge, **values: Any) -> Json:
    project = await forge.project(owner, initialize_with_readme=True, **values)
    url = f"/projects/{project['id']}/repository"
    for what, named in (("branches", {"branch": "feature"}), ("tags", {"tag_name": "v1"})):
        assert (await owner.api.post(f"{url}/{what}", {"ref": "main"} | named)).status == 201
    return project


async def _scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    group = await forge.group(owner)
    subgroup = await forge.group(parent_id=group["id"])
    below, own = [
        await _public_project(owner, forge, **where) for where in ({"namespace_id": subgroup["id"]}, {})
    ]
    return await _with_another_project(Scene(forge, owner, group, subgroup, below, below, own))


async def _with_another_project(scene: Scene) -> Scene:
    project = await _public_project(scene.owner, scene.forge, namespace_id=scene.group["id"])
    await open_merge_request(scene.owner, project, "topic")
    return attrs.evolve(scene, project=project)


@pytest.fixture(scope="module")
async def neighbours(with_edge: tuple[Forge, Told]) -> Scene:
    return await _scene(with_edge[0])


@pytest.fixture
async def scene(neighbours: Scene) -> Scene:
    """A scene with a project of the test's own; tests leave everything else as it is."""
    return await _with_another_project(neighbours)


@pytest.fixture
async def own_scene(with_edge: tuple[Forge, Told]) -> Scene:
    return await _scene(with_edge[0])


def _file(branch: str) -> Json:
    return {"branch": branch, "commit_message": "Change", "content": "changed"}


Change = Callable[[Scene], Awaitable[Answer]]
#: Changes that affect the whole project.
PROJECT: dict[str, Change] = {
    "visibility": lambda s: s.put(visibility="public"),
    "path": lambda s: s.put(path=new_name("moved")),
    "who reads the repository": lambda s: s.put(repository_access_level="private"),
    "archive": lambda s: s.post("/archive"),
    "transfer": lambda s: s.put("/transfer", namespace=s.owner.username),
    "default branch": lambda s: s.put(default_branch="feature"),
    "delete": lambda s: s.owner.api.delete(s.url()),
    "a new branch": lambda s: s.post("/repository/branches", branch="new", ref="main"),
    "a branch deleted": lambda s: s.owner.api.delete(s.url("/repository/branches/feature")),
    "a new tag": lambda s: s.post("/repository/tags", tag_name="v2", ref="main"),
    "a tag deleted": lambda s: s.owner.api.delete(s.url("/repository/tags/v1")),
    "a commit to a new branch": lambda s: s.post(
        "/repository/files/new", **_file("new") | {"start_branch": "main"}
    ),
    "a merge that removes its source": lambda s: s.put(
        "/merge_requests/1/merge", should_remove_source_branch=True
    ),
}
#: Changes that affect one ref of it.
REF: dict[str, tuple[str, Change]] = {
    "a commit": ("feature", lambda s: s.post("/repository/files/new", **_file("feature"))),
    "a merge": ("main", lambda s: s.put("/merge_requests/1/merge")),
}
#: Changes that affect all projects below the group, and those in a user's own namespace.
GROUP: dict[str, Change] = {
    "path": lambda s: s.put_group(path=new_name("moved")),
    "delete": lambda s: s.owner.api.delete(f"/groups/{s.group['id']}"),
}
USER: dict[str, Change] = {
    "user name": lambda s: s.put_user(username=new_name("moved")),
    "delete": lambda s: s.forge.root.delete(f"/users/{s.owner.id}"),
}
#: Changes that affect nothing that edges store, in the order in which they are made in one scene.
NOTHING: dict[str, Change] = {
    "name and description": lambda s: s.put(name="Other", description="Other"),
    "what it has already": lambda s: s.put(
        visibility="private", path=s.project["path"], default_branch="main"
    ),
    "who sees its pipelines": lambda s: s.put(builds_access_level="private", public_jobs=False),
    "CI file": lambda s: s.put(ci_config_path="other.yml"),
    "conditions of merging": lambda s: s.put(only_allow_merge_if_pipeline_succeeds=True),
    "a protected branch": lambda s: s.post("/protected_branches", name="feature"),
    "a member": lambda s: s.post("/members", username="root", access_level=50),
    "a group's name": lambda s: s.put_group(name="Other", description="Other"),
    "a group's visibility": lambda s: s.owner.api.put(
        f"/groups/{s.subgroup['id']}", {"visibility": "internal"}
    ),
    "a user's name": lambda s: s.put_user(name="Other", bio="Other"),
    "a setting": lambda s: s.forge.root.put("/application/settings", {"default_projects_limit": 7}),
    "a new project": lambda s: s.owner.api.post("/projects", {"path": "made"}),
    "a user blocked": lambda s: s.forge.root.post(f"/users/{s.owner.id}/block"),
}


def key(project: Json) -> str:
    return f"project-{project['id']}"


@pytest.mark.parametrize("change", PROJECT)
async def test_of_the_project(with_edge: tuple[Forge, Told], scene: Scene, change: str) -> None:
    assert await with_edge[1].by(PROJECT[change](scene)) == {key(scene.project)}


async def test_of_a_project_taken_out_of_the_archive(with_edge: tuple[Forge, Told], scene: Scene) -> None:
    await scene.post("/archive")
    assert await with_edge[1].by(scene.post("/unarchive")) == {key(scene.project)}


@pytest.mark.parametrize("change", REF)
async def test_of_one_ref(with_edge: tuple[Forge, Told], scene: Scene, change: str) -> None:
    ref, made = REF[change]
    assert await with_edge[1].by(made(scene)) == {ref_key(scene.project["id"], ref)}


@pytest.mark.parametrize("change", GROUP)
async def test_of_all_below_a_group(with_edge: tuple[Forge, Told], own_scene: Scene, change: str) -> None:
    assert await with_edge[1].by(GROUP[change](own_scene)) == {key(own_scene.project), key(own_scene.below)}


@pytest.mark.parametrize("change", USER)
async def test_of_all_that_is_a_users_own(
    with_edge: tuple[Forge, Told], own_scene: Scene, change: str
) -> None:
    assert await with_edge[1].by(USER[change](own_scene)) == {key(own_scene.own)}


async def test_of_nothing(with_edge: tuple[Forge, Told], own_scene: Scene) -> None:
    keys = {change: await with_edge[1].by(made(own_scene)) for change, made in NOTHING.items()}
    assert {change: told for change, told in keys.items() if told} == {}


async def test_of_a_project_that_begins_with_a_commit(with_edge: tuple[Forge, Told], scene: Scene) -> None:
    made = scene.owner.api.post("/projects", {"path": "begun", "initialize_with_readme": True})
    keys = await with_edge[1].by(made)
    shown = (await scene.owner.api.get(f"/projects/{scene.owner.username}%2Fbegun")).body
    assert keys == {key(shown)}


@pytest.mark.parametrize(
    ("refspec", "named"),
    [("HEAD:feature", "feature"), ("HEAD:new", None), (":feature", None), ("HEAD:refs/tags/v2", None)],
)
async def test_of_what_is_pushed(
    with_edge: tuple[Forge, Told], scene: Scene, tmp_path: Path, refspec: str, named: str | None
) -> None:
    forge, told = with_edge
    url = git_url(forge, scene.project["path_with_namespace"], scene.owner)
    await Git(tmp_path)("clone", "--quiet", "--branch", "feature", url, "clone")
    git = Git(tmp_path / "clone")
    await git.commit(pushed="1")
    told.keys.clear()
    await git("push", "--quiet", "origin", refspec)
    expected = key(scene.project) if named is None else ref_key(scene.project["id"], named)
    assert told.keys == {expected}
