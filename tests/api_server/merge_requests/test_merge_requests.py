"""Merge requests: made, shown, listed, and by whom."""

import asyncio
from typing import Any

import gitlab
import pytest

from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request

#: What GitLab 17 shows of each in a list, in its order; one that is asked for alone has more.
LISTED = [
    "id", "iid", "project_id", "title", "description", "state", "imported", "imported_from", "created_at", "updated_at",
    "merged_by", "merge_user", "merged_at", "merge_after", "prepared_at", "closed_by", "closed_at", "target_branch",
    "source_branch", "user_notes_count", "upvotes", "downvotes", "author", "assignees", "assignee", "reviewers",
    "source_project_id", "target_project_id", "labels", "draft", "work_in_progress", "milestone",
    "merge_when_pipeline_succeeds", "merge_status", "detailed_merge_status", "sha", "merge_commit_sha",
    "squash_commit_sha", "discussion_locked", "should_remove_source_branch", "force_remove_source_branch", "reference",
    "references", "web_url", "time_stats", "squash", "squash_on_merge", "task_completion_status", "has_conflicts",
    "blocking_discussions_resolved",
]  # fmt: skip
ALONE = [
    "latest_build_started_at", "latest_build_finished_at", "first_deployed_to_production_at", "pipeline",
    "head_pipeline", "diff_refs", "merge_error", "first_contribution", "user",
]  # fmt: skip

#: What is the same for every new merge request.
NOTHING_YET = {
    "imported": False,
    "imported_from": "none",
    "merge_after": None,
    "squash_on_merge": False,
    "latest_build_started_at": None,
    "latest_build_finished_at": None,
    "first_deployed_to_production_at": None,
    "first_contribution": False,
    "pipeline": None,
    "merged_by": None,
    "merge_user": None,
    "merged_at": None,
    "closed_by": None,
    "closed_at": None,
    "user_notes_count": 0,
    "upvotes": 0,
    "downvotes": 0,
    "assignees": [],
    "assignee": None,
    "reviewers": [],
    "milestone": None,
    "merge_when_pipeline_succeeds": False,
    "merge_error": None,
    "merge_commit_sha": None,
    "squash_commit_sha": None,
    "discussion_locked": None,
    "should_remove_source_branch": None,
    "squash": False,
    "task_completion_status": {"count": 0, "completed_count": 0},
    "has_conflicts": False,
    "blocking_discussions_resolved": True,
    "head_pipeline": None,
    "time_stats": {
        "time_estimate": 0,
        "total_time_spent": 0,
        "human_time_estimate": None,
        "human_total_time_spent": None,
    },
}


def basic(forge: Forge, person: Person) -> dict[str, Any]:
    """A user as merge requests show her."""
    return {
        "id": person.id,
        "username": person.username,
        "public_email": None,
        "name": person.username.title(),
        "state": "active",
        "locked": False,
        "avatar_url": None,
        "web_url": f"{forge.base}/{person.username}",
    }


