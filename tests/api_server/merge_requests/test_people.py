"""Assignees, reviewers and participants of merge requests."""

import asyncio
from typing import Any

import attrs
import gitlab
import orjson

from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, open_merge_request


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
    """As in GitLab, which says nothing of it either; a Guest of a private project sees none."""
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
    opened, reviewed, drafted = (orjson.loads(row.body) for row in rows)  # nothing of what changes nothing
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
