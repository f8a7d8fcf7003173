"""Merge requests that are changed, closed, reopened and approved, also by two at the same time."""

import asyncio
from typing import Any

from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, open_merge_request
from tests.support.waiting import until_somebody_waits


async def test_one_pair_of_branches_has_one_open_merge_request(
    alice: Person, project: dict[str, Any]
) -> None:
    first = await open_merge_request(alice, project)
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Again"}
    refusal = {"message": ["Another open merge request already exists for this source branch: !1"]}
    again = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert (again.status, again.body) == (409, refusal)
    one = f"/projects/{project['id']}/merge_requests/{first['iid']}"
    assert (await alice.api.put(one, {"state_event": "close"})).body["state"] == "closed"
    second = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert (second.status, second.body["iid"]) == (201, 2)
    reopened = await alice.api.put(one, {"state_event": "reopen"})
    refusal = {"message": ["Another open merge request already exists for this source branch: !2"]}
    assert (reopened.status, reopened.body) == (409, refusal)


async def test_what_is_sent_is_changed_and_the_rest_stays(alice: Person, project: dict[str, Any]) -> None:
    made = await open_merge_request(alice, project, description="Why", labels="a")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    await commit(alice.api, project, "stable", start_branch="main")
    for wanted, changed in [
        ({}, {}),
        ({"title": "Other"}, {"title": "Other"}),
        ({"description": None}, {"description": ""}),
        ({"add_labels": ["c", "b"]}, {"labels": ["a", "b", "c"]}),
        ({"remove_labels": "a,c"}, {"labels": ["b"]}),
        ({"labels": ""}, {"labels": []}),
        ({"remove_source_branch": True}, {"force_remove_source_branch": True}),
    ]:
        answer = await alice.api.put(one, wanted)
        expected = made | changed | {"updated_at": answer.body["updated_at"]}
        assert (answer.status, answer.body) == (200, expected), wanted
        made = answer.body
    answer = await alice.api.put(one, {"target_branch": "stable"})
    assert (answer.body["target_branch"], answer.body["detailed_merge_status"]) == ("stable", "mergeable")
    assert answer.body["diff_refs"]["start_sha"] == await head_of(alice.api, project, "stable")
    assert (await alice.api.put(one, {"target_branch": "feature"})).status == 422
    assert (await alice.api.put(one, {"target_branch": "gone"})).status == 400
    assert (await alice.api.put(one, {"state_event": "open"})).status == 400


async def test_closing_and_reopening_take_the_branches_as_they_are_then(
    alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    for _ in range(2):  # a second time changes nothing
        closed = (await alice.api.put(one, {"state_event": "close"})).body
    assert (closed["state"], closed["closed_by"]["id"], closed["detailed_merge_status"]) == (
        "closed",
        alice.id,
        "not_open",
    )
    head = await commit(alice.api, project, "feature")
    assert (await alice.api.get(one)).body["sha"] == made["sha"]
    reopened = (await alice.api.put(one, {"state_event": "reopen"})).body
    assert (reopened["state"], reopened["sha"], reopened["closed_by"]) == ("opened", head, None)
    assert (await alice.api.put(one, {"state_event": "reopen"})).status == 200


async def test_approvals_are_one_for_each_user_and_can_be_taken_back(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    people = await forge.people(project["id"])
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    developer = people["developer"]
    refused = await developer.api.post(f"{one}/approve", {"sha": "0" * 40})
    text = f"SHA does not match HEAD of source branch: {made['sha']}"
    assert (refused.status, refused.body) == (409, {"message": text})
    for _ in range(2):
        approved = await developer.api.post(f"{one}/approve", {"sha": made["sha"]})
    assert approved.status == 201
    assert approved.body["user_has_approved"]
    assert not approved.body["user_can_approve"]
    assert [entry["user"]["id"] for entry in approved.body["approved_by"]] == [developer.id]
    seen = (await people["reporter"].api.get(f"{one}/approvals")).body
    assert (seen["user_has_approved"], seen["user_can_approve"]) == (False, False)
    assert (await developer.api.post(f"{one}/unapprove")).body["approved_by"] == []
    missing = await developer.api.post(f"{one}/unapprove")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})
    await alice.api.put(one, {"state_event": "close"})
    assert (await developer.api.post(f"{one}/approve")).status == 422


LOCK_PROJECT = "SELECT projects.id FROM projects WHERE projects.id = %(id)s FOR UPDATE"
LOCK = "SELECT merge_requests.id FROM merge_requests WHERE merge_requests.id = %(id)s FOR UPDATE"


async def test_labels_that_two_add_at_the_same_time_are_both_there(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project, labels="a")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK_PROJECT, id=project["id"])
        added = asyncio.create_task(alice.api.put(one, {"add_labels": "b"}))
        await until_somebody_waits(forge.database)
        set_labels = "UPDATE merge_requests SET labels = '{a,c}' WHERE id = %(id)s"
        await transaction.run(set_labels, id=made["id"])
    assert (await added).body["labels"] == ["a", "b", "c"]


async def test_a_head_that_moves_while_somebody_approves_is_not_approved(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    moved = "0" * 40
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK, id=made["id"])
        approved = asyncio.create_task(alice.api.post(f"{one}/approve", {"sha": made["sha"]}))
        await until_somebody_waits(forge.database)
        set_head = "UPDATE merge_requests SET head_sha = %(sha)s WHERE id = %(id)s"
        await transaction.run(set_head, id=made["id"], sha=moved)
    refusal = {"message": f"SHA does not match HEAD of source branch: {moved}"}
    assert ((await approved).status, (await approved).body) == (409, refusal)


async def test_what_is_deleted_while_it_is_changed_is_404(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK, id=made["id"])
        calls = [
            asyncio.create_task(alice.api.post(f"{one}/approve")),
            asyncio.create_task(alice.api.put(one, {"title": "Other"})),
        ]
        await until_somebody_waits(forge.database, count=2)
        await transaction.run("DELETE FROM merge_requests WHERE id = %(id)s", id=made["id"])
    for answer in await asyncio.gather(*calls):
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