async def test_a_merge_request_shows_its_branches_and_that_it_can_be_merged(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    start, head = (
        await head_of(alice.api, project, "main"),
        await commit(alice.api, project, "feature", start_branch="main"),
    )
    branches = {"source_branch": "feature", "target_branch": "main"}
    wanted = branches | {"title": "Draft: Add a feature", "description": "Why", "labels": "b,a, ,b"}
    made = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    path = project["path_with_namespace"]
    expected = NOTHING_YET | {
        "id": made.body["id"],
        "iid": 1,
        "project_id": project["id"],
        "title": "Draft: Add a feature",
        "description": "Why",
        "state": "opened",
        "created_at": made.body["created_at"],
        "updated_at": made.body["updated_at"],
        "prepared_at": made.body["created_at"],
        **branches,
        "author": basic(forge, alice),
        "source_project_id": project["id"],
        "target_project_id": project["id"],
        "labels": ["a", "b"],
        "draft": True,
        "work_in_progress": True,
        "merge_status": "can_be_merged",
        "detailed_merge_status": "draft_status",
        "sha": head,
        "force_remove_source_branch": False,
        "reference": "!1",
        "references": {"short": "!1", "relative": "!1", "full": f"{path}!1"},
        "web_url": f"{forge.base}/{path}/-/merge_requests/1",
        "diff_refs": {"base_sha": start, "head_sha": head, "start_sha": start},
        "user": {"can_merge": True},
    }
    assert (made.status, made.body) == (201, expected)
    shown = await alice.api.get(f"/projects/{project['id']}/merge_requests/1")
    assert (shown.status, shown.body, list(shown.body)) == (200, expected, LISTED + ALONE)
    (listed,) = (await alice.api.get(f"/projects/{project['id']}/merge_requests")).body
    assert (list(listed), listed.items() <= expected.items()) == (LISTED, True)


@pytest.mark.parametrize(
    ("change", "status", "body"),
    [
        ({"title": None}, 400, {"error": "title is empty"}),
        ({"title": " "}, 400, {"error": "title is empty"}),
        ({"title": "x" * 256}, 400, {"message": {"title": ["is too long (maximum is 255 characters)"]}}),
        ({"source_branch": "gone"}, 400, {"message": ['Source branch "gone" does not exist']}),
        ({"target_branch": "gone"}, 400, {"message": ['Target branch "gone" does not exist']}),
        (
            {"target_branch": "feature"},
            422,
            {"message": ["You can't use same project/branch for source and target"]},
        ),
        (
            {"target_project_id": 1},
            422,
            {"message": ["Target project is not a fork of source project"]},
        ),
    ],
)
async def test_a_merge_request_that_cannot_be_made_is_refused(
    alice: Person, project: dict[str, Any], change: dict[str, Any], status: int, body: dict[str, Any]
) -> None:
    await commit(alice.api, project, "feature", start_branch="main")
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Add a feature"} | change
    answer = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert (answer.status, answer.body) == (status, body)


async def test_in_a_project_without_a_repository_there_is_no_source_branch(
    forge: Forge, alice: Person
) -> None:
    project = await forge.project(alice)
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Add a feature"}
    answer = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert (answer.status, answer.body) == (400, {"message": ['Source branch "feature" does not exist']})


#: The least role for each call; below it 403, and 404 for who cannot see the project.
LEAST_ROLE = [
    ("GET", "", None, "reporter"),
    ("GET", "/1", None, "reporter"),
    ("GET", "/1/approvals", None, "reporter"),
    ("POST", "", {"source_branch": "feature", "target_branch": "main", "title": "t"}, "developer"),
    ("PUT", "/1", {}, "developer"),
    ("POST", "/1/approve", {}, "developer"),
    ("POST", "/1/unapprove", {}, "developer"),
    ("GET", "/1/approval_state", None, "reporter"),
    ("GET", "/1/changes", None, "reporter"),
    ("GET", "/1/closes_issues", None, "reporter"),
    ("GET", "/1/merge_ref", None, "reporter"),
    ("GET", "/1/participants", None, "reporter"),
    ("GET", "/1/reviewers", None, "reporter"),
    ("PUT", "/1/rebase", {}, "developer"),
    ("POST", "/1/cancel_merge_when_pipeline_succeeds", {}, "maintainer"),
    ("PUT", "/1/merge", {"sha": "x"}, "maintainer"),
    ("DELETE", "/1", None, "owner"),
]


async def test_who_may_do_what(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    people = await forge.people(project["id"])
    await open_merge_request(alice, project)
    order = ["guest", "reporter", "developer", "maintainer", "owner"]
    for method, path, body, least in LEAST_ROLE:
        url = f"/projects/{project['id']}/merge_requests{path}"
        assert (await forge.anonymous.request(method, url, json=body)).status == 401
        stranger = await people["stranger"].api.request(method, url, json=body)
        assert (stranger.status, stranger.body) == (404, {"message": "404 Project Not Found"})
        for role in order:
            answer = await people[role].api.request(method, url, json=body)
            allowed = order.index(role) >= order.index(least)
            assert (answer.status != 403) == allowed, (method, path, role, answer)


async def test_everybody_reads_the_merge_requests_of_a_public_project_unless_its_repository_is_closed(
    forge: Forge, alice: Person
) -> None:
    project = await new_project(forge, alice, visibility="public")
    stranger = await forge.user()
    await open_merge_request(alice, project)
    url = f"/projects/{project['id']}/merge_requests"
    assert [found["iid"] for found in (await stranger.api.get(url)).body] == [1]
    parts = (
        "approvals",
        "approval_state",
        "changes",
        "commits",
        "diffs",
        "participants",
        "pipelines",
        "reviewers",
    )
    reads = ["/1", *(f"/1/{part}" for part in parts)]
    assert {(await stranger.api.get(url + path)).status for path in reads} == {200}
    await alice.api.put(f"/projects/{project['id']}", {"repository_access_level": "private"})
    assert (await stranger.api.get(url)).status == 403
    assert {path: (await stranger.api.get(url + path)).status for path in reads} == dict.fromkeys(reads, 403)


@pytest.mark.parametrize("iid", ["2", "0", "-1", "2147483648", "9223372036854775807"])
async def test_what_does_not_exist_is_404(alice: Person, project: dict[str, Any], iid: str) -> None:
    await open_merge_request(alice, project)
    base = f"/projects/{project['id']}/merge_requests"
    answer = await alice.api.get(f"{base}/{iid}")
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert (await alice.api.get(f"{base}?iids[]={iid}")).body == []


async def test_python_gitlab_makes_changes_and_merges(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    await commit(alice.api, project, "feature", start_branch="main")

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        merge_requests = client.projects.get(project["id"]).mergerequests
        made = merge_requests.create({"source_branch": "feature", "target_branch": "main", "title": "New"})
        made.labels = ["a"]
        made.save()
        assert merge_requests.get(made.iid).labels == ["a"]
        made.approve()
        assert [entry["user"]["id"] for entry in made.approvals.get().approved_by] == [alice.id]
        made.unapprove()
        made.merge()
        assert merge_requests.list(state="merged", get_all=True)[0].iid == made.iid

    await asyncio.to_thread(use)
