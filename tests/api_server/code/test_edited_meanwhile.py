"""`last_commit_id`: what was changed since its author looked at it is not overwritten."""

from typing import Any

import pytest

from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of

Scene = tuple[Person, dict[str, Any], dict[str, str]]


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    """A project, and the commits that made its files `a`, `b` and `c`, in that order."""
    alice = await forge.user()
    project = await forge.project(alice)
    made = {name: await commit(alice.api, project, "main", name) for name in ("a", "b", "c")}
    return alice, project, made


def file_url(project: dict[str, Any], name: str) -> str:
    return f"/projects/{project['id']}/repository/files/{name}"


async def test_the_files_own_last_commit_counts(scene: Scene) -> None:
    """Not the branch's, which others have moved by changing other files."""
    alice, project, made = scene
    head = await alice.api.request("HEAD", f"{file_url(project, 'a')}?ref=main")
    assert head.headers["X-Gitlab-Last-Commit-Id"] == made["a"]
    shown = (await alice.api.get(f"{file_url(project, 'a')}?ref=main")).body
    assert (shown["last_commit_id"], shown["commit_id"]) == (made["a"], made["c"])
    body = {"branch": "main", "content": "2", "commit_message": "Change a", "last_commit_id": made["a"]}
    assert (await alice.api.put(file_url(project, "a"), body)).status == 200
    again = await alice.api.put(file_url(project, "a"), body | {"content": "3"})
    text = "You are attempting to update a file that has changed since you started editing it."
    assert (again.status, again.body) == (400, {"message": text})
    removed = await alice.api.delete(file_url(project, "a"), json=body)
    text = "You are attempting to delete a file that has been previously updated."
    assert (removed.status, removed.body) == (400, {"message": text})


@pytest.mark.parametrize(
    "action",
    [
        {"action": "update", "file_path": "b", "content": "2"},
        {"action": "delete", "file_path": "b"},
        {"action": "move", "file_path": "d", "previous_path": "b"},
        {"action": "chmod", "file_path": "b", "execute_filemode": True},
    ],
    ids=lambda action: action["action"],
)
async def test_each_action_of_a_commit_may_say_what_it_knows(scene: Scene, action: dict[str, Any]) -> None:
    alice, project, made = scene
    url = f"/projects/{project['id']}/repository/commits"
    before = await head_of(alice.api, project, "main")
    body = {"branch": "main", "commit_message": "Change", "actions": [action | {"last_commit_id": made["c"]}]}
    refused = await alice.api.post(url, body)
    text = "The file has changed since you started editing it: b"
    assert (refused.status, refused.body) == (400, {"message": text})
    assert await head_of(alice.api, project, "main") == before
    known = body | {"actions": [action | {"last_commit_id": made["b"]}], "start_branch": "main"}
    assert (await alice.api.post(url, known | {"branch": f"of-{action['action']}"})).status == 201


async def test_a_file_is_written_with_its_mode(scene: Scene) -> None:
    alice, project, _ = scene
    url = file_url(project, "run.sh")
    body = {"branch": "main", "content": "true", "commit_message": "Change"}
    for method, sent, mode in (
        ("POST", {"execute_filemode": True}, "100755"),
        ("PUT", {"content": "false"}, "100755"),
        ("PUT", {"content": "false", "execute_filemode": False}, "100644"),
    ):
        answer = await alice.api.request(method, url, json=body | sent)
        assert answer.status in (200, 201), answer
        tree = (await alice.api.get(f"/projects/{project['id']}/repository/tree?ref=main")).body
        assert {node["mode"] for node in tree if node["name"] == "run.sh"} == {mode}
