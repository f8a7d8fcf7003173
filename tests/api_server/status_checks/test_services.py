"""Status check services: creation, changes, refusals, audit events, and allowed addresses."""

import asyncio
import collections
from typing import Any

import gitlab
import orjson
import pytest

from api_server.status_checks import queries
from tests.api_server.status_checks.conftest import ELSEWHERE, Lab, new_check, protect, statuses
from tests.api_server.status_checks.receiver import Receiver, answer
from tests.support.forge import Forge, Person, SharedForges, new_name
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
    """Unprotecting a branch does not allow a merge without the check."""
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


async def events_of(forge: Forge, project: dict[str, Any]) -> list[Any]:
    return await forge.database.rows(
        """SELECT event_type, author_id, target_type, target_id, target_details, details::text
        FROM audit_events WHERE entity_type = 'Project' AND entity_id = %(id)s AND target_type = 'ExternalStatusCheck'
        ORDER BY id""",
        id=project["id"],
    )


async def test_every_change_is_audited_without_secrets(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    main, stable = [await protect(alice, project, name) for name in ("main", "stable")]
    url = "http://user:hunter2@203.0.113.7/a?token=hunter2#hunter2"
    wanted = {"name": "QA", "external_url": url, "shared_secret": "hunter2"}
    made = (await alice.api.post(checks, wanted)).body
    one = f"{checks}/{made['id']}"
    for change in (
        {"name": "Quality"},
        {"external_url": f"{ELSEWHERE}/%7Eb?token=hunter2"},
        {"shared_secret": "hunter22"},
        {"protected_branch_ids": [main["id"], stable["id"]]},
        {"protected_branch_ids": [main["id"]]},
        {"protected_branch_ids": []},
        {"name": "Quality", "shared_secret": "hunter22"},  # no difference
    ):
        assert (await alice.api.put(one, change)).status == 200
    assert (await alice.api.delete(one)).status == 204
    events = await events_of(forge, project)
    told = [(event.event_type, orjson.loads(event.details)["custom_message"]) for event in events]
    assert told == [
        ("create_status_check", "Added QA status check with all branches"),
        ("external_status_check_name_updated", "Changed name from QA to Quality"),
        (
            "external_status_check_url_updated",
            "Changed external url from http://203.0.113.7/a to http://203.0.113.7/%7Eb",
        ),
        ("external_status_check_secret_updated", "Changed shared secret of Quality status check"),
        (
            "update_status_check",
            "Added protected branch main to Quality status check and removed all other branches "
            "from status check",
        ),
        ("update_status_check", "Added protected branch stable to Quality status check"),
        ("update_status_check", "Removed protected branch stable from Quality status check"),
        ("update_status_check", "Added all branches to Quality status check"),
        ("delete_status_check", "Removed Quality status check"),
    ]
    assert {(e.author_id, e.target_id) for e in events} == {(alice.id, made["id"])}
    assert not [event for event in events if "hunter2" in event.details]
    name = orjson.loads(events[1].details)
    assert (name["change"], name["from"], name["to"]) == ("name", "QA", "Quality")


async def test_a_check_for_branches_is_audited_with_their_names(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    ids = [(await protect(alice, project, name))["id"] for name in ("a", "b")]
    wanted = {"name": "QA", "external_url": ELSEWHERE, "protected_branch_ids": ids}
    await alice.api.post(checks, wanted)
    (event,) = await events_of(forge, project)
    message = "Added QA status check with protected branch(es) a, b"
    assert orjson.loads(event.details)["custom_message"] == message


async def test_the_end_of_a_protection_tells_what_the_check_applies_to_now(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    ids = [(await protect(alice, project, name))["id"] for name in ("main", "stable")]
    wanted = {"name": "QA", "external_url": ELSEWHERE, "protected_branch_ids": ids}
    made = (await alice.api.post(checks, wanted)).body
    for name in ("main", "stable"):
        path = f"/projects/{project['id']}/protected_branches/{name}"
        assert (await alice.api.delete(path)).status == 204
    events = (await events_of(forge, project))[1:]
    assert [
        (event.event_type, event.author_id, event.target_id, orjson.loads(event.details)["custom_message"])
        for event in events
    ] == [
        ("update_status_check", alice.id, made["id"], message)
        for message in (
            "Removed protected branch main from QA status check",
            "Added all branches to QA status check",
        )
    ]


PUBLIC, LOCAL = "203.0.113.7", "127.0.0.1"


async def last_error(lab: Lab, check: dict[str, Any]) -> str:
    (delivery,) = await lab.deliveries(check)
    return str(delivery["attempts"][-1]["error"])


async def test_a_name_that_has_turned_local_since_it_was_saved_is_not_called(
    new_lab: Any, receiver: Receiver
) -> None:
    async with new_lab(allow_local_requests=False) as lab:
        port = receiver.url.rpartition(":")[2]
        lab.names.addresses["rebinding.example.org"] = [PUBLIC]
        check = await lab.check(f"http://rebinding.example.org:{port}")
        lab.names.addresses["rebinding.example.org"] = [LOCAL]
        await lab.merge_request()
        await lab.deliver()
        assert receiver.received == []
        assert await last_error(lab, check) == "Requests to loopback addresses are not allowed"


async def test_a_name_that_changes_its_answer_with_every_question_is_not_called(
    new_lab: Any, receiver: Receiver
) -> None:
    class Turning(dict[str, list[str]]):
        """A resolver whose first answer is public, and all later ones local."""

        asked: collections.Counter[str] = collections.Counter()

        def __getitem__(self, host: str) -> list[str]:
            self.asked[host] += 1
            return [PUBLIC] if self.asked[host] == 1 else [LOCAL]

        def __contains__(self, host: object) -> bool:
            return True

    async with new_lab(allow_local_requests=False) as lab:
        lab.names.addresses = Turning()
        port = receiver.url.rpartition(":")[2]
        check = await lab.check(f"http://turning.example.org:{port}")
        await lab.merge_request()
        await lab.deliver()
        assert receiver.received == []
        assert await last_error(lab, check) == "Requests to loopback addresses are not allowed"


async def test_a_redirect_to_a_local_address_is_not_followed(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(307, Location=receiver.url + "/elsewhere")]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    assert [received.path for received in receiver.received] == ["/hook"]
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts"][0]["response_status"]) == ("queued", 307)


async def test_administrators_allow_single_hosts_and_take_that_back(new_lab: Any, receiver: Receiver) -> None:
    async with new_lab(allow_local_requests=False) as lab:
        refused = await lab.alice.api.post(lab.checks, {"name": "QA", "external_url": receiver.url})
        text = "External url is blocked: Requests to loopback addresses are not allowed"
        assert (refused.status, refused.body) == (422, {"message": [text]})
        allow = {"outbound_local_requests_whitelist": ["127.0.0.1"]}
        assert (await lab.forge.root.put("/application/settings", allow)).status == 200
        check = await lab.check(receiver.url)
        await lab.merge_request()
        await lab.deliver()
        assert len(receiver.received) == 1
        deny = {"outbound_local_requests_whitelist": []}
        assert (await lab.forge.root.put("/application/settings", deny)).status == 200
        (delivery,) = await lab.deliveries(check)
        await lab.alice.api.post(f"{lab.checks}/{check['id']}/deliveries/{delivery['id']}/redeliver")
        await lab.deliver()
        assert len(receiver.received) == 1
        assert await last_error(lab, check) == "Requests to loopback addresses are not allowed"


async def test_a_name_that_does_not_resolve_yet_may_be_saved(new_lab: Any) -> None:
    async with new_lab(allow_local_requests=False) as lab:
        check = await lab.check("https://later.example.org/hook")
        await lab.merge_request()
        await lab.deliver()
        assert await last_error(lab, check) == "Host cannot be resolved or invalid"
