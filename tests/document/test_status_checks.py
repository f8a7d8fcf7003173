"""Area 2: external status checks of merge requests."""

import pytest

from api_server.web.routes import Role
from tests.support.forge import SharedForges, new_name

from .gates import Gate
from .statements import says

CHECK = {
    "id": int,
    "name": str,
    "project_id": int,
    "external_url": str,
    "hmac": bool,
    "protected_branches": list,
}


@says(
    "status check service",
    "| id | integer | |",
    "| name | string | display name |",
    "| project_id | integer | |",
    "| external_url | string | URL of the external service |",
    "| hmac | boolean | true when a shared secret is configured (seen in list) |",
    "| protected_branches | array of Protected branch | scoping of the rule |",
    "Protected branch: `id` integer, `project_id` integer, `name` string, `created_at` timestamp, `updated_at`"
    " timestamp, `code_owner_approval_required` boolean.",
    "| 12 | GET `/projects/:id/external_status_checks` | `id` integer required | array of External status check"
    " service |",
)
async def test_what_a_service_shows(gate: Gate) -> None:
    check = await gate.check(shared_secret="of us two", protected_branch_ids=[gate.branch["id"]])
    shown = await gate.shown(check)
    assert all(isinstance(shown[name], kind) for name, kind in CHECK.items()), shown
    assert shown["hmac"] is True
    assert "of us two" not in str(shown)
    (branch,) = shown["protected_branches"]
    assert (branch["id"], branch["name"]) == (gate.branch["id"], "main")
    kinds = {
        "id": int,
        "project_id": int,
        "created_at": str,
        "updated_at": str,
        "code_owner_approval_required": bool,
    }
    assert all(isinstance(branch[name], kind) for name, kind in kinds.items()), branch
    assert (await gate.shown(await gate.check()))["hmac"] is False


@says(
    "endpoint 13",
    "| 13 | POST `/projects/:id/external_status_checks` | `id` integer required; `name` string required;"
    " `external_url` string required; `shared_secret` string optional (HMAC secret); `protected_branch_ids` array of"
    " integer optional | see note below |",
)
async def test_a_service_is_made(gate: Gate) -> None:
    for sent, error in (
        ({"external_url": "http://203.0.113.7"}, "name is missing"),
        ({"name": "x"}, "external_url is missing"),
    ):
        refused = await gate.owner.api.post(f"{gate.url}/external_status_checks", sent)
        assert (refused.status, refused.body) == (400, {"error": error})
    check = await gate.check(protected_branch_ids=[gate.branch["id"]])
    assert [branch["id"] for branch in check["protected_branches"]] == [gate.branch["id"]]


@says(
    "endpoint 14",
    "| 14 | PUT `/projects/:id/external_status_checks/:check_id` | `id`, `check_id` integer required; `name`,"
    " `external_url`, `shared_secret`, `protected_branch_ids` optional | see note below |",
)
async def test_a_service_is_changed(gate: Gate) -> None:
    check = await gate.check()
    one = f"{gate.url}/external_status_checks/{check['id']}"
    wanted = {"name": new_name("renamed"), "external_url": f"{gate.receiver.url}/{new_name('moved')}"}
    for name, value in wanted.items():
        assert (await gate.owner.api.put(one, {name: value})).body[name] == value
    secret = await gate.owner.api.put(one, {"shared_secret": "secret"})
    scoped = await gate.owner.api.put(one, {"protected_branch_ids": [gate.branch["id"]]})
    assert (secret.body["hmac"], len(scoped.body["protected_branches"])) == (True, 1)
    assert (await gate.shown(check)) | wanted == await gate.shown(check)


@says(
    "endpoint 15",
    "| 15 | DELETE `/projects/:id/external_status_checks/:check_id` | `id`, `check_id` integer required | see note"
    " below |",
)
async def test_a_service_is_removed(gate: Gate) -> None:
    check = await gate.check()
    one = f"{gate.url}/external_status_checks/{check['id']}"
    assert (await gate.owner.api.delete(one)).status == 204
    assert (await gate.owner.api.delete(one)).status == 404
    assert await gate.entry(check) is None


@says(
    "endpoint 16",
    "`id` integer, `name` string, `external_url` string, `status` string (`pending`, `passed`, `failed`).",
    "| 16 | GET `/projects/:id/merge_requests/:merge_request_iid/status_checks` | `id`, `merge_request_iid` integer"
    " required | array of Merge request status check entry, covering the services that apply to the merge request |",
)
async def test_the_checks_of_a_merge_request(gate: Gate) -> None:
    other = await gate.owner.api.post(f"{gate.url}/protected_branches", {"name": new_name("release")})
    applies, does_not = await gate.check(), await gate.check(protected_branch_ids=[other.body["id"]])
    expected = {name: applies[name] for name in ("id", "name", "external_url")} | {"status": "pending"}
    assert await gate.entry(applies) == expected
    assert await gate.entry(does_not) is None


