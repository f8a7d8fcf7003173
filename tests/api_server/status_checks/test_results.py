"""Endpoints 16-18: status checks of a merge request, their responses, and retries."""

import asyncio
from typing import Any

import gitlab
import orjson
import pytest

from tests.api_server.status_checks.conftest import new_check, statuses
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, new_project, open_merge_request
from tests.support.waiting import until_somebody_waits


async def test_the_list_shows_each_check_and_hides_what_may_be_secret_in_its_url(
    forge: Forge, alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    """And so does the answer to a result, unlike in GitLab."""
    people = await forge.people(project["id"])
    url = "http://bob:hunter2@hunter2@203.0.113.7/hook?token=hunter2#hunter2"
    check = await new_check(alice, project, external_url=url)
    for role, shown in [("reporter", ""), ("developer", "http://203.0.113.7/hook")]:
        answer = await people[role].api.get(f"{one}/status_checks")
        entry = {"id": check["id"], "name": "QA", "external_url": shown, "status": "pending"}
        assert (answer.status, answer.body) == (200, [entry])
        assert answer.headers["Poll-Interval"] == "10000"
        assert answer.headers["X-Total"] == "1"
    result = {"sha": merge_request["sha"], "external_status_check_id": check["id"]}
    for role, shown in [("developer", "http://203.0.113.7/hook"), ("maintainer", url)]:
        answer = await people[role].api.post(f"{one}/status_check_responses", result)
        assert answer.body["external_status_check"] == check | {"external_url": shown}


async def test_an_answer_is_recorded_for_the_head_and_shown(
    alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    check = await new_check(alice, project)
    body = {"sha": merge_request["sha"], "external_status_check_id": check["id"], "status": "passed"}
    answer = await alice.api.post(f"{one}/status_check_responses", body)
    assert answer.status == 201
    assert answer.body == {
        "id": answer.body["id"],
        "merge_request": merge_request,
        "external_status_check": check,
    }
    assert await statuses(alice, one) == [("QA", "passed")]


async def test_the_newest_answer_counts_and_all_are_kept(
    alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    check = await new_check(alice, project)
    body = {"sha": merge_request["sha"], "external_status_check_id": check["id"]}
    details = {"description": "3 of 4 tests", "target_url": "https://ci.example.org/1"}
    for sent, status in [
        ({"status": "passed"}, "passed"),
        ({"status": "failed"} | details, "failed"),
        ({}, "pending"),  # a missing status does not pass
    ]:
        answer = await alice.api.post(f"{one}/status_check_responses", body | sent)
        assert answer.status == 201
        assert await statuses(alice, one) == [("QA", status)]
    history = await alice.api.get(f"{one}/status_checks/{check['id']}/responses")
    assert [entry["status"] for entry in history.body] == ["pending", "failed", "passed"]
    failed = history.body[1]
    assert failed == details | {
        "id": failed["id"],
        "status": "failed",
        "sha": merge_request["sha"],
        "user": merge_request["author"],
        "retried_at": None,
        "created_at": failed["created_at"],
    }


async def test_a_push_after_passed_makes_it_pending_and_an_old_sha_a_conflict(
    alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    check = await new_check(alice, project)
    body = {"sha": merge_request["sha"], "external_status_check_id": check["id"], "status": "passed"}
    assert (await alice.api.post(f"{one}/status_check_responses", body)).status == 201
    head = await commit(alice.api, project, "feature")
    assert await statuses(alice, one) == [("QA", "pending")]
    for sha in (merge_request["sha"], head[:10], "x"):
        stale = await alice.api.post(f"{one}/status_check_responses", body | {"sha": sha})
        text = f"SHA does not match HEAD of source branch: {head}"
        assert (stale.status, stale.body) == (409, {"message": text})
    assert (await alice.api.post(f"{one}/status_check_responses", body | {"sha": head})).status == 201
    history = (await alice.api.get(f"{one}/status_checks/{check['id']}/responses")).body
    assert [entry["sha"] for entry in history] == [head, merge_request["sha"]]


async def test_only_checks_for_the_target_branch_apply_wildcards_included(
    forge: Forge, alice: Person, project: dict[str, Any], merge_request: dict[str, Any]
) -> None:
    base = f"/projects/{project['id']}"
    await commit(alice.api, project, "release/1.0", start_branch="main")
    branches = {
        name: (await alice.api.post(f"{base}/protected_branches", {"name": name})).body["id"]
        for name in ("release/*", "stable")
    }
    branches["main"] = (await alice.api.get(f"{base}/protected_branches/main")).body["id"]
    await new_check(alice, project, "all")
    for name, scope in [("rel", ["release/*", "stable"]), ("main", ["main"]), ("stable", ["stable"])]:
        await new_check(alice, project, name, protected_branch_ids=[branches[each] for each in scope])
    await new_check(alice, await forge.project(alice), "foreign")
    release = await open_merge_request(alice, project, "for-release", "release/1.0")
    for found, names in [(merge_request, ["all", "main"]), (release, ["all", "rel"])]:
        url = f"{base}/merge_requests/{found['iid']}"
        assert await statuses(alice, url) == [(name, "pending") for name in names]


async def test_answers_of_two_checks_and_two_merge_requests_do_not_mix(
    alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    first, second = [await new_check(alice, project, name) for name in ("first", "second")]
    other = await open_merge_request(alice, project, "other")
    body = {"sha": merge_request["sha"], "status": "passed"}
    await alice.api.post(f"{one}/status_check_responses", body | {"external_status_check_id": first["id"]})
    await alice.api.post(
        f"{one}/status_check_responses",
        body | {"external_status_check_id": second["id"], "status": "failed"},
    )
    assert await statuses(alice, one) == [("first", "passed"), ("second", "failed")]
    other_url = f"/projects/{project['id']}/merge_requests/{other['iid']}"
    assert await statuses(alice, other_url) == [("first", "pending"), ("second", "pending")]


async def test_retry_is_for_failed_checks_and_leaves_their_result(
    alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    check = await new_check(alice, project)
    body = {"sha": merge_request["sha"], "external_status_check_id": check["id"]}
    for status in (None, "passed", "pending"):
        if status:
            await alice.api.post(f"{one}/status_check_responses", body | {"status": status})
        refused = await alice.api.post(f"{one}/status_checks/{check['id']}/retry")
        text = "External status check must be failed"
        assert (refused.status, refused.body) == (422, {"message": text})
    await alice.api.post(f"{one}/status_check_responses", body | {"status": "failed"})
    accepted = await alice.api.post(f"{one}/status_checks/{check['id']}/retry")
    assert (accepted.status, accepted.body) == (202, {"message": "202 Accepted"})
    assert await statuses(alice, one) == [("QA", "failed")]
    history = (await alice.api.get(f"{one}/status_checks/{check['id']}/responses")).body
    assert [entry["retried_at"] is not None for entry in history] == [True, False, False]
    await commit(alice.api, project, "feature")
    assert (await alice.api.post(f"{one}/status_checks/{check['id']}/retry")).status == 422


async def test_unless_all_checks_have_passed_a_project_that_demands_it_merges_nothing(
    alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    demand = {"only_allow_merge_if_all_status_checks_passed": True}
    assert (await alice.api.put(f"/projects/{project['id']}", demand)).status == 200
    assert (await alice.api.get(one)).body["detailed_merge_status"] == "mergeable"  # no check applies
    checks = [await new_check(alice, project, name) for name in ("first", "second")]
    body = {"sha": merge_request["sha"]}
    for check, status in [
        (checks[0], "passed"),
        (checks[1], "failed"),
        (checks[1], "pending"),
    ]:
        sent = body | {"external_status_check_id": check["id"], "status": status}
        assert (await alice.api.post(f"{one}/status_check_responses", sent)).status == 201
        shown = (await alice.api.get(one)).body["detailed_merge_status"]
        assert shown == "status_checks_must_pass", status
        refused = await alice.api.put(f"{one}/merge")
        assert (refused.status, refused.body["detailed_merge_status"]) == (405, "status_checks_must_pass")
    sent = body | {"external_status_check_id": checks[1]["id"], "status": "passed"}
    answered = await alice.api.post(f"{one}/status_check_responses", sent)
    assert answered.body["merge_request"]["detailed_merge_status"] == "mergeable"
    assert (await alice.api.put(f"{one}/merge")).body["state"] == "merged"


async def test_answers_are_audited(
    forge: Forge, alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    check = await new_check(alice, project)
    body = {"sha": merge_request["sha"], "external_status_check_id": check["id"], "status": "failed"}
    assert (await alice.api.post(f"{one}/status_check_responses", body)).status == 201
    (event,) = await forge.database.rows(
        "SELECT * FROM audit_events WHERE event_type = 'status_check_response_update' AND entity_id = %(id)s",
        id=project["id"],
    )
    details = orjson.loads(event.details)
    assert (event.author_id, event.target_type, event.target_id) == (
        alice.id,
        "MergeRequest",
        merge_request["id"],
    )
    assert details["custom_message"] == "Updated response for status check QA to failed"
    assert (details["sha"], details["status"]) == (merge_request["sha"], "failed")


async def test_python_gitlab_lists_checks_and_raw_posts_answer_and_retry(
    forge: Forge, alice: Person, project: dict[str, Any], merge_request: dict[str, Any]
) -> None:
    check = await new_check(alice, project)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        found = client.projects.get(project["id"]).mergerequests.get(merge_request["iid"])
        assert [c.status for c in found.status_checks.list(get_all=True)] == ["pending"]
        base = f"/projects/{project['id']}/merge_requests/{merge_request['iid']}"
        sent = {"sha": found.sha, "external_status_check_id": check["id"], "status": "failed"}
        answered = client.http_post(f"{base}/status_check_responses", post_data=sent)
        assert answered["external_status_check"]["id"] == check["id"]
        retried = client.http_post(f"{base}/status_checks/{check['id']}/retry")
        assert retried == {"message": "202 Accepted"}
        assert [c.status for c in found.status_checks.list(get_all=True)] == ["failed"]

    await asyncio.to_thread(use)


@pytest.mark.parametrize(
    ("change", "status", "body"),
    [
        ({"sha": ...}, 400, {"error": "sha is missing"}),
        ({"sha": ""}, 400, {"error": "sha is empty"}),
        ({"external_status_check_id": ...}, 400, {"error": "external_status_check_id is missing"}),
        ({"external_status_check_id": "a"}, 400, {"error": "external_status_check_id is invalid"}),
        ({"status": "ok"}, 400, {"error": "status does not have a valid value"}),
        ({"external_status_check_id": 999999999}, 404, {"message": "404 Not found"}),
    ],
)
async def test_an_answer_that_cannot_be_recorded_is_refused(
    alice: Person,
    project: dict[str, Any],
    one: str,
    merge_request: dict[str, Any],
    change: dict[str, Any],
    status: int,
    body: dict[str, Any],
) -> None:
    check = await new_check(alice, project)
    wanted = {"sha": merge_request["sha"], "external_status_check_id": check["id"]} | change
    wanted = {name: value for name, value in wanted.items() if value is not ...}
    answer = await alice.api.post(f"{one}/status_check_responses", wanted)
    assert (answer.status, answer.body) == (status, body)


async def test_a_check_of_another_project_is_404(
    forge: Forge, alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    foreign = await new_check(alice, await forge.project(alice))
    body = {"sha": merge_request["sha"], "external_status_check_id": foreign["id"], "status": "passed"}
    for answer in (
        await alice.api.post(f"{one}/status_check_responses", body),
        await alice.api.post(f"{one}/status_checks/{foreign['id']}/retry"),
        await alice.api.get(f"{one}/status_checks/{foreign['id']}/responses"),
    ):
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_who_may_see_and_answer(
    forge: Forge, alice: Person, project: dict[str, Any], one: str, merge_request: dict[str, Any]
) -> None:
    people = await forge.people(project["id"])
    check = await new_check(alice, project)
    body = {"sha": merge_request["sha"], "external_status_check_id": check["id"], "status": "failed"}
    order = ["guest", "reporter", "developer", "maintainer", "owner"]
    for method, path, sent, least in [
        ("GET", "status_checks", None, "reporter"),
        ("GET", f"status_checks/{check['id']}/responses", None, "reporter"),
        ("POST", "status_check_responses", body, "developer"),
        ("POST", f"status_checks/{check['id']}/retry", None, "developer"),
    ]:
        url = f"{one}/{path}"
        assert (await forge.anonymous.request(method, url, json=sent)).status == 401
        stranger = await people["stranger"].api.request(method, url, json=sent)
        assert (stranger.status, stranger.body) == (404, {"message": "404 Project Not Found"})
        for role in order:
            answer = await people[role].api.request(method, url, json=sent)
            if order.index(role) < order.index(least):
                assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})
            else:
                assert answer.status in (200, 201, 202), (role, path, answer)
    missing = await alice.api.get(f"/projects/{project['id']}/merge_requests/99/status_checks")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})


async def test_insiders_see_the_checks_of_internal_projects_and_strangers_not_those_of_public_ones(
    forge: Forge, alice: Person
) -> None:
    insider, outsider = await forge.user(), await forge.user(external=True)
    for visibility, person, status in [
        ("internal", insider, 200),
        ("internal", outsider, 404),
        ("public", insider, 403),
    ]:
        project = await new_project(forge, alice, visibility=visibility)
        await open_merge_request(alice, project)
        answer = await person.api.get(f"/projects/{project['id']}/merge_requests/1/status_checks")
        assert answer.status == status, visibility


@pytest.mark.parametrize("call", ["answer", "retry"])
async def test_a_check_that_is_removed_meanwhile_is_404(
    forge: Forge,
    alice: Person,
    project: dict[str, Any],
    one: str,
    merge_request: dict[str, Any],
    call: str,
) -> None:
    check = await new_check(alice, project)
    sent = {"sha": merge_request["sha"], "external_status_check_id": check["id"], "status": "failed"}
    assert (await alice.api.post(f"{one}/status_check_responses", sent)).status == 201
    path = "status_check_responses" if call == "answer" else f"status_checks/{check['id']}/retry"
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM external_status_checks WHERE id = %(id)s", id=check["id"])
        called = asyncio.create_task(alice.api.post(f"{one}/{path}", sent if call == "answer" else None))
        await until_somebody_waits(forge.database)
    answer = await called
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
