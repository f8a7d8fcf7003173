"""Squashing the commits of a merge request, and rebasing its source branch."""

import asyncio
from typing import Any

import gitlab
import pytest
from pygit2 import GIT_OBJECT_COMMIT

from api_server.git import commits, new_commits
from api_server.git.errors import BranchMovedError
from api_server.git.repositories import Repository
from api_server.merge_requests import merging, merging_queries
from api_server.state.database import Database
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, open_merge_request


def commit_of(forge: Forge, project: dict[str, Any], sha: str) -> tuple[str, list[str], str]:
    """Return message, parents and author's address."""
    found = forge.repository(project["id"])[sha]
    return found.message, [str(parent) for parent in found.parent_ids], found.author.email


async def set_up(alice: Person, project: dict[str, Any], **settings: str) -> None:
    answer = await alice.api.put(f"/projects/{project['id']}", settings, expect=200)
    assert {name: answer.body[name] for name in settings} == settings


async def open_two_commits(alice: Person, project: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Create a merge request of two commits; return it with its path."""
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
    names = {entry.name for entry in forge.repository(project["id"])[head].tree}
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
    """This happens if a process dies before or after git has moved the ref."""
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
    merge_commit = forge.repository(project["id"])[update.new]
    branches = f"/projects/{project['id']}/repository/branches"
    assert (await alice.api.get(f"{branches}/main")).body["commit"]["id"] == update.old
    await real(forge.server.app[SERVICES], forge.database, project["id"], alice.id, moves[-1][1])
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
    assert await merging_queries.recorded_squash(forge.database, made["id"]) is None
    merged = (await alice.api.put(f"{made['path']}/merge", {"squash": False})).body
    assert (merged["sha"], merged["state"], merged["squash_commit_sha"]) == (head, "merged", None)


async def test_what_has_been_merged_keeps_the_squash_that_has_arrived(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """A late note of an earlier attempt does not change it."""
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


async def diverged(alice: Person, project: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Create a merge request of two commits whose target has moved on; return it with its path."""
    made = await open_merge_request(alice, project)
    await commit(alice.api, project, "feature", commit_message="Ünïcode\n\nwith a body")
    await commit(alice.api, project, "main")
    path = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    return dict((await alice.api.get(path)).body) | {"path": path}


async def over(client: Any, path: str) -> dict[str, Any]:
    """Return the merge request when its rebase has ended."""

    asked = f"{path}?include_rebase_in_progress=true"
    return dict(await client.until(asked, lambda shown: not shown["rebase_in_progress"]))


async def test_the_commits_are_made_anew_on_top_of_the_target(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await diverged(alice, project)
    bob = await forge.new_member(project["id"], Role.MAINTAINER, "bob")
    shown = (await alice.api.get(f"{made['path']}?include_diverged_commits_count=true")).body
    assert shown["diverged_commits_count"] == 1
    assert "rebase_in_progress" not in shown
    asked = await bob.api.put(f"{made['path']}/rebase")
    assert (asked.status, asked.body) == (202, {"rebase_in_progress": True})
    shown = await over(alice.api, made["path"])
    target, repository = await head_of(alice.api, project, "main"), forge.repository(project["id"])
    assert (shown["merge_error"], shown["diff_refs"]["base_sha"]) == (None, target)
    assert shown["sha"] == await head_of(alice.api, project, "feature") != made["sha"]
    new, old = repository[shown["sha"]], repository[made["sha"]]
    for _ in range(2):
        assert (new.message, new.author) == (old.message, old.author)
        assert (new.committer.email, old.committer.email) == (bob.email, alice.email)
        new, old = new.parents[0], old.parents[0]
    assert str(new.id) == target
    assert (await alice.api.put(f"{made['path']}/merge")).status == 200


async def test_conflicts_and_lost_rights_are_told_and_nothing_moves(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await diverged(alice, project)
    head = await commit(alice.api, project, "feature", "same.txt", content="ours")
    await commit(alice.api, project, "main", "same.txt", content="theirs")
    assert (await alice.api.put(f"{made['path']}/rebase")).status == 202
    shown = await over(alice.api, made["path"])
    text = "Rebase failed: Rebase locally, resolve all conflicts, then push the branch."
    assert (shown["merge_error"], shown["sha"]) == (text, head)
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    await forge.root.delete(f"/projects/{project['id']}/members/{bob.id}")
    await merging.rebase(forge.server.app[SERVICES], made["id"], bob.id, skip_ci=False)
    shown = (await alice.api.get(made["path"])).body
    assert (shown["merge_error"], shown["sha"]) == ("Rebase failed: Cannot push to source branch", head)


async def test_who_may_not_push_to_the_source_may_not_rebase_it(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await diverged(alice, project)
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    protected = f"/projects/{project['id']}/protected_branches"
    assert (await alice.api.post(protected, {"name": "feature"})).status == 201
    for person, reason in [
        (bob, "Cannot push to source branch"),
        (alice, "Source branch is protected from force push"),
    ]:
        refused = await person.api.put(f"{made['path']}/rebase")
        assert (refused.status, refused.body) == (403, {"message": f"403 Forbidden - {reason}"})
    assert (await alice.api.patch(f"{protected}/feature", {"allow_force_push": True})).status == 200
    assert (await alice.api.put(f"{made['path']}/rebase")).status == 202
    assert (await over(alice.api, made["path"]))["sha"] != made["sha"]
    await alice.api.put(made["path"], {"state_event": "close"})
    refused = await alice.api.put(f"{made['path']}/rebase")
    assert (refused.status, refused.body) == (409, {"message": "409 Conflict: Resource lock"})
    await alice.api.delete(f"{protected}/feature")
    assert (await alice.api.delete(f"/projects/{project['id']}/repository/branches/feature")).status == 204
    refused = await alice.api.put(f"{made['path']}/rebase")
    assert refused.body == {"message": "403 Forbidden - Source branch does not exist"}


async def test_merges_and_what_the_target_has_already_are_left_out(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """`git rebase` does the same."""
    made = await open_merge_request(alice, project)
    picked = forge.repository(project["id"])[made["sha"]]
    name = next(entry.name for entry in picked.tree if entry.name not in picked.parents[0].tree)
    await commit(alice.api, project, "main", name, content=picked.tree[name].data.decode())
    await commit(alice.api, project, "main")
    target = await head_of(alice.api, project, "main")
    repository, alices = forge.repository(project["id"]), commits.Person("Alice", alice.email, 0)
    assert await new_commits.rebase(repository, made["sha"], target, alices) == target
    mine = await commit(alice.api, project, "feature")
    merged = repository.create_commit(
        None, picked.author, picked.committer, "Merge", repository[mine].tree.id, [mine, target]
    )
    new = repository[await new_commits.rebase(repository, str(merged), target, alices)]
    assert [str(parent) for parent in new.parent_ids] == [target]
    assert new.message == repository[mine].message


async def test_messages_of_any_encoding_are_kept(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    repository, alices = forge.repository(project["id"]), commits.Person("Alice", alice.email, 0)
    first = await head_of(alice.api, project, "main")
    target = await commit(alice.api, project, "main")
    parent = repository[first]
    for encoding, text, kept in [
        ("nobody-knows", b"a", "a"),
        ("base64", b"b", "b"),
        ("latin-1", b"\xe9", "é"),
    ]:
        who = "A <a@example.org> 1700000000 +0000"
        head = (
            f"tree {parent.tree.id}\nparent {first}\nauthor {who}\ncommitter {who}\nencoding {encoding}\n\n"
        )
        sha = str(repository.odb.write(GIT_OBJECT_COMMIT, head.encode() + text))
        assert repository[await new_commits.rebase(repository, sha, target, alices)].message == kept


async def test_a_rebase_that_is_cancelled_goes_no_further(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await diverged(alice, project)
    repository, alices = forge.repository(project["id"]), commits.Person("Alice", alice.email, 0)
    target = await head_of(alice.api, project, "main")
    loop, real, done = asyncio.get_running_loop(), new_commits._rebased_commit, []

    def once_more(its: Repository, *rest: Any) -> str:
        if its is repository:
            done.append(rest)
            loop.call_soon_threadsafe(rebase_task.cancel)
        return real(its, *rest)

    monkeypatch.setattr(new_commits, "_rebased_commit", once_more)
    rebase_task = asyncio.create_task(new_commits.rebase(repository, made["sha"], target, alices))
    with pytest.raises(asyncio.CancelledError):
        await rebase_task
    # as long as the other
    await new_commits.rebase(forge.repository(project["id"]), made["sha"], target, alices)
    assert len(done) == 1


LONG_AGO = "UPDATE merge_requests SET rebasing_since = %(now)s - interval '1 hour' WHERE id = %(id)s"


async def test_a_rebase_of_which_nothing_is_heard_is_over_and_another_can_begin(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """This happens after an unexpected error."""
    made = await diverged(alice, project)
    async with forge.database.transaction() as transaction:
        assert await merging_queries.begin_rebase(transaction, made["id"])
        assert not await merging_queries.begin_rebase(transaction, made["id"])
    path = f"{made['path']}?include_rebase_in_progress=true"
    assert (await alice.api.get(path)).body["rebase_in_progress"] is True
    await forge.execute(LONG_AGO, id=made["id"])
    assert (await alice.api.get(path)).body["rebase_in_progress"] is False
    assert (await alice.api.put(f"{made['path']}/rebase")).status == 202
    assert (await over(alice.api, made["path"]))["sha"] != made["sha"]


async def test_skip_ci_makes_a_skipped_pipeline(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    script = "build:\n  script: echo\n"
    await commit(alice.api, project, "main", ".gitlab-ci.yml", content=script, commit_message="[ci skip]")
    made = await diverged(alice, project)
    assert (await alice.api.put(f"{made['path']}/rebase", {"skip_ci": True})).status == 202
    sha = (await over(alice.api, made["path"]))["sha"]

    (pipeline,) = await alice.api.until(f"/projects/{project['id']}/pipelines?sha={sha}")
    assert pipeline["status"] == "skipped"


async def test_python_gitlab_rebases(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    made = await diverged(alice, project)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        found = client.projects.get(project["id"]).mergerequests.get(made["iid"])
        assert found.rebase()["rebase_in_progress"] is True
        client.projects.get(project["id"]).mergerequests.get(made["iid"], include_rebase_in_progress=True)

    await asyncio.to_thread(use)
    assert (await over(alice.api, made["path"]))["sha"] != made["sha"]