@says(
    "endpoint 17",
    "| any | POST status_check_responses | `sha` equals the HEAD SHA of the merge request source branch; caller has at"
    " least Developer role on the target project | value of `status` (`pending`, `passed` or `failed`) | |",
    "| 17 | POST `/projects/:id/merge_requests/:merge_request_iid/status_check_responses` | `id`, `merge_request_iid`"
    " integer required; `sha` string required (HEAD of source branch); `external_status_check_id` integer required;"
    " `status` string optional: `pending`, `passed` or `failed` | see note below |",
    "setting a status check result needs a token of a user with at least the Developer role on the merge request's"
    " target project (any user who may approve the merge request);",
)
async def test_a_result_is_set(gate: Gate) -> None:
    check = await gate.check()
    for status in ("failed", "pending", "passed"):
        assert (await gate.respond(check, status=status)).status == 201
        entry = await gate.entry(check)
        assert entry is not None
        assert entry["status"] == status
    assert (await gate.respond(check, sha="0" * 40, status="failed")).status == 409
    assert (await gate.respond(check, status="good")).status == 400
    reporter = await gate.forge.user("reporter")
    await gate.forge.member("projects", int(gate.url.rpartition("/")[2]), reporter, Role.REPORTER)
    assert (await gate.respond(check, reporter, status="failed")).status == 403
    for missing in ("sha", "external_status_check_id"):
        refused = await gate.respond(check, **{missing: None})
        assert (refused.status, refused.body) == (400, {"error": f"{missing} is empty"})


@says(
    "endpoint 18",
    "| `failed` | POST retry | check is failed | unchanged (resent) | current merge request state is sent again to the"
    " external service; response 202 |",
    "| 18 retry status check | 202 | failed check accepted | object with `message` string |",
    "| 18 | POST `/projects/:id/merge_requests/:merge_request_iid/status_checks/:external_status_check_id/retry` | all"
    " three IDs integer required | 202 with body of one field `message` (string); 422 if the check is not failed |",
    "It is sent again, with the current merge request state, when a failed check is retried (endpoint 18).",
)
async def test_a_failed_check_is_asked_again(gate: Gate) -> None:
    check = await gate.check()
    await gate.respond(check, status="failed")
    before = len(await gate.sent_to(check))
    retried = await gate.retry(check)
    assert (retried.status, list(retried.body), type(retried.body["message"])) == (202, ["message"], str)
    entry, sent = await gate.entry(check), await gate.sent_to(check)
    assert entry is not None
    assert (entry["status"], len(sent)) == ("failed", before + 1)
    assert sent[-1]["object_attributes"]["last_commit"]["id"] == gate.sha


@says(
    "endpoint 18",
    "| `passed` (not failed) | POST retry | | unchanged | rejected with 422 |",
    "| 18 retry status check | 422 | the check is already passed (not failed) | object with `message` string stating"
    " the check must be failed |",
)
@pytest.mark.parametrize("status", ["passed", "pending"])
async def test_another_check_is_not_asked_again(gate: Gate, status: str) -> None:
    check = await gate.check()
    await gate.respond(check, status=status)
    refused = await gate.retry(check)
    assert (refused.status, list(refused.body)) == (422, ["message"])
    assert "failed" in refused.body["message"]
    entry = await gate.entry(check)
    assert entry is not None
    assert entry["status"] == status


@says(
    "status checks",
    "Manage external status check services of a project, list the checks that apply to a merge request, set or retry a"
    " check result. The service sends merge request data to the external service.",
    "Creating a check makes the service send data about all applicable merge requests, confidential ones included, to"
    " the external service.",
    "The service sends one outgoing notification: a JSON payload to the `external_url` of each applicable external"
    " status check service for a merge request.",
)
async def test_a_new_service_is_told_of_merge_requests(gate: Gate) -> None:
    check = await gate.check()
    (payload,) = await gate.sent_to(check)
    assert payload["external_approval_rule"] == {name: check[name] for name in ("id", "name", "external_url")}


@says("status checks", "external status checks: Ultimate;")
async def test_which_tier_has_them(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="premium")
    project = await forge.project()
    assert (await forge.root.get(f"/projects/{project['id']}/external_status_checks")).status == 403
