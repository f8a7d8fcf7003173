"""Merge requests: made, shown, listed, and by whom."""

import asyncio
from typing import Any

import gitlab
import pytest

from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request

#: What is the same for every new merge request.
NOTHING_YET = {
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


async def test_a_merge_request_shows_its_branches_and_that_it_can_be_merged(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    start = await head_of(alice.api, project, "main")
    head = await commit(alice.api, project, "feature", start_branch="main")
    branches = {"source_branch": "feature", "target_branch": "main"}
    wanted = branches | {"title": "Draft: Add a feature", "description": "Why", "labels": "b,a, ,b"}
    made = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert made.status == 201
    path = project["path_with_namespace"]
    author = {
        "id": alice.id,
        "username": alice.username,
        "public_email": None,
        "name": alice.username.title(),
        "state": "active",
        "locked": False,
        "avatar_url": None,
        "web_url": f"{forge.base}/{alice.username}",
    }
    expected = NOTHING_YET | {
        "id": made.body["id"],
        "iid": 1,
        "project_id": project["id"],
        "title": "Draft: Add a feature",
        "description": "Why",
        "state": "opened",
        "created_at": made.body["created_at"],
        "updated_at": made.body["updated_at"],
        **branches,
        "author": author,
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
    }
    assert made.body == expected
    shown = await alice.api.get(f"/projects/{project['id']}/merge_requests/1")
    assert (shown.status, shown.body) == (200, expected)


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


async def test_the_list_shows_what_matches_every_filter(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    base = f"/projects/{project['id']}/merge_requests"
    await open_merge_request(alice, project, "one", title="First", labels="a,b")
    await open_merge_request(alice, project, "two", title="Draft: second", description="the FIRST try")
    await open_merge_request(alice, project, "three", "one", title="100%_third")
    await alice.api.put(f"{base}/1", {"state_event": "close"})
    for query, iids in [
        ("", [3, 2, 1]),
        ("?sort=asc", [1, 2, 3]),
        ("?order_by=title&sort=asc", [3, 2, 1]),
        ("?state=opened", [3, 2]),
        ("?state=closed", [1]),
        ("?state=merged", []),
        ("?iids[]=1&iids[]=3", [3, 1]),
        ("?iids=2", [2]),
        ("?source_branch=two", [2]),
        ("?target_branch=one", [3]),
        (f"?author_id={alice.id}", [3, 2, 1]),
        (f"?author_username={alice.username.upper()}", [3, 2, 1]),
        ("?author_username=nobody", []),
        ("?labels=b", [1]),
        ("?labels=a,c", []),
        ("?search=first", [2, 1]),
        ("?wip=yes", [2]),
        ("?draft=false", [3, 1]),
        ("?created_before=2001-01-01", []),
        ("?updated_after=2001-01-01T00:00:00Z", [3, 2, 1]),
        ("?per_page=1&page=2", [2]),
        ("?pagination=keyset&per_page=2", [3, 2]),
    ]:
        answer = await alice.api.get(base + query)
        assert (answer.status, [found["iid"] for found in answer.body]) == (200, iids), query
    assert (await alice.api.get(f"{base}?state=open")).status == 400
    assert answer.body[0] | {"head_pipeline": None} == (await alice.api.get(f"{base}/3")).body


#: The least role for each call; below it 403, and 404 for who cannot see the project.
LEAST_ROLE = [
    ("GET", "", None, "reporter"),
    ("GET", "/1", None, "reporter"),
    ("GET", "/1/approvals", None, "reporter"),
    ("POST", "", {"source_branch": "feature", "target_branch": "main", "title": "t"}, "developer"),
    ("PUT", "/1", {}, "developer"),
    ("POST", "/1/approve", {}, "developer"),
    ("POST", "/1/unapprove", {}, "developer"),
    ("PUT", "/1/merge", {"sha": "x"}, "maintainer"),
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
    reads = [f"/1{path}" for path in ("", "/approvals", "/commits", "/diffs", "/pipelines")]
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
