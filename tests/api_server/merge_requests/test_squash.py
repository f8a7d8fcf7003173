"""How a project merges: with one commit in the place of all, with or without a merge commit."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.git.errors import BranchMovedError
from api_server.git.repositories import Repository
from api_server.merge_requests import merging, merging_queries
from api_server.state.database import Database
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, open_merge_request


def repository_of(forge: Forge, project: dict[str, Any]) -> Repository:
    return forge.repository(project["id"])


def commit_of(forge: Forge, project: dict[str, Any], sha: str) -> tuple[str, list[str], str]:
    """Message, parents and author's address."""
    found = repository_of(forge, project)[sha]
    return found.message, [str(parent) for parent in found.parent_ids], found.author.email


async def set_up(alice: Person, project: dict[str, Any], **settings: str) -> None:
    answer = await alice.api.put(f"/projects/{project['id']}", settings, expect=200)
    assert {name: answer.body[name] for name in settings} == settings


async def open_two_commits(alice: Person, project: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A merge request of two commits, and its path."""
    made = await open_merge_request(alice, project, **values)
    await commit(alice.api, project, "feature")
    path = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    return dict((await alice.api.get(path)).body) | {"path": path}


async def test_all_commits_become_one_that_has_all_of_them(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    bob = await forge.new_member(project["id"], 40, "bob")
    made = await open_two_commits(bob, project, squash=True)
    assert (made["squash"], made["squash_on_merge"]) == (True, True)
    await commit(alice.api, project, "main")
    target = await head_of(alice.api, project, "main")
    merged = (await alice.api.put(f"{made['path']}/merge")).body
    head, squashed = await head_of(alice.api, project, "main"), merged["squash_commit_sha"]
    assert (merged["state"], merged["merge_commit_sha"], merged["sha"]) == ("merged", head, made["sha"])
    assert commit_of(forge, project, squashed) == ("Add a feature", [target], bob.email)
    assert commit_of(forge, project, head)[1:] == ([target, squashed], alice.email)
    names = {entry.name for entry in repository_of(forge, project)[head].tree}
    assert len(names) == 4
    assert (await alice.api.get(made["path"])).body["squash_commit_sha"] == squashed


@pytest.mark.parametrize(
    ("option", "asked", "made_with", "squashes"),
    [
        ("never", True, False, False),
        ("always", False, True, True),
        ("default_on", None, True, True),
        ("default_on", False, True, False),
        ("default_off", None, False, False),
        ("default_off", True, False, True),
    ],
)
async def test_the_project_says_whether_commits_are_squashed(
    alice: Person, project: dict[str, Any], option: str, asked: bool | None, made_with: bool, squashes: bool
) -> None:
    await set_up(alice, project, squash_option=option)
    made = await open_two_commits(alice, project)
    assert made["squash"] is made_with
    merged = await alice.api.put(f"{made['path']}/merge", {} if asked is None else {"squash": asked})
    assert (merged.status, merged.body["squash_commit_sha"] is not None) == (200, squashes)


async def test_messages_are_the_callers_and_a_single_commit_that_says_the_same_is_taken_as_it_is(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_two_commits(alice, project)
    how = {"squash": True, "squash_commit_message": "One", "merge_commit_message": "Two"}
    merged = (await alice.api.put(f"{made['path']}/merge", how)).body
    assert commit_of(forge, project, merged["squash_commit_sha"])[0] == "One"
    assert commit_of(forge, project, merged["merge_commit_sha"])[0] == "Two"
    assert merged["squash"] is True
    head = await commit(alice.api, project, "other", start_branch="main", commit_message="Same")
    wanted = {"source_branch": "other", "target_branch": "main", "title": "Same", "squash": True}
    path = f"/projects/{project['id']}/merge_requests"
    assert (await alice.api.post(path, wanted)).status == 201
    assert (await alice.api.put(f"{path}/2/merge")).body["squash_commit_sha"] == head


async def test_without_merge_commits_the_target_goes_forward_to_the_source(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    await set_up(alice, project, merge_method="ff")
    made = await open_two_commits(alice, project)
    await commit(alice.api, project, "main")
    shown = (await alice.api.get(made["path"])).body
    assert (shown["merge_status"], shown["detailed_merge_status"]) == ("can_be_merged", "need_rebase")
    refused = await alice.api.put(f"{made['path']}/merge")
    body = {"message": "405 Method Not Allowed", "detailed_merge_status": "need_rebase"}
    assert (refused.status, refused.body) == (405, body)
    other = await open_merge_request(alice, project, "other", title="Other")
    merged = (await alice.api.put(f"/projects/{project['id']}/merge_requests/{other['iid']}/merge")).body
    assert (merged["state"], merged["merge_commit_sha"]) == ("merged", None)
    assert await head_of(alice.api, project, "main") == other["sha"]


async def test_one_commit_without_a_merge_commit(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    await set_up(alice, project, merge_method="ff", squash_option="always")
    target = await head_of(alice.api, project, "main")
    made = await open_two_commits(alice, project)
    merged = (await alice.api.put(f"{made['path']}/merge")).body
    head = await head_of(alice.api, project, "main")
    assert (merged["state"], merged["merge_commit_sha"], merged["squash_commit_sha"]) == (
        "merged",
        None,
        head,
    )
    assert commit_of(forge, project, head)[1] == [target]


async def test_a_semi_linear_history_has_merge_commits_of_what_is_up_to_date(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    await set_up(alice, project, merge_method="rebase_merge")
    target = await head_of(alice.api, project, "main")
    made = await open_two_commits(alice, project)
    await open_merge_request(alice, project, "late")
    merged = (await alice.api.put(f"{made['path']}/merge")).body
    assert commit_of(forge, project, merged["merge_commit_sha"])[1] == [target, made["sha"]]
    late = (await alice.api.get(f"/projects/{project['id']}/merge_requests/2")).body
    assert late["detailed_merge_status"] == "need_rebase"


async def test_a_squash_that_never_arrives_shows_nothing_and_one_that_arrives_late_is_merged(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a process dies before git has moved anything, or after it."""
    made = await open_two_commits(alice, project)
    real, moves = merging.move_in, []

    async def noted(app: Any, database: Database, project_id: int, *rest: Any) -> None:
        if project_id != project["id"]:
            return await real(app, database, project_id, *rest)
        moves.append(rest)
        raise BranchMovedError("moved")

    with monkeypatch.context() as patched:
        patched.setattr(merging, "move_in", noted)
        assert (await alice.api.put(f"{made['path']}/merge", {"squash": True})).status == 409
    shown = (await alice.api.get(made["path"])).body
    assert (shown["state"], shown["squash_commit_sha"]) == ("opened", None)
    (update,) = moves[-1][1].updates
    merge_commit = repository_of(forge, project)[update.new]
    branches = f"/projects/{project['id']}/repository/branches"
    assert (await alice.api.get(f"{branches}/main")).body["commit"]["id"] == update.old
    await real(forge.server.app, forge.database, project["id"], alice.id, moves[-1][1])
    merged = (await alice.api.get(made["path"])).body
    squashed = str(merge_commit.parent_ids[1])
    assert (merged["state"], merged["merge_commit_sha"], merged["squash_commit_sha"]) == (
        "merged", update.new, squashed,
    )  # fmt: skip


async def test_a_squash_that_was_noted_ends_with_the_head_that_it_was_of(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_two_commits(alice, project)
    async with forge.database.transaction() as transaction:
        await merging_queries.note_squash(transaction, made["id"], made["sha"], "a" * 40)
    head = await commit(alice.api, project, "feature")
    assert await merging_queries.squash_noted(forge.database, made["id"]) is None
    merged = (await alice.api.put(f"{made['path']}/merge", {"squash": False})).body
    assert (merged["sha"], merged["state"], merged["squash_commit_sha"]) == (head, "merged", None)


async def test_what_has_been_merged_keeps_the_squash_that_has_arrived(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """Whatever somebody else, who has begun before, notes after it."""
    made = await open_two_commits(alice, project)
    merged = (await alice.api.put(f"{made['path']}/merge", {"squash": True})).body
    async with forge.database.transaction() as transaction:
        await merging_queries.note_squash(transaction, made["id"], made["sha"], "a" * 40)
    assert (await alice.api.get(made["path"])).body["squash_commit_sha"] == merged["squash_commit_sha"]


async def test_python_gitlab_squashes(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    made = await open_two_commits(alice, project)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        found = client.projects.get(project["id"])
        found.squash_option, found.merge_method = "default_on", "rebase_merge"
        found.save()
        merge_request = found.mergerequests.get(made["iid"])
        merge_request.squash = True
        merge_request.save()
        merge_request.merge(merge_commit_message="Merged")
        assert merge_request.squash_commit_sha

    await asyncio.to_thread(use)
