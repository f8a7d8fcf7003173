"""Merge requests with trees of which a dozen objects are millions of files: nobody reads them to their end."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.git import commits as git_commits
from api_server.git import new_commits
from api_server.git.errors import TooManyFilesError
from tests.api_server.merge_requests.test_rebase import over
from tests.support.forge import Forge, Person
from tests.support.git_client import git_url
from tests.support.large_trees import Plumbing, bomb, plumbing

#: A million files: more than are merged here, and few enough that merging them would end.
LEVELS = 6


@attrs.frozen
class Pushed:
    """A project of Alice's; `commits` are the heads of its branches."""

    url: str
    commits: dict[str, str]


async def pushed(forge: Forge, alice: Person, made: Plumbing, trees: dict[str, str]) -> Pushed:
    """Branches with these trees on top of a first commit, which has the one of that name or no file."""
    project = await forge.project(alice)
    first = made.commit(trees.pop("first", made.tree({})))
    commits = {name: made.commit(tree, first) for name, tree in trees.items()}
    address = git_url(forge, project["path_with_namespace"], alice)
    for name, commit in commits.items():
        await made.git("push", "--quiet", address, f"{commit}:refs/heads/{name}")
    return Pushed(f"/projects/{project['id']}", commits)


@pytest.mark.parametrize("where", ["first", "main", "feature"])
async def test_what_has_too_many_files_is_merged_by_hand(
    forge: Forge, alice: Person, tmp_path: Path, where: str
) -> None:
    made = await plumbing(tmp_path)
    entries = {"first": {"a": ("100644", made.blob())}}
    for name in ("main", "feature"):
        entries[name] = entries["first"] | {name: ("100644", made.blob(name.encode()))}
    entries[where] = entries[where] | {"many": ("040000", bomb(made, LEVELS))}
    project = await pushed(forge, alice, made, {name: made.tree(one) for name, one in entries.items()})
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Large"}
    opened = await alice.api.post(f"{project.url}/merge_requests", wanted)
    assert (opened.status, opened.body["detailed_merge_status"]) == (201, "conflict")
    one = f"{project.url}/merge_requests/1"
    assert (await alice.api.put(f"{one}/merge")).status == 422
    assert (await alice.api.get(f"{one}/merge_ref")).status == 400
    assert (await alice.api.put(f"{one}/rebase")).status == 202
    error = (await over(alice.api, one))["merge_error"]
    assert error == "Rebase failed: Commits with more than 300000 files and folders are not rebased."


async def test_a_commit_in_between_with_too_many_files_is_not_rebased(
    forge: Forge, alice: Person, tmp_path: Path
) -> None:
    made = await plumbing(tmp_path)
    small = made.tree({"a": ("100644", made.blob())})
    project = await pushed(forge, alice, made, {"main": small})
    repository = forge.repository(int(project.url.rpartition("/")[2]))
    first = str(repository[project.commits["main"]].parent_ids[0])
    head = made.commit(small, made.commit(bomb(made, LEVELS), first))
    shown = (await alice.api.get(project.url)).body
    await made.git(
        "push", "--quiet", git_url(forge, shown["path_with_namespace"], alice), f"{head}:refs/heads/a"
    )
    with pytest.raises(TooManyFilesError):
        await new_commits.rebase(repository, head, first, git_commits.Person("Alice", alice.email, 0))


async def test_an_open_one_gets_too_many_files_by_a_push(forge: Forge, alice: Person, tmp_path: Path) -> None:
    made = await plumbing(tmp_path)
    trees = {name: made.tree({name: ("100644", made.blob())}) for name in ("main", "feature")}
    project = await pushed(forge, alice, made, trees)
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Large"}
    opened: dict[str, Any] = (await alice.api.post(f"{project.url}/merge_requests", wanted)).body
    assert opened["detailed_merge_status"] == "mergeable"
    head = made.commit(bomb(made, LEVELS), project.commits["feature"])
    shown = (await alice.api.get(project.url)).body
    address = git_url(forge, shown["path_with_namespace"], alice)
    await made.git("push", "--quiet", address, f"{head}:refs/heads/feature")
    shown = (await alice.api.get(f"{project.url}/merge_requests/1")).body
    assert (shown["sha"], shown["detailed_merge_status"]) == (head, "conflict")
