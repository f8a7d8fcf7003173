"""Who may not see and give the results of status checks, and answers that are not taken."""

import asyncio
from typing import Any

import pytest

from tests.api_server.status_checks.conftest import new_check
from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.waiting import until_somebody_waits


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
