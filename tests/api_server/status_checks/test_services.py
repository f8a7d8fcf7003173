"""Endpoints 12-15: status check services of a project."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.status_checks import queries
from tests.api_server.status_checks.conftest import ELSEWHERE, new_check, protect, statuses
from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project
from tests.support.waiting import until_somebody_waits

HEALTHY = {"paused": False, "paused_at": None, "pause_reason": None, "failing_since": None}


async def test_a_check_is_made_shown_changed_and_removed(
    alice: Person, project: dict[str, Any], checks: str
) -> None:
    branch = await protect(alice, project, "release/*")
    wanted = {"name": "QA", "external_url": f"  {ELSEWHERE}/qa?token=1 ", "shared_secret": "secret"}
    made = await alice.api.post(checks, wanted | {"protected_branch_ids": [branch["id"]]})
    expected = {
        "id": made.body["id"],
        "name": "QA",
        "project_id": project["id"],
        "external_url": f"{ELSEWHERE}/qa?token=1",
        "hmac": True,
        "protected_branches": [
            {
                "id": branch["id"],
                "project_id": project["id"],
                "name": "release/*",
                "created_at": made.body["protected_branches"][0]["created_at"],
                "updated_at": made.body["protected_branches"][0]["updated_at"],
                "code_owner_approval_required": False,
            }
        ],
        "applies_to_all_branches": False,
        **HEALTHY,
    }
    assert (made.status, made.body) == (201, expected)
    one = f"{checks}/{made.body['id']}"
    assert (await alice.api.get(checks)).body == [expected]
    assert (await alice.api.get(one)).body == expected

    changed = await alice.api.put(one, {"name": "Quality"})
    assert (changed.status, changed.body) == (200, expected | {"name": "Quality"})
    everywhere = await alice.api.put(one, {"protected_branch_ids": [], "shared_secret": ""})
    assert everywhere.body == expected | {
        "name": "Quality",
        "hmac": False,
        "protected_branches": [],
        "applies_to_all_branches": True,
    }
    gone = await alice.api.delete(one)
    assert (gone.status, gone.body) == (204, "")
    assert (await alice.api.get(checks)).body == []
    for method in ("GET", "PUT", "DELETE"):
        answer = await alice.api.request(method, one)
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


@pytest.mark.parametrize("secret", ["", " ", None])
async def test_a_blank_secret_is_none(alice: Person, checks: str, secret: str | None) -> None:
    wanted = {"name": "QA", "external_url": ELSEWHERE, "shared_secret": secret}
    assert (await alice.api.post(checks, wanted)).body["hmac"] is False


async def test_the_secret_is_encrypted_at_rest(forge: Forge, alice: Person, checks: str) -> None:
    wanted = {"name": "QA", "external_url": ELSEWHERE, "shared_secret": "correct horse"}
    made = (await alice.api.post(checks, wanted)).body
    stored = await forge.database.value(
        "SELECT shared_secret FROM external_status_checks WHERE id = %(id)s", id=made["id"]
    )
    assert b"correct horse" not in bytes(stored)


@pytest.mark.parametrize("form", ["array", "comma", "single", "brackets"])
async def test_branches_may_be_sent_in_any_form(
    alice: Person, project: dict[str, Any], checks: str, form: str
) -> None:
    ids = [(await protect(alice, project, name))["id"] for name in ("a", "b")]
    values: dict[str, Any] = {"name": "QA", "external_url": ELSEWHERE}
    if form == "brackets":
        pairs = [*values.items(), *(("protected_branch_ids[]", str(i)) for i in ids)]
        made = await alice.api.request("POST", checks, data=pairs)
    else:
        sent = {"array": ids, "comma": ",".join(map(str, ids)), "single": ids[0]}[form]
        made = await alice.api.post(checks, values | {"protected_branch_ids": sent})
    assert made.status == 201
    assert [b["id"] for b in made.body["protected_branches"]] == ids[: 1 if form == "single" else 2]


async def test_a_check_whose_last_protected_branch_has_gone_applies_to_all_branches(
    forge: Forge, alice: Person, project: dict[str, Any], merge_request: dict[str, Any], one: str
) -> None:
    """Nothing is merged past it because somebody has unprotected a branch."""
    await alice.api.put(f"/projects/{project['id']}", {"only_allow_merge_if_all_status_checks_passed": True})
    ids = [(await protect(alice, project, name))["id"] for name in ("stable", "release/*")]
    both = await new_check(alice, project, "Both", protected_branch_ids=ids)
    paused = await new_check(alice, project, "Paused", protected_branch_ids=ids[:1])
    async with forge.database.transaction() as transaction:
        await queries.pause(transaction, paused["id"], "failed")
    assert await statuses(alice, one) == []

    async def left(name: str) -> list[tuple[list[str], bool]]:
        path = f"/projects/{project['id']}/protected_branches/{name}"
        assert (await alice.api.delete(path)).status == 204
        shown = (await alice.api.get(f"/projects/{project['id']}/external_status_checks?sort=asc")).body
        return [
            ([rule["name"] for rule in check["protected_branches"]], check["applies_to_all_branches"])
            for check in shown
        ]

    assert await left("stable") == [(["release/*"], False), ([], True)]
    assert await statuses(alice, one) == [("Paused", "pending")]
    assert await left("release%2F*") == [([], True), ([], True)]
    assert await statuses(alice, one) == [("Both", "pending"), ("Paused", "pending")]
    assert (await alice.api.put(f"{one}/merge")).status == 405
    sent = [
        (
            await alice.api.get(f"/projects/{project['id']}/external_status_checks/{check['id']}/deliveries")
        ).body
        for check in (both, paused)
    ]
    assert [[delivery["merge_request_iid"] for delivery in of_one] for of_one in sent] == [[1], []]


async def test_a_branch_is_not_unprotected_while_a_check_is_being_limited_to_it(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    branch = await protect(alice, project, "stable")
    check = (await alice.api.post(checks, {"name": "QA", "external_url": ELSEWHERE})).body
    async with forge.database.transaction() as transaction:
        (found,) = await queries.protected_branches(transaction, [branch["id"]])
        path = f"/projects/{project['id']}/protected_branches/stable"
        unprotected = asyncio.create_task(alice.api.delete(path))
        await until_somebody_waits(forge.database)
        await queries.set_scope(transaction, check["id"], [found.id])
    assert (await unprotected).status == 204


async def test_lists_are_paged_in_the_order_of_creation(alice: Person, checks: str) -> None:
    for number in range(3):
        wanted = {"name": str(number), "external_url": f"{ELSEWHERE}/{number}"}
        assert (await alice.api.post(checks, wanted)).status == 201
    page = await alice.api.get(f"{checks}?per_page=2&page=2")
    assert [check["name"] for check in page.body] == ["2"]
    assert (page.headers["X-Total"], page.headers["X-Total-Pages"]) == ("3", "2")


async def test_python_gitlab_manages_checks(forge: Forge, alice: Person) -> None:
    project = await new_project(forge, alice)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        checks = client.projects.get(project["id"]).external_status_checks
        made = checks.create({"name": "QA", "external_url": ELSEWHERE, "shared_secret": "s"})
        assert (made.hmac, made.protected_branches) == (True, [])
        made.name = "Quality"
        made.save()
        assert [check.name for check in checks.list(get_all=True)] == ["Quality"]
        checks.update(made.id, {"external_url": f"{ELSEWHERE}/2"})
        made.delete()
        assert checks.list(get_all=True) == []
        with pytest.raises(gitlab.GitlabHttpError) as refused:
            client.http_post(f"/projects/{project['id']}/external_status_checks", post_data={})
        assert refused.value.error_message == "name is missing, external_url is missing"

    await asyncio.to_thread(use)
