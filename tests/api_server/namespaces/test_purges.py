"""Change by change: under which surrogate keys edges are told of it before it is answered, and where they are not."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.code.refs import ref_key
from tests.support.forge import Answer, Forge, Person, new_name
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import open_merge_request
from tests.support.purges import Told

Json = dict[str, Any]


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


async def _project(owner: Person, forge: Forge, **values: Any) -> Json:
    project = await forge.project(owner, initialize_with_readme=True, **values)
    url = f"/projects/{project['id']}/repository"
    for what, named in (("branches", {"branch": "feature"}), ("tags", {"tag_name": "v1"})):
        assert (await owner.api.post(f"{url}/{what}", {"ref": "main"} | named)).status == 201
    return project


async def _scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    group = await forge.group(owner)
    subgroup = await forge.group(parent_id=group["id"])
    below, own = [await _project(owner, forge, **where) for where in ({"namespace_id": subgroup["id"]}, {})]
    return await _with_another_project(Scene(forge, owner, group, subgroup, below, below, own))


async def _with_another_project(scene: Scene) -> Scene:
    project = await _project(scene.owner, scene.forge, namespace_id=scene.group["id"])
    await open_merge_request(scene.owner, project, "topic")
    return attrs.evolve(scene, project=project)


@pytest.fixture(scope="module")
async def neighbours(with_edge: tuple[Forge, Told]) -> Scene:
    return await _scene(with_edge[0])


@pytest.fixture
async def scene(neighbours: Scene) -> Scene:
    """The project is the test's own; it leaves all else as it is."""
    return await _with_another_project(neighbours)


@pytest.fixture
async def own_scene(with_edge: tuple[Forge, Told]) -> Scene:
    return await _scene(with_edge[0])


def _file(branch: str) -> Json:
    return {"branch": branch, "commit_message": "Change", "content": "changed"}


Change = Callable[[Scene], Awaitable[Answer]]
#: The whole project.
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
#: One ref of it.
REF: dict[str, tuple[str, Change]] = {
    "a commit": ("feature", lambda s: s.post("/repository/files/new", **_file("feature"))),
    "a merge": ("main", lambda s: s.put("/merge_requests/1/merge")),
}
#: All projects below the group, and those in a user's own namespace.
GROUP: dict[str, Change] = {
    "path": lambda s: s.put_group(path=new_name("moved")),
    "delete": lambda s: s.owner.api.delete(f"/groups/{s.group['id']}"),
}
USER: dict[str, Change] = {
    "user name": lambda s: s.put_user(username=new_name("moved")),
    "delete": lambda s: s.forge.root.delete(f"/users/{s.owner.id}"),
}
#: Nothing that edges keep; in the order in which it is done to one scene.
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
