"""The effects of pushes on merge requests, merging and deleting them, and the merge requests of a commit."""

import asyncio
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest

from api_server.git import new_commits
from api_server.git.commits import commits_between
from api_server.git.errors import StorageUnavailableError
from api_server.git.repositories import Repository
from api_server.merge_requests import changes, pushes
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request


def refs_of(forge: Forge, project: dict[str, Any]) -> dict[str, str]:
    repository = forge.repository(project["id"])
    return {name: str(repository.references[name].target) for name in repository.references}


async def test_a_push_to_the_source_moves_the_head_and_keeps_it_fetchable(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    assert refs_of(forge, project)["refs/merge-requests/1/head"] == made["sha"]
    head = await commit(alice.api, project, "feature")
    moved = (await alice.api.get(one)).body
    assert moved["sha"] == head != made["sha"]
    assert moved["diff_refs"] == made["diff_refs"] | {"head_sha": head}
    assert moved["updated_at"] > made["updated_at"]
    assert refs_of(forge, project)["refs/merge-requests/1/head"] == head


async def test_a_real_push_counts_like_a_commit_of_the_api(
    forge: Forge, alice: Person, project: dict[str, Any], tmp_path: Path
) -> None:
    made = await open_merge_request(alice, project)
    git = Git(tmp_path)
    await git(
        "clone",
        "--quiet",
        "--branch=feature",
        git_url(forge, project["path_with_namespace"], alice),
        ".",
    )
    head = await git.commit("Rewritten", new="1")
    await git("push", "--quiet", "origin", "HEAD:feature")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    assert (await alice.api.get(one)).body["sha"] == head
    await git("reset", "--quiet", "--hard", "HEAD~2")
    forced = await git.commit("Other", other="2")
    await git("push", "--quiet", "--force", "origin", "HEAD:feature")
    assert (await alice.api.get(one)).body["sha"] == forced


async def test_conflicts_are_found_when_either_branch_moves(alice: Person, project: dict[str, Any]) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    await commit(alice.api, project, "feature", "same.txt", content="ours")
    await commit(alice.api, project, "main", "same.txt", content="theirs")
    listed = (await alice.api.get(f"/projects/{project['id']}/merge_requests")).body[0]
    assert (listed["merge_status"], listed["detailed_merge_status"]) == ("unchecked", "unchecked")
    shown = (await alice.api.get(one)).body
    assert (shown["merge_status"], shown["detailed_merge_status"], shown["has_conflicts"]) == (
        "cannot_be_merged",
        "conflict",
        True,
    )
    refused = await alice.api.put(f"{one}/merge")
    assert (refused.status, refused.body) == (422, {"message": "Branch cannot be merged"})


async def test_without_commits_or_without_a_branch_there_is_nothing_to_merge(
    alice: Person, project: dict[str, Any]
) -> None:
    base = f"/projects/{project['id']}"
    await alice.api.post(f"{base}/repository/branches", {"branch": "empty", "ref": "main"})
    wanted = {"source_branch": "empty", "target_branch": "main", "title": "Nothing"}
    made = (await alice.api.post(f"{base}/merge_requests", wanted)).body
    assert made["detailed_merge_status"] == "commits_status"
    refused = await alice.api.put(f"{base}/merge_requests/1/merge")
    body = {"message": "405 Method Not Allowed", "detailed_merge_status": "commits_status"}
    assert (refused.status, refused.body) == (405, body)

    gone = await open_merge_request(alice, project, "gone")
    assert (await alice.api.delete(f"{base}/repository/branches/gone")).status == 204
    shown = (await alice.api.get(f"{base}/merge_requests/{gone['iid']}")).body
    assert (shown["state"], shown["sha"], shown["detailed_merge_status"]) == (
        "opened",
        gone["sha"],
        "commits_status",
    )


async def test_merging_makes_a_merge_commit_of_the_head_and_the_target(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project, "topic/a")
    await commit(alice.api, project, "main")
    target = await head_of(alice.api, project, "main")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    refused = await alice.api.put(f"{one}/merge", {"sha": target})
    text = f"SHA does not match HEAD of source branch: {made['sha']}"
    assert (refused.status, refused.body) == (409, {"message": text})
    merged = await alice.api.put(f"{one}/merge", {"sha": made["sha"]}, expect=200)
    head = await head_of(alice.api, project, "main")
    assert (merged.body["state"], merged.body["merge_commit_sha"]) == ("merged", head)
    assert merged.body["merge_user"]["id"] == merged.body["merged_by"]["id"] == alice.id
    assert merged.body["merged_at"] is not None
    found = forge.repository(project["id"])[head]
    assert [str(parent) for parent in found.parent_ids] == [target, made["sha"]]
    path = project["path_with_namespace"]
    assert found.message == (
        f"Merge branch 'topic/a' into 'main'\n\nAdd a feature\n\nSee merge request {path}!1"
    )
    assert found.author.email == alice.email
    again = await alice.api.put(f"{one}/merge")
    assert (again.status, again.body["detailed_merge_status"]) == (405, "not_open")
    for state_event in ("close", "reopen"):
        answer = await alice.api.put(one, {"state_event": state_event})
        assert answer.body == {"message": ["A merged merge request cannot be closed or reopened"]}
        assert answer.status == 422


async def test_merging_removes_the_source_when_asked_but_never_a_protected_one(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    await open_merge_request(alice, project, "topic", remove_source_branch=True)
    kept = await open_merge_request(alice, project, "kept", remove_source_branch=True)
    rule = {"name": "kept", "push_access_level": 40}
    assert (await alice.api.post(f"/projects/{project['id']}/protected_branches", rule)).status == 201
    base = f"/projects/{project['id']}/merge_requests"
    message = {"merge_commit_message": "Bring it in"}
    assert (await alice.api.put(f"{base}/1/merge", message)).body["state"] == "merged"
    assert (await alice.api.put(f"{base}/{kept['iid']}/merge")).body["state"] == "merged"
    refs = refs_of(forge, project)
    assert "refs/heads/topic" not in refs
    assert "refs/heads/kept" in refs
    assert "refs/merge-requests/1/head" in refs


async def test_commits_that_arrive_in_the_target_by_a_push_merge_their_merge_requests(
    forge: Forge, alice: Person, project: dict[str, Any], tmp_path: Path
) -> None:
    by_hand = await open_merge_request(alice, project, "by-hand")
    forward = await open_merge_request(alice, project, "forward", "by-hand")
    other = await open_merge_request(alice, project, "other")
    git = Git(tmp_path)
    await git("clone", "--quiet", git_url(forge, project["path_with_namespace"], alice), ".")
    await git("push", "--quiet", "origin", f"{forward['sha']}:by-hand")  # a fast-forward
    await git("merge", "--quiet", "--no-ff", "--message=By hand", by_hand["sha"])
    await git("push", "--quiet", "origin", "HEAD:main")
    base = f"/projects/{project['id']}/merge_requests"
    found = {one["iid"]: one for one in (await alice.api.get(base)).body}
    assert (found[forward["iid"]]["state"], found[forward["iid"]]["merge_commit_sha"]) == ("merged", None)
    assert found[other["iid"]]["state"] == "opened"
    # The source had moved with the fast-forward, and the manually merged commit was older.
    assert (found[by_hand["iid"]]["state"], found[by_hand["iid"]]["sha"]) == ("opened", forward["sha"])
    await git("merge", "--quiet", "--no-ff", "--message=The rest", forward["sha"])
    await git("push", "--quiet", "origin", "HEAD:main")
    merged = (await alice.api.get(f"{base}/{by_hand['iid']}")).body
    head = await head_of(alice.api, project, "main")
    assert (merged["state"], merged["merge_commit_sha"]) == ("merged", head)


async def test_nothing_is_merged_in_an_archived_project(alice: Person, project: dict[str, Any]) -> None:
    made = await open_merge_request(alice, project)
    before = await head_of(alice.api, project, "main")
    assert (await alice.api.post(f"/projects/{project['id']}/archive")).status == 201
    refused = await alice.api.put(f"/projects/{project['id']}/merge_requests/{made['iid']}/merge")
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    assert await head_of(alice.api, project, "main") == before


async def test_who_may_merge_is_what_the_targets_protection_says(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    people = await forge.people(project["id"])
    base = f"/projects/{project['id']}"
    await commit(alice.api, project, "open/a", start_branch="main")
    rules = [
        {"name": "devs/*", "push_access_level": 0, "merge_access_level": 30},
        {"name": "none/*", "push_access_level": 0, "merge_access_level": 0},
    ]
    for rule in rules:
        branch = rule["name"].replace("*", "a")
        await commit(alice.api, project, branch, start_branch="main")
        assert (await alice.api.post(f"{base}/protected_branches", rule)).status == 201
    for target, role, status in [
        ("open/a", "developer", 200),
        ("devs/a", "developer", 200),
        ("main", "developer", 403),
        ("main", "maintainer", 200),
        ("none/a", "owner", 403),
    ]:
        made = await open_merge_request(alice, project, f"{role}-{target.replace('/', '-')}", target)
        answer = await people[role].api.put(f"{base}/merge_requests/{made['iid']}/merge")
        assert answer.status == status, (target, role, answer)


async def test_two_merges_at_once_make_one_merge_commit(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    url = f"/projects/{project['id']}/merge_requests/{made['iid']}/merge"
    answers = await asyncio.gather(*(alice.api.put(url) for _ in range(4)))
    assert [answer.status for answer in answers].count(200) == 1, answers
    repository = forge.repository(project["id"])
    head = repository[await head_of(alice.api, project, "main")]
    assert [str(parent) for parent in head.parent_ids][1] == made["sha"]
    assert made["diff_refs"]["start_sha"] == str(head.parent_ids[0])


async def test_only_what_is_a_target_is_asked_for_what_has_arrived(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is a git process, and a push may move thousands of branches."""
    asked, path = [], str(forge.repository_path(project["id"]))

    async def noted(repository: Repository, old: str, new: str, most: int) -> list[str]:
        if repository.path.rstrip("/") == path:
            asked.append(new)
        return await commits_between(repository, old, new, most)

    made = await open_merge_request(alice, project)
    monkeypatch.setattr(pushes, "commits_between", noted)
    await commit(alice.api, project, "feature")
    assert asked == []
    assert [await commit(alice.api, project, made["target_branch"])] == asked


async def test_what_merging_would_make_is_shown_and_kept_as_long_as_it_is_true(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    path = f"/projects/{project['id']}/merge_requests/{made['iid']}/merge_ref"
    first, again = (await alice.api.get(path)).body, (await alice.api.get(path)).body
    assert first == again == {"commit_id": refs_of(forge, project)["refs/merge-requests/1/merge"]}
    await commit(alice.api, project, "main")
    target = await head_of(alice.api, project, "main")
    other = (await alice.api.get(path)).body["commit_id"]
    found = forge.repository(project["id"])[other]
    assert [str(parent) for parent in found.parent_ids] == [target, made["sha"]]
    await commit(alice.api, project, "feature", "same.txt", content="ours")
    await commit(alice.api, project, "main", "same.txt", content="theirs")
    refused = await alice.api.get(path)
    assert (refused.status, refused.body) == (400, {"message": "Merge request is not mergeable"})


@pytest.mark.parametrize("state", ["opened", "closed", "merged"])
async def test_a_deleted_merge_request_is_gone_with_its_head_and_its_number_is_not_given_again(
    forge: Forge, alice: Person, project: dict[str, Any], state: str
) -> None:
    made = await open_merge_request(alice, project, assignee_ids=[alice.id])
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    if state == "closed":
        await alice.api.put(one, {"state_event": "close"})
    elif state == "merged":
        await alice.api.put(f"{one}/merge")
    assert (await alice.api.get(f"{one}/merge_ref")).status == (200 if state == "opened" else 400)
    answer = await alice.api.delete(one)
    assert (answer.status, answer.body) == (204, "")
    assert (await alice.api.get(one)).status == (await alice.api.delete(one)).status == 404
    assert kept(forge, project) == []
    assert (await open_merge_request(alice, project, "again"))["iid"] == 2
    events = (await alice.api.get(f"/projects/{project['id']}/audit_events")).body
    (event,) = [event for event in events if event["details"]["event_name"] == "delete_merge_request"]
    assert (
        event["details"]
        | {
            "custom_message": "Removed merge request !1",
            "target_id": made["id"],
            "target_type": "MergeRequest",
            "target_details": "!1 Add a feature",
        }
        == event["details"]
    )


def kept(forge: Forge, project: dict[str, Any]) -> list[str]:
    refs = forge.repository(project["id"]).references
    return [ref for ref in refs if ref.startswith("refs/merge-requests/")]


async def test_what_git_cannot_forget_is_not_deleted(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits could be fetched for ever."""
    one = f"/projects/{project['id']}/merge_requests/{(await open_merge_request(alice, project))['iid']}"

    async def no_room(*_: Any) -> None:
        raise StorageUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(changes, "remove_internal_ref", no_room)
        assert (await alice.api.delete(one)).status == 503
    assert (await alice.api.get(one)).status == 200
    assert (await alice.api.delete(one)).status == 204
    assert kept(forge, project) == []


async def test_what_merging_would_make_is_not_kept_of_what_is_deleted_meanwhile(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await open_merge_request(alice, project)
    one, real = f"/projects/{project['id']}/merge_requests/{made['iid']}", new_commits.merge

    async def deleted(*how: Any) -> str:
        assert (await alice.api.delete(one)).status == 204
        return await real(*how)

    with monkeypatch.context() as patched:
        patched.setattr(new_commits, "merge", deleted)
        assert (await alice.api.get(f"{one}/merge_ref")).status == 404
    assert kept(forge, project) == []


async def test_all_changes_are_shown_with_the_merge_request(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    await commit(alice.api, project, "feature", "more.txt", content="more\n")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    shown = (await alice.api.get(one)).body
    changes = (await alice.api.get(f"{one}/diffs")).body
    answer = await alice.api.get(f"{one}/changes?access_raw_diffs=true")
    assert (answer.status, answer.body) == (200, shown | {"changes": changes, "overflow": False})
    assert answer.headers["X-Ignored-Parameters"] == "access_raw_diffs"
    assert len(changes) == 2


async def test_a_unified_difference_begins_with_the_names_of_the_file(
    alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    where = f"/projects/{project['id']}"
    one = f"{where}/merge_requests/{made['iid']}"
    (added,) = [file["new_path"] for file in (await alice.api.get(f"{one}/diffs")).body]
    actions = [{"action": "delete", "file_path": "README.md"}]
    change = {"branch": "feature", "commit_message": "Clear", "actions": actions}
    await alice.api.post(f"{where}/repository/commits", change, expect=201)
    names = {
        "README.md": "--- a/README.md\n+++ /dev/null\n",
        added: f"--- /dev/null\n+++ b/{added}\n",
    }
    version = (await alice.api.get(f"{one}/versions")).body[0]["id"]
    for path, key in (
        (f"{one}/diffs?", None),
        (f"{one}/changes?", "changes"),
        (f"{one}/versions/{version}?", "diffs"),
        (f"{where}/repository/compare?from=main&to=feature&", "diffs"),
    ):
        plain = (await alice.api.get(path)).body
        unified = (await alice.api.get(f"{path}unidiff=true")).body
        if key:
            plain, unified = plain[key], unified[key]
        assert unified == [file | {"diff": names[file["new_path"]] + file["diff"]} for file in plain], path
    move = {"action": "move", "previous_path": added, "file_path": "moved.txt"}
    moved = await alice.api.post(f"{where}/repository/commits", change | {"actions": [move]}, expect=201)
    (file,) = (await alice.api.get(f"{where}/repository/commits/{moved.body['id']}/diff?unidiff=true")).body
    assert (file["renamed_file"], file["diff"]) == (True, "")


async def test_no_more_changes_are_shown_than_the_setting_says(forge: Forge) -> None:
    with forge.changed_settings(diff_max_files=1):
        alice = await forge.user("alice")
        project = await forge.project(alice, initialize_with_readme=True)
        made = await open_merge_request(alice, project)
        await commit(alice.api, project, "feature")
        one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
        shown = (await alice.api.get(f"{one}/changes")).body
        assert (len(shown["changes"]), shown["overflow"]) == (1, True)


async def test_python_gitlab_shows_changes_and_deletes(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        found = client.projects.get(project["id"]).mergerequests.get(made["iid"])
        assert len(found.changes()["changes"]) == 1
        assert list(found.closes_issues(get_all=True)) == []
        found.delete()
        assert client.projects.get(project["id"]).mergerequests.list(get_all=True) == []

    await asyncio.to_thread(use)


@attrs.frozen
class Scene:
    """`first` is merged by a commit; `second`, which was created from `main` after that, is open; `third` is closed."""

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
