"""What status check services cannot be, who may not manage them, and the words that say so."""

import asyncio
from typing import Any

import pytest

from tests.api_server.status_checks.conftest import ELSEWHERE, protect
from tests.support.forge import Forge, Person, SharedForges, new_name


@pytest.mark.parametrize(
    ("change", "status", "body"),
    [
        ({"name": ...}, 400, {"error": "name is missing"}),
        ({"external_url": ...}, 400, {"error": "external_url is missing"}),
        (
            {"name": ..., "external_url": ...},
            400,
            {"error": "name is missing, external_url is missing"},
        ),
        ({"protected_branch_ids": "a"}, 400, {"error": "protected_branch_ids is invalid"}),
        ({"name": " "}, 422, {"message": ["Name can't be blank"]}),
        (
            {"external_url": " "},
            422,
            {"message": ["External url can't be blank", "External url must be a valid URL"]},
        ),
        ({"name": "x" * 256}, 422, {"message": ["Name is too long (maximum is 255 characters)"]}),
        (
            {"shared_secret": "x" * 256},
            422,
            {"message": ["Shared secret is too long (maximum is 255 characters)"]},
        ),
        (
            {"external_url": ELSEWHERE + "/" + "x" * 2048},
            422,
            {"message": ["External url is too long (maximum is 2048 characters)"]},
        ),
        (
            {"external_url": ELSEWHERE + "/" + "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))},
            422,
            {"message": ["External url is too long (maximum is 2048 characters)"]},
        ),
        *[
            (
                {"external_url": url},
                422,
                {"message": ["External url is blocked: Only allowed schemes are http, https"]},
            )
            for url in ("external_url.text/hello.json", "ftp://203.0.113.7/a", "file:///etc/passwd")
        ],
        (
            {"external_url": "http://203.0.113.7/a\r\nb"},
            422,
            {"message": ["External url is blocked: URI is invalid"]},
        ),
        *[
            ({"external_url": url}, 422, {"message": [f"External url is blocked: Requests to {text}"]})
            for url, text in (
                ("http://127.0.0.1:1234/hook", "loopback addresses are not allowed"),
                ("http://2130706433/hook", "loopback addresses are not allowed"),
                ("http://[::1]/hook", "loopback addresses are not allowed"),
                ("http://localhost/hook", "localhost are not allowed"),
                ("http://0.0.0.0/hook", "localhost are not allowed"),
                ("https://10.1.2.3", "the local network are not allowed"),
                ("https://[::ffff:192.168.0.1]", "the local network are not allowed"),
                ("http://169.254.169.254/latest", "the link local network are not allowed"),
                ("http://100.64.0.1", "the shared address space are not allowed"),
            )
        ],
        ({"protected_branch_ids": [999999999]}, 404, {"message": "404 Not found"}),
    ],
)
async def test_a_check_that_cannot_be_made_is_refused(
    alice: Person, checks: str, change: dict[str, Any], status: int, body: dict[str, Any]
) -> None:
    wanted = {"name": "QA", "external_url": ELSEWHERE} | change
    wanted = {name: value for name, value in wanted.items() if value is not ...}
    answer = await alice.api.post(checks, wanted)
    assert (answer.status, answer.body) == (status, body)
    if status == 422:
        other = (await alice.api.post(checks, {"name": "Other", "external_url": f"{ELSEWHERE}/2"})).body
        refused = await alice.api.put(f"{checks}/{other['id']}", wanted)
        assert (refused.status, refused.body) == (status, body)
        assert (await alice.api.get(checks)).body == [other]


async def test_name_and_url_are_taken_once_in_a_project(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    wanted = {"name": "QA", "external_url": ELSEWHERE}
    first = (await alice.api.post(checks, wanted)).body
    both = {"message": ["Name has already been taken", "External url has already been taken"]}
    again = await alice.api.post(checks, wanted)
    assert (again.status, again.body) == (422, both)
    name = await alice.api.post(checks, wanted | {"external_url": f"{ELSEWHERE}/"})
    assert (name.status, name.body) == (422, {"message": ["Name has already been taken"]})
    url = await alice.api.post(checks, wanted | {"name": "qa"})
    assert (url.status, url.body) == (422, {"message": ["External url has already been taken"]})
    second = (await alice.api.post(checks, {"name": "qa", "external_url": f"{ELSEWHERE}/2"})).body
    clash = await alice.api.put(f"{checks}/{second['id']}", {"external_url": ELSEWHERE})
    assert (clash.status, clash.body) == (422, {"message": ["External url has already been taken"]})
    same = await alice.api.put(f"{checks}/{first['id']}", wanted)
    assert (same.status, same.body) == (200, first)
    other = await forge.project(alice)
    assert (await alice.api.post(f"/projects/{other['id']}/external_status_checks", wanted)).status == 201


async def test_many_at_once_with_one_name_make_one_check(alice: Person, checks: str) -> None:
    wanted = [{"name": "QA", "external_url": f"{ELSEWHERE}/{number}"} for number in range(5)]
    answers = await asyncio.gather(*(alice.api.post(checks, each) for each in wanted))
    assert sorted(answer.status for answer in answers) == [201, 422, 422, 422, 422]


async def test_branches_of_another_project_are_refused(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    foreign = await protect(alice, await forge.project(alice), "main")
    own = await protect(alice, project, "main")
    wanted = {
        "name": "QA",
        "external_url": ELSEWHERE,
        "protected_branch_ids": [own["id"], foreign["id"]],
    }
    body = {"message": ["all protected branches must exist within the project"]}
    made = await alice.api.post(checks, wanted)
    assert (made.status, made.body) == (422, body)
    check = (await alice.api.post(checks, wanted | {"protected_branch_ids": own["id"]})).body
    changed = await alice.api.put(f"{checks}/{check['id']}", {"protected_branch_ids": [foreign["id"]]})
    assert (changed.status, changed.body) == (422, body)


async def test_a_check_of_another_project_is_404(forge: Forge, alice: Person, checks: str) -> None:
    made = (await alice.api.post(checks, {"name": "QA", "external_url": ELSEWHERE})).body
    other = await forge.project(alice)
    url = f"/projects/{other['id']}/external_status_checks/{made['id']}"
    for method in ("GET", "PUT", "DELETE"):
        assert (await alice.api.request(method, url)).status == 404


async def test_a_check_that_has_changed_is_not_removed_by_who_knows_its_old_state(
    alice: Person, checks: str
) -> None:
    made = (await alice.api.post(checks, {"name": "QA", "external_url": ELSEWHERE})).body
    one = f"{checks}/{made['id']}"
    stale = {"If-Unmodified-Since": "Mon, 01 Jan 2001 00:00:00 GMT"}
    refused = await alice.api.delete(one, headers=stale)
    assert (refused.status, refused.body) == (412, {"message": "412 Precondition Failed"})
    fresh = {"If-Unmodified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    assert (await alice.api.delete(one, headers=fresh)).status == 204


async def test_only_maintainers_manage_checks(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    people = await forge.people(project["id"])
    made = (await alice.api.post(checks, {"name": "QA", "external_url": ELSEWHERE})).body
    deliveries = f"{checks}/{made['id']}/deliveries"
    calls = [
        ("GET", checks, None),
        ("GET", f"{checks}/{made['id']}", None),
        ("PUT", f"{checks}/{made['id']}", {}),
        ("GET", deliveries, None),
        ("GET", f"{deliveries}/1", None),
        ("POST", f"{deliveries}/1/redeliver", None),
        ("POST", checks, {"name": new_name("check"), "external_url": ELSEWHERE}),
        ("DELETE", f"{checks}/{made['id']}", None),
    ]
    for method, url, body in calls:
        anonymous = await forge.anonymous.request(method, url, json=body)
        assert (anonymous.status, anonymous.body) == (401, {"message": "401 Unauthorized"})
        stranger = await people["stranger"].api.request(method, url, json=body)
        assert (stranger.status, stranger.body) == (404, {"message": "404 Project Not Found"})
        for role in ("guest", "reporter", "developer"):
            refused = await people[role].api.request(method, url, json=body)
            assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"}), (method, url)
    maintainer = people["maintainer"].api
    assert [check["id"] for check in (await maintainer.get(checks)).body] == [made["id"]]
    assert (await maintainer.delete(f"{checks}/{made['id']}")).status == 204


async def test_below_the_ultimate_tier_there_are_no_status_checks(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="premium")
    base = "/projects/1"
    text = "403 Forbidden - External status checks is not available on the premium tier"
    for method, path in [
        ("GET", f"{base}/external_status_checks"),
        ("POST", f"{base}/external_status_checks"),
        ("PUT", f"{base}/external_status_checks/1"),
        ("DELETE", f"{base}/external_status_checks/1"),
        ("GET", f"{base}/external_status_checks/1/deliveries"),
        ("GET", f"{base}/merge_requests/1/status_checks"),
        ("POST", f"{base}/merge_requests/1/status_check_responses"),
        ("POST", f"{base}/merge_requests/1/status_checks/1/retry"),
    ]:
        answer = await forge.root.request(method, path)
        assert (answer.status, answer.body) == (403, {"message": text}), path
