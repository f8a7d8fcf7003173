"""Merge requests: their content, lists, rights, assignees and reviewers."""

import asyncio
from typing import Any

import attrs
import gitlab
import orjson
import pytest

from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request

#: The keys that GitLab 17 shows in a list, in its order; a single merge request has more.
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

#: The values that every new merge request has.
NOTHING_YET: dict[str, Any] = {
    **dict.fromkeys((
        "merge_after", "latest_build_started_at", "latest_build_finished_at", "first_deployed_to_production_at",
        "pipeline", "merged_by", "merge_user", "merged_at", "closed_by", "closed_at", "assignee", "milestone",
        "merge_error", "merge_commit_sha", "squash_commit_sha", "discussion_locked", "should_remove_source_branch",
        "head_pipeline",
    ), None),
    **dict.fromkeys((
        "imported", "squash_on_merge", "first_contribution", "merge_when_pipeline_succeeds", "squash",
        "has_conflicts",
    ), False),
    **dict.fromkeys(("user_notes_count", "upvotes", "downvotes"), 0),
    "assignees": [], "reviewers": [],
    "imported_from": "none",
    "task_completion_status": {"count": 0, "completed_count": 0},
    "blocking_discussions_resolved": True,
    "time_stats": {
        "time_estimate": 0, "total_time_spent": 0, "human_time_estimate": None, "human_total_time_spent": None,
    },
}  # fmt: skip


def basic(forge: Forge, person: Person) -> dict[str, Any]:
    """Return a user in the format of merge requests."""
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


#: The lowest role for each call; lower roles get 403, and callers who cannot see the project 404.
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


async def iids(client: Any, path: str) -> list[int]:
    answer = await client.get(path, expect=200)
    return [found["iid"] for found in answer.body]


