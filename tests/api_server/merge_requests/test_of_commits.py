"""Which merge requests a commit belongs to, as semantic-release asks after a release."""

import asyncio
from typing import Any

import attrs
import gitlab
import pytest

from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request


@attrs.frozen
class Scene:
    """`first` is merged by a commit; `second`, made of `main` after that, is open; `third` was closed."""

    owner: Person
    project: dict[str, Any]
    merge_requests: dict[str, dict[str, Any]]
    heads: dict[str, str]

    async def of(self, sha: str, query: str = "") -> list[int]:
        url = f"/projects/{self.project['id']}/repository/commits/{sha}/merge_requests?{query}"
        answer = await self.owner.api.get(url, expect=200)
        return [one["iid"] for one in answer.body]


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    project = await new_project(forge, owner)
    url = f"/projects/{project['id']}/merge_requests"
    heads = {"main": await head_of(owner.api, project, "main")}
    made = {"first": await open_merge_request(owner, project, "first")}
    heads["first"] = await head_of(owner.api, project, "first")
    merged = await owner.api.put(f"{url}/{made['first']['iid']}/merge", {}, expect=200)
    heads["merge"] = merged.body["merge_commit_sha"]
    for name in ("second", "third"):
        made[name] = await open_merge_request(owner, project, name)
        heads[name] = await head_of(owner.api, project, name)
        heads[f"{name} again"] = await commit(owner.api, project, name)
    await owner.api.put(f"{url}/{made['third']['iid']}", {"state_event": "close"})
    return Scene(owner, project, made, heads)


@pytest.mark.parametrize(
    ("commit", "names"),
    [
        ("main", []),
        ("first", ["first"]),
        ("merge", ["first"]),
        ("second", ["second"]),
        ("second again", ["second"]),
        ("third", ["third"]),
    ],
)
async def test_a_commit_belongs_to_what_brings_or_merges_it(
    scene: Scene, commit: str, names: list[str]
) -> None:
    expected = [scene.merge_requests[name]["iid"] for name in names]
    assert await scene.of(scene.heads[commit]) == expected


async def test_a_later_one_on_top_of_an_open_one_brings_its_commits_too(scene: Scene) -> None:
    stacked = await open_merge_request(scene.owner, scene.project, "stacked", "second")
    over = {"source_branch": "stacked", "target_branch": "main", "title": "All of it"}
    both = await scene.owner.api.post(f"/projects/{scene.project['id']}/merge_requests", over, expect=201)
    second = scene.merge_requests["second"]["iid"]
    assert await scene.of(scene.heads["second"]) == [both.body["iid"], second]
    assert await scene.of(stacked["sha"]) == [both.body["iid"], stacked["iid"]]
    assert await scene.of(scene.heads["second"], "per_page=1&page=2") == [second]


async def test_what_merging_would_make_brings_nothing_of_the_target(scene: Scene) -> None:
    await open_merge_request(scene.owner, scene.project, "tried")
    target = await commit(scene.owner.api, scene.project, "main")
    (tried,) = await scene.of(await head_of(scene.owner.api, scene.project, "tried"))
    url = f"/projects/{scene.project['id']}/merge_requests/{tried}/merge_ref"
    assert (await scene.owner.api.get(url)).status == 200
    assert await scene.of(target) == []


async def test_by_state_and_in_the_shape_of_lists(scene: Scene) -> None:
    assert await scene.of(scene.heads["first"], "state=opened") == []
    assert await scene.of(scene.heads["first"], "state=merged") == [scene.merge_requests["first"]["iid"]]
    listed = await scene.owner.api.get(f"/projects/{scene.project['id']}/merge_requests?state=merged")
    url = f"/projects/{scene.project['id']}/repository/commits"
    shown = await scene.owner.api.get(f"{url}/{scene.heads['first']}/merge_requests")
    assert shown.body == listed.body
    missing = await scene.owner.api.get(f"{url}/{'f' * 40}/merge_requests")
    assert (missing.status, missing.body) == (404, {"message": "404 Commit Not Found"})


async def test_python_gitlab_asks_for_them(forge: Forge, scene: Scene) -> None:
    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=scene.owner.token) as client:
            found = client.projects.get(scene.project["id"]).commits.get(scene.heads["first"])
            assert [one["iid"] for one in found.merge_requests()] == [scene.merge_requests["first"]["iid"]]

    await asyncio.to_thread(use)