async def test_lists_are_filtered_by_people_and_by_the_part_of_the_caller(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    await open_merge_request(alice, project, "one", assignee_ids=[bob.id], labels="a")
    await open_merge_request(alice, project, "two", assignee_ids=[alice.id, bob.id], reviewer_ids=[bob.id])
    await open_merge_request(bob, project, "three", description="only there")
    base = f"/projects/{project['id']}/merge_requests"
    for query, expected in [
        (f"assignee_id={bob.id}", [2, 1]),
        (f"assignee_id={bob.id}&scope=assigned_to_me", [2]),
        (f"assignee_username={bob.username.upper()}", [2, 1]),
        (f"assignee_username[]={alice.username}", [2]),
        ("assignee_id=None", [3]),
        ("assignee_id=Any", [2, 1]),
        (f"reviewer_id={bob.id}", [2]),
        (f"reviewer_username={bob.username}", [2]),
        ("reviewer_id=None", [3, 1]),
        ("reviewer_id=Any", [2]),
        ("labels=None", [3, 2]),
        ("labels=Any", [1]),
        ("search=ONLY", [3]),
        ("search=only&in=title", []),
        ("search=only&in=description", [3]),
        ("scope=all", [3, 2, 1]),
        ("scope=created_by_me", [2, 1]),
        (f"scope=created_by_me&author_id={bob.id}", []),
        ("scope=created-by-me", [2, 1]),
        ("scope=assigned_to_me", [2]),
        ("scope=reviews_for_me", []),
        (f"source_project_id={project['id']}", [3, 2, 1]),
        ("source_project_id=0", []),
        ("order_by=merged_at", [3, 2, 1]),
    ]:
        assert await iids(alice.api, f"{base}?{query}") == expected, query
    assert await iids(bob.api, f"{base}?scope=reviews_for_me") == [2]
    for nobody in ("me", "9" * 19, "1" * 1000):
        refused = await alice.api.get(f"{base}?assignee_id={nobody}")
        text = f"assignee_id should be an integer, 'None' or 'Any', however got {nobody}"
        assert (refused.status, refused.body) == (400, {"error": text})


READABLE = [  # visibility, access level of the repository, and the lowest role that reads it
    ("private", "enabled", "reporter"),
    ("internal", "enabled", "stranger"),
    ("public", "enabled", "stranger"),
    ("public", "private", "guest"),
    ("public", "disabled", None),
]
ROLES = ["stranger", "guest", "reporter", "developer", "maintainer", "owner"]


@pytest.mark.parametrize("place", ["projects", "groups"])
async def test_all_that_the_caller_may_read_is_listed_and_nothing_else(forge: Forge, place: str) -> None:
    """The result equals that of the project's own list, which refuses the others; members are those of the project or
    the group."""
    alice = await forge.user("alice")
    group = await forge.group(alice)
    below = await forge.group(alice, parent_id=group["id"])
    clients = {role: (await forge.user(role)) for role in ROLES}
    clients["external"] = await forge.user("external", external=True)
    for visibility, access, least in READABLE:
        project = await new_project(forge, alice, namespace_id=below["id"], visibility=visibility)
        await open_merge_request(alice, project)
        await alice.api.put(f"/projects/{project['id']}", {"repository_access_level": access})
        for role in ROLES[1:] if place == "projects" or visibility == "private" else []:
            source_id = project["id"] if place == "projects" else group["id"]
            await forge.member(place, source_id, clients[role], Role[role.upper()])
        for role, client in [*((role, person.api) for role, person in clients.items()), ("root", forge.root)]:
            own = (await client.get(f"/projects/{project['id']}/merge_requests")).status == 200
            if role in ROLES:
                assert own == (least is not None and ROLES.index(role) >= ROLES.index(least)), (access, role)
            for path in ("/merge_requests", f"/groups/{group['id']}/merge_requests"):
                query = f"scope=all&source_project_id={project['id']}"
                listed = (await client.get(f"{path}?{query}")).body
                assert len(listed) == own, (visibility, access, role, path)


async def test_the_list_of_everything_shows_the_callers_own_and_a_groups_no_archived_projects(
    forge: Forge,
) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group = await forge.group(alice)
    await forge.member("groups", group["id"], bob, Role.DEVELOPER)
    first = await new_project(forge, alice, namespace_id=group["id"])
    await open_merge_request(alice, first, reviewer_ids=[bob.id])
    second = await new_project(forge, alice, namespace_id=group["id"])
    mine = await open_merge_request(bob, second)
    assert [one["id"] for one in (await bob.api.get("/merge_requests")).body] == [mine["id"]]
    assert len((await bob.api.get("/merge_requests?scope=reviews_for_me")).body) == 1
    path = f"/groups/{group['id']}/merge_requests"
    assert len((await bob.api.get(path)).body) == 2
    await alice.api.post(f"/projects/{second['id']}/archive")
    assert len((await bob.api.get(path)).body) == 1
    assert len((await bob.api.get(f"{path}?non_archived=false")).body) == 2
    assert len((await bob.api.get("/merge_requests")).body) == 1
    assert (await bob.api.get("/merge_requests?non_archived=true")).body == []
    assert (await forge.anonymous.get("/merge_requests")).status == 401

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        assert len(client.mergerequests.list(scope="created_by_me", get_all=True)) == 1
        assert len(client.groups.get(group["id"]).mergerequests.list(get_all=True)) == 1

    await asyncio.to_thread(use)


async def two_people(forge: Forge, project: dict[str, Any]) -> tuple[Person, Person]:
    """A developer and a reporter."""
    people = await forge.user("bob"), await forge.user("carol")
    for person, role in zip(people, (Role.DEVELOPER, Role.REPORTER), strict=True):
        await forge.member("projects", project["id"], person, role)
    return people


def ids(people: list[dict[str, Any]]) -> list[int]:
    return [person["id"] for person in people]


async def test_assignees_and_reviewers_are_named_in_the_order_given(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    bob, carol = await two_people(forge, project)
    made = await open_merge_request(
        alice, project, assignee_ids=[carol.id, bob.id, carol.id], reviewer_ids=f"{bob.id}"
    )
    assert (ids(made["assignees"]), ids(made["reviewers"])) == ([carol.id, bob.id], [bob.id])
    assert made["assignee"] == made["assignees"][0]
    assert list(made["assignee"]) == list(made["author"])
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    shown = (await alice.api.put(one, {"assignee_ids": [bob.id, alice.id]})).body
    assert (ids(shown["assignees"]), ids(shown["reviewers"])) == ([bob.id, alice.id], [bob.id])
    shown = (await alice.api.put(one, {"assignee_id": carol.id, "reviewer_ids": [0]})).body
    assert (ids(shown["assignees"]), shown["reviewers"]) == ([carol.id], [])
    for nobody in ({"assignee_id": 0}, {"assignee_ids": []}, {"assignee_ids": ""}, {"assignee_ids": None}):
        await alice.api.put(one, {"assignee_id": carol.id})
        assert (await alice.api.put(one, nobody)).body["assignees"] == [], nobody


async def test_bots_take_all_approvals_back(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    bob, _ = await two_people(forge, project)
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    for person in (alice, bob):
        assert (await person.api.post(f"{one}/approve")).status == 201
    refused = await alice.api.put(f"{one}/reset_approvals")
    assert (refused.status, refused.body) == (401, {"message": "401 Unauthorized"})
    assert len((await alice.api.get(f"{one}/approvals")).body["approved_by"]) == 2
    for level, status, left in ((Role.REPORTER, 403, 2), (Role.DEVELOPER, 202, 0)):
        wanted = {"name": "bot", "scopes": ["api"], "access_level": level}
        made = (await alice.api.post(f"/projects/{project['id']}/access_tokens", wanted)).body
        answer = await attrs.evolve(alice.api, token=made["token"]).put(f"{one}/reset_approvals")
        assert answer.status == status
        assert len((await alice.api.get(f"{one}/approvals")).body["approved_by"]) == left
    assert answer.body == 202


async def test_who_cannot_see_the_merge_request_is_not_named(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """As in GitLab, there is no message about it; a Guest of a private project cannot see any."""
    stranger, guest = await forge.user("stranger"), await forge.user("guest")
    await forge.member("projects", project["id"], guest, Role.GUEST)
    people = [stranger.id, guest.id, 9_999_999, alice.id]
    made = await open_merge_request(alice, project, assignee_ids=people, reviewer_ids=people)
    assert (ids(made["assignees"]), ids(made["reviewers"])) == ([alice.id], [alice.id])
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    refused = await alice.api.put(one, {"reviewer_ids": list(range(1, 202))})
    text = "total must be less than or equal to 200"
    assert (refused.status, refused.body) == (400, {"message": {"reviewers": [text]}})
    assert (await alice.api.put(one, {"assignee_ids": "x"})).body == {"error": "assignee_ids is invalid"}


async def test_reviewers_are_listed_with_what_they_have_said(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    bob, carol = await two_people(forge, project)
    made = await open_merge_request(alice, project, reviewer_ids=[bob.id, carol.id], assignee_id=carol.id)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    assert (await bob.api.post(f"{one}/approve")).status == 201
    first, second = (await alice.api.get(f"{one}/reviewers")).body
    assert first == {"user": made["reviewers"][0], "state": "approved", "created_at": first["created_at"]}
    assert (second["user"]["id"], second["state"]) == (carol.id, "unreviewed")
    dave = await forge.new_member(project["id"], Role.DEVELOPER, "dave")
    for person, note in ((dave, {"body": "Well"}), (alice, {"body": "Hm", "internal": True})):
        assert (await person.api.post(f"{one}/notes", note)).status == 201
    participants = (await alice.api.get(f"{one}/participants")).body
    assert participants[:-1] == [made["author"], *made["reviewers"]]
    assert participants[-1]["id"] == dave.id
    assert (await alice.api.get(f"/projects/{project['id']}/merge_requests/9/reviewers")).status == 404


SENT = """
    SELECT deliveries.body FROM status_check_deliveries deliveries
    JOIN merge_requests m ON m.id = deliveries.merge_request_id
    WHERE m.project_id = %(id)s ORDER BY deliveries.id
"""


async def test_status_checks_hear_of_people_and_drafts(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    bob, carol = await two_people(forge, project)
    check = {"name": "QA", "external_url": "http://203.0.113.7"}
    await alice.api.post(f"/projects/{project['id']}/external_status_checks", check)
    made = await open_merge_request(alice, project, assignee_ids=[bob.id], reviewer_ids=[carol.id, bob.id])
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    for change in ({"assignee_ids": [bob.id]}, {"reviewer_ids": [bob.id]}, {"title": "Draft: x"}):
        assert (await alice.api.put(one, change)).status == 200
    rows = await forge.database.rows(SENT, id=project["id"])
    opened, reviewed, drafted = (orjson.loads(row.body) for row in rows)  # the unchanged one is not sent
    attributes = opened["object_attributes"]
    assert (attributes["assignee_id"], attributes["assignee_ids"]) == (bob.id, [bob.id])
    assert attributes["reviewer_ids"] == [carol.id, bob.id]
    assert (opened["changes"], ids(opened["assignees"]), ids(opened["reviewers"])) == (
        {}, [bob.id], [carol.id, bob.id],
    )  # fmt: skip
    shown = {
        "id": bob.id,
        "name": bob.username.title(),
        "username": bob.username,
        "avatar_url": "",
        "email": "[REDACTED]",
    }
    assert opened["assignees"] == [shown]
    assert reviewed["object_attributes"]["action"] == "update"
    assert reviewed["changes"] == {"reviewers": {"previous": opened["reviewers"], "current": [shown]}}
    assert drafted["changes"] == {
        "title": {"previous": "Add a feature", "current": "Draft: x"},
        "draft": {"previous": False, "current": True},
    }


async def test_python_gitlab_names_people(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    bob, carol = await two_people(forge, project)
    await commit(alice.api, project, "feature", start_branch="main")

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        merge_requests = client.projects.get(project["id"]).mergerequests
        wanted = {"source_branch": "feature", "target_branch": "main", "title": "New", "assignee_id": bob.id}
        made = merge_requests.create(wanted)
        assert made.assignee["id"] == bob.id
        made.assignee_ids, made.reviewer_ids = [], [carol.id]
        made.save()
        assert (made.assignees, ids(made.reviewers)) == ([], [carol.id])
        assert [one.user["id"] for one in made.reviewer_details.list(get_all=True)] == [carol.id]
        assert ids(made.participants(get_all=True)) == [alice.id, carol.id]
        assert made.approval_state.get().rules == []

    await asyncio.to_thread(use)
