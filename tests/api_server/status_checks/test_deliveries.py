"""Deliveries to status check services: when they are sent, their payload and signature, and each attempt."""

import base64
import datetime
import hmac
import time
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from api_server.status_checks import delivery_queries
from api_server.status_checks.attempts import signature_headers
from api_server.status_checks.dispatcher import KEPT_FOR
from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver, answer, hang, never_end, reset
from tests.support.merge_requests import commit, open_merge_request


async def test_redelivery_sends_the_same_message_and_starts_the_schedule_again(
    lab: Lab, receiver: Receiver
) -> None:
    receiver.answers = [answer(204), answer(500), answer(204)]
    check = await lab.check(receiver.url, shared_secret="s")
    await lab.merge_request()
    await lab.deliver()
    (delivery,) = await lab.deliveries(check)
    url = f"{lab.checks}/{check['id']}/deliveries/{delivery['id']}"
    again = await lab.alice.api.post(f"{url}/redeliver")
    assert (again.status, again.body["status"], again.body["delivered_at"]) == (202, "queued", None)
    await lab.deliver(seconds=60)
    await lab.deliver(seconds=5)
    assert len({(r.headers["webhook-id"], r.body) for r in receiver.received}) == 1
    shown = (await lab.alice.api.get(url)).body
    assert [attempt["response_status"] for attempt in shown["attempts"]] == [204, 500, 204]
    assert shown["status"] == "delivered"
    event = await lab.forge.database.row(
        "SELECT author_id, target_id, details FROM audit_events "
        "WHERE event_type = 'status_check_delivery_redelivered' ORDER BY id DESC LIMIT 1"
    )
    assert (event.author_id, event.target_id) == (lab.alice.id, check["id"])
    assert orjson.loads(event.details)["delivery_id"] == str(delivery["id"])
    missing = await lab.alice.api.post(f"{lab.checks}/{check['id']}/deliveries/999999/redeliver")
    assert missing.status == 404


async def test_a_check_that_is_removed_takes_its_deliveries_with_it(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url)
    await lab.merge_request()
    assert (await lab.alice.api.delete(f"{lab.checks}/{check['id']}")).status == 204
    await lab.deliver()
    assert receiver.received == []


async def test_a_changed_url_and_secret_count_for_what_is_queued_already(
    lab: Lab, receiver: Receiver
) -> None:
    check = await lab.check("http://127.0.0.1:1/", shared_secret="old")
    await lab.merge_request()
    await lab.deliver()
    await lab.alice.api.put(
        f"{lab.checks}/{check['id']}", {"external_url": receiver.url, "shared_secret": "new"}
    )
    await lab.deliver(seconds=5)
    (received,) = receiver.received
    assert Webhook(b"new").verify(received.body, dict(received.headers))


async def test_old_deliveries_are_forgotten_and_queued_ones_never(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(204), answer(500)]
    check = await lab.check(receiver.url)
    await lab.merge_request("one")
    await lab.deliver()
    await lab.merge_request("two")
    await lab.deliver()
    for moved, left in [(KEPT_FOR - datetime.timedelta(days=1), 2), (datetime.timedelta(days=2), 1)]:
        lab.clock.now += moved
        async with lab.forge.database.transaction() as transaction:
            await delivery_queries.forget(transaction, lab.clock() - KEPT_FOR)
        assert len(await lab.deliveries(check)) == left


async def test_a_foreign_merge_requests_events_do_not_leak(lab: Lab, receiver: Receiver) -> None:
    await lab.check(receiver.url)
    other = await lab.forge.project(lab.alice)
    await commit(lab.alice.api, other, "main", "README.md")
    await open_merge_request(lab.alice, other)
    await lab.deliver()
    assert receiver.received == []


async def test_a_receiver_that_fails_is_tried_again_exactly_as_decided(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(500)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    made = 1
    for seconds in (5, 30, 120, 600, 3600, 21600, 86400):
        assert len(receiver.received) == made
        await lab.deliver(seconds=seconds - 1)
        assert len(receiver.received) == made, f"before {seconds} seconds are over"
        await lab.deliver(seconds=1)
        made += 1
    (delivery,) = await lab.deliveries(check)
    assert (len(receiver.received), delivery["attempts_count"]) == (8, 8)
    assert (delivery["status"], delivery["next_attempt_at"]) == ("failed", None)
    assert [attempt["response_status"] for attempt in delivery["attempts"]] == [500] * 8
    await lab.deliver(days=30)
    assert len(receiver.received) == 8


@pytest.mark.parametrize(
    ("header", "seconds"), [("60", 60), ("1", 5), ("soon", 5), ("999999999", 86400), (None, 90)]
)
async def test_retry_after_is_honoured(
    lab: Lab, receiver: Receiver, header: str | None, seconds: int
) -> None:
    async def unavailable(_: web.Request) -> web.Response:
        moment = lab.clock.now + datetime.timedelta(seconds=seconds + 1)
        date = moment.strftime("%a, %d %b %Y %H:%M:%S GMT")
        return web.Response(status=503, headers={"retry-after": header or date})

    receiver.answers = [unavailable, answer(200)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    await lab.deliver(seconds=seconds - 0.5)
    assert len(receiver.received) == 1
    await lab.deliver(seconds=1.5)
    (delivery,) = await lab.deliveries(check)
    assert (len(receiver.received), delivery["status"]) == (2, "delivered")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_a_success(lab: Lab, receiver: Receiver, status: int) -> None:
    receiver.answers = [answer(status)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("delivered", 1)


@pytest.mark.parametrize("status", [301, 304, 307, 400, 401, 404, 409, 429, 500, 599])
async def test_everything_else_is_tried_again(lab: Lab, receiver: Receiver, status: int) -> None:
    receiver.answers = [answer(status), answer(204)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("queued", 1)
    await lab.deliver(seconds=5)
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("delivered", 2)


async def test_what_was_sent_and_what_came_back_is_kept(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(418, "é\0" + "x" * 20_000, X_Reason="teapot"), answer(200, "thanks")]
    check = await lab.check(receiver.url, shared_secret="s")
    await lab.merge_request()
    await lab.deliver()
    await lab.deliver(seconds=5)
    (delivery,) = await lab.deliveries(check)
    first, second = delivery["attempts"]
    sent = receiver.received[0].headers
    for name, value in first["request_headers"].items():
        assert sent[name] == value
    assert {"webhook-signature", "X-Service-Signature", "Content-Type"} <= first["request_headers"].keys()
    assert (first["response_status"], first["response_headers"]["X-Reason"]) == (418, "teapot")
    assert first["response_body"] == "é\N{REPLACEMENT CHARACTER}" + "x" * (10 * 1024 - 3)
    assert 0 <= first["duration"] < 30
    assert (first["number"], first["error"]) == (1, None)
    assert (second["number"], second["response_body"]) == (2, "thanks")
    listed = (await lab.alice.api.get(f"{lab.checks}/{check['id']}/deliveries")).body
    assert listed == [
        {
            "id": delivery["id"],
            "webhook_id": sent["webhook-id"],
            "external_status_check_id": check["id"],
            "merge_request_iid": 1,
            "action": "open",
            "status": "delivered",
            "attempts_count": 2,
            "response_status": 200,
            "error": None,
            "created_at": delivery["created_at"],
            "next_attempt_at": None,
            "delivered_at": delivery["delivered_at"],
        }
    ]
    for status, count in [("queued", 0), ("delivered", 1), ("failed", 0)]:
        url = f"{lab.checks}/{check['id']}/deliveries?status={status}"
        assert len((await lab.alice.api.get(url)).body) == count
    missing = await lab.alice.api.get(f"{lab.checks}/{check['id']}/deliveries/{delivery['id'] + 1}")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})


async def test_why_no_answer_came_is_told_without_the_url(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = receiver.url.rpartition(":")[2].removesuffix("/hook")
    lab.names.addresses["receiver.example.org"] = ["127.0.0.1"]
    for url, behaviour, error in [
        ("http://127.0.0.1:1/?token=hunter2", hang, "No connection: Connection refused"),
        ("http://unknown.example.org/?token=hunter2", hang, "Host cannot be resolved or invalid"),
        (f"{receiver.url}?token=hunter2", hang, "No answer within 0 seconds"),
        (
            f"http://bob:hunter2@receiver.example.org:{port}/",
            reset,
            "The connection was closed before an answer came",
        ),
        (
            f"https://127.0.0.1:{port}/?token=hunter2",
            hang,
            "The TLS handshake failed or the certificate is not valid",
        ),
    ]:
        seconds = 0.3 if error.startswith("No answer") else 20  # a busy machine needs time for the others
        monkeypatch.setattr(
            "api_server.status_checks.attempts.TIMEOUT", aiohttp.ClientTimeout(total=seconds, connect=20)
        )
        receiver.answers = [behaviour]
        check = await lab.check(url, error[:30])
        await lab.merge_request(f"branch-{check['id']}")
        await lab.deliver()
        delivery = (await lab.deliveries(check))[-1]
        (attempt,) = delivery["attempts"]
        assert (attempt["error"], attempt["response_status"], delivery["status"]) == (error, None, "queued")
        assert "hunter2" not in str(attempt)
        await lab.alice.api.delete(f"{lab.checks}/{check['id']}")


async def test_an_answer_that_never_ends_is_cut_off(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [never_end]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    (delivery,) = await lab.deliveries(check)
    assert delivery["status"] == "delivered"
    assert delivery["attempts"][0]["response_body"] == "x" * 10240


#: The document's Events section: every field with its possible types.
TEXT, NUMBER, FLAG, LIST, OBJECT, NONE = str, int, bool, list, dict, type(None)
PROJECT = {
    "id": NUMBER, "name": TEXT, "description": TEXT, "web_url": TEXT,
    "avatar_url": (TEXT, NONE),
    "git_ssh_url": TEXT, "git_http_url": TEXT, "namespace": TEXT, "visibility_level": NUMBER,
    "path_with_namespace": TEXT, "default_branch": TEXT,
    "ci_config_path": (TEXT, NONE),
    "homepage": TEXT, "url": TEXT, "ssh_url": TEXT, "http_url": TEXT,
}  # fmt: skip
NUMBER_OR_NULL, TEXT_OR_NULL = (NUMBER, NONE), (TEXT, NONE)
MERGE_REQUEST = (
    dict.fromkeys(
        [
            "id",
            "iid",
            "author_id",
            "assignee_id",
            "head_pipeline_id",
            "milestone_id",
            "merge_user_id",
            "updated_by_id",
            "last_edited_by_id",
            "source_project_id",
            "target_project_id",
            "state_id",
        ],
        NUMBER_OR_NULL,
    )
    | dict.fromkeys(
        [
            "title",
            "description",
            "source_branch",
            "target_branch",
            "state",
            "merge_status",
            "detailed_merge_status",
            "merge_commit_sha",
            "merge_error",
            "url",
            "human_total_time_spent",
            "human_time_change",
            "human_time_estimate",
            "last_edited_at",
        ],
        TEXT_OR_NULL,
    )
    | dict.fromkeys(["created_at", "updated_at"], TEXT)
    | dict.fromkeys(
        [
            "merge_when_pipeline_succeeds",
            "work_in_progress",
            "blocking_discussions_resolved",
            "first_contribution",
        ],
        FLAG,
    )
    | dict.fromkeys(["time_estimate", "total_time_spent", "time_change"], NUMBER)
    | dict.fromkeys(["assignee_ids", "reviewer_ids", "labels"], LIST)
    | {
        "merge_params": {"force_remove_source_branch": TEXT},
        "source": PROJECT,
        "target": PROJECT,
        "last_commit": {
            "id": TEXT,
            "message": TEXT,
            "title": TEXT,
            "timestamp": TEXT,
            "url": TEXT,
            "author": {"name": TEXT, "email": TEXT},
        },
    }
)
PAYLOAD = {
    "object_kind": TEXT, "event_type": TEXT,
    "user": {"id": NUMBER, "name": TEXT, "username": TEXT, "avatar_url": TEXT, "email": TEXT},
    "project": PROJECT, "object_attributes": MERGE_REQUEST, "labels": LIST, "changes": OBJECT,
    "repository": {"name": TEXT, "url": TEXT, "description": TEXT, "homepage": TEXT},
    "external_approval_rule": {"id": NUMBER, "name": TEXT, "external_url": TEXT},
}  # fmt: skip


def assert_shape(value: Any, shape: Any, where: str = "payload") -> None:
    if isinstance(shape, dict):
        missing = shape.keys() - value.keys()
        assert not missing, f"{where} lacks {missing}"
        for name, inner in shape.items():
            assert_shape(value[name], inner, f"{where}.{name}")
    else:
        is_flag = isinstance(value, bool)
        assert isinstance(value, shape), f"{where} is {value!r}"
        assert is_flag == (shape is FLAG), f"{where} is {value!r}"


async def test_the_payload_has_every_field_of_the_document_with_its_type(
    lab: Lab, receiver: Receiver
) -> None:
    check = await lab.check(f"{receiver.url}?token=1")
    await lab.merge_request(labels="b,a", description="Why")
    await lab.deliver()
    (received,) = receiver.received
    payload = received.payload
    assert_shape(payload, PAYLOAD)
    assert received.path == "/hook?token=1"
    assert received.headers["Content-Type"] == "application/json"
    assert payload["object_kind"] == payload["event_type"] == "merge_request"
    assert payload["user"] == {
        "id": lab.alice.id,
        "name": lab.alice.username.title(),
        "username": lab.alice.username,
        "avatar_url": "",
        "email": "[REDACTED]",
    }
    assert payload["external_approval_rule"] == {
        "id": check["id"],
        "name": "QA",
        "external_url": f"{receiver.url}?token=1",
    }
    assert payload["labels"] == payload["object_attributes"]["labels"] == [{"title": "a"}, {"title": "b"}]
    assert payload["changes"] == {}
    assert payload["project"]["git_http_url"] == lab.project["http_url_to_repo"]
    assert payload["project"]["visibility_level"] == 0


async def test_the_payload_shows_the_merge_request_and_its_last_commit(lab: Lab, receiver: Receiver) -> None:
    await lab.check(receiver.url)
    made = await lab.merge_request(description="Why")
    await lab.deliver()
    (received,) = receiver.received
    attributes = received.payload["object_attributes"]
    expected = {
        "id": made["id"],
        "iid": 1,
        "author_id": lab.alice.id,
        "title": "Add a feature",
        "description": "Why",
        "source_branch": "feature",
        "target_branch": "main",
        "state": "opened",
        "state_id": 1,
        "merge_status": "can_be_merged",
        "detailed_merge_status": "mergeable",
        "url": made["web_url"],
        "action": "open",
        "oldrev": None,
    }
    assert {name: attributes[name] for name in expected} == expected
    moment = datetime.datetime.strptime(attributes["created_at"], "%Y-%m-%d %H:%M:%S UTC")
    assert moment.isoformat() == made["created_at"][:19]
    commit_sent = attributes["last_commit"]
    assert commit_sent["id"] == made["sha"]
    assert commit_sent["url"] == f"{lab.project['web_url']}/-/commit/{made['sha']}"
    assert commit_sent["author"] == {"name": lab.alice.username.title(), "email": lab.alice.email}
    assert datetime.datetime.fromisoformat(commit_sent["timestamp"]).tzinfo is not None


async def test_both_signatures_of_a_delivery_are_right_and_its_id_stays_over_retries(
    lab: Lab, receiver: Receiver
) -> None:
    receiver.answers = [answer(500), answer(204)]
    await lab.check(receiver.url, shared_secret="correct horse")
    await lab.merge_request()
    await lab.deliver()
    await lab.deliver(seconds=5)
    first, second = receiver.received
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    times = [int(received.headers["webhook-timestamp"]) for received in (first, second)]
    assert times[1] - times[0] == 5
    assert [r.headers["X-Service-Delivery-Attempt"] for r in (first, second)] == ["1", "2"]
    for received in (first, second):
        plain = hmac.new(b"correct horse", received.body, "sha256").hexdigest()
        assert received.headers["X-Service-Signature"] == plain
        assert Webhook(b"correct horse").verify(received.body, dict(received.headers)) == received.payload


async def test_without_a_secret_a_delivery_is_not_signed(lab: Lab, receiver: Receiver) -> None:
    await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    (received,) = receiver.received
    assert "X-Service-Signature" not in received.headers
    assert "webhook-signature" not in received.headers
    assert received.headers["webhook-id"]


def actions(receiver: Receiver) -> list[str | None]:
    return [received.payload["object_attributes"]["action"] for received in receiver.received]


async def test_everything_that_happens_to_a_merge_request_is_delivered(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url)
    made = await lab.merge_request(labels="a")
    one = lab.one(made)
    changes: list[Any] = [{}]
    for call, change in [
        (lambda: lab.alice.api.put(one, {"title": "Other"}), {"title": ("Add a feature", "Other")}),
        (
            lambda: lab.alice.api.put(one, {"add_labels": "b"}),
            {"labels": ([{"title": "a"}], [{"title": "a"}, {"title": "b"}])},
        ),
        (lambda: commit(lab.alice.api, lab.project, "feature"), {}),
        (lambda: lab.alice.api.put(one, {"state_event": "close"}), {"state": ("opened", "closed")}),
        (lambda: lab.alice.api.put(one, {"state_event": "reopen"}), {"state": ("closed", "opened")}),
        (lambda: lab.alice.api.post(f"{one}/approve"), {}),
        (lambda: lab.alice.api.post(f"{one}/unapprove"), {}),
        (lambda: lab.alice.api.put(f"{one}/merge"), {"state": ("opened", "merged")}),
    ]:
        await call()
        changes.append({name: {"previous": old, "current": new} for name, (old, new) in change.items()})
    await lab.alice.api.put(one, {"title": "Other"})  # changes nothing
    await lab.deliver()
    by_time = sorted(
        (delivery["id"], delivery["action"], delivery["payload"]) for delivery in await lab.deliveries(check)
    )
    told = ["open", "update", "update", "update", "close", "reopen", "approved", "unapproved", "merge"]
    assert [action for _, action, _ in by_time] == told
    assert [payload["changes"] for _, _, payload in by_time] == changes
    assert sorted(filter(None, actions(receiver))) == sorted(told)
    pushed = by_time[3][2]["object_attributes"]
    assert pushed["oldrev"] == made["sha"] != pushed["last_commit"]["id"]
    merged = by_time[-1][2]["object_attributes"]
    assert (merged["state"], merged["state_id"], merged["detailed_merge_status"]) == ("merged", 3, "not_open")
    assert merged["merge_user_id"] == lab.alice.id
    assert merged["merge_commit_sha"]


async def test_only_checks_that_apply_are_sent_to(lab: Lab, receiver: Receiver) -> None:
    protect = {"name": "release/*"}
    rule = (await lab.alice.api.post(f"{lab.path}/protected_branches", protect)).body
    await lab.check(receiver.url, protected_branch_ids=[rule["id"]])
    await commit(lab.alice.api, lab.project, "release/1", start_branch="main")
    await lab.merge_request("for-main")
    await lab.merge_request("for-release", "release/1")
    await lab.deliver()
    branches = [received.payload["object_attributes"]["target_branch"] for received in receiver.received]
    assert branches == ["release/1"]


async def test_making_a_check_sends_the_state_of_all_open_merge_requests(
    lab: Lab, receiver: Receiver
) -> None:
    for name in ("one", "two", "closed"):
        made = await lab.merge_request(name)
    await lab.alice.api.put(lab.one(made), {"state_event": "close"})
    await lab.check(receiver.url)
    await lab.deliver()
    sent = {received.payload["object_attributes"]["source_branch"] for received in receiver.received}
    assert sent == {"one", "two"}
    assert actions(receiver) == [None, None]


async def test_retry_sends_the_present_state_again(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url)
    made = await lab.merge_request()
    await lab.respond(made, check, "failed")
    await lab.deliver()
    assert (await lab.alice.api.post(f"{lab.one(made)}/status_checks/{check['id']}/retry")).status == 202
    await lab.deliver()
    assert actions(receiver) == ["open", None]
    assert receiver.received[1].payload["changes"] == {}
    ids = {received.headers["webhook-id"] for received in receiver.received}
    assert len(ids) == 2


async def test_a_refused_change_delivers_nothing(lab: Lab, receiver: Receiver) -> None:
    await lab.check(receiver.url)
    made = await lab.merge_request()
    await lab.deliver()
    both = {"title": "Other", "target_branch": "gone"}
    assert (await lab.alice.api.put(lab.one(made), both)).status == 400
    both = {"title": "Other", "state_event": "close", "target_branch": "feature"}
    assert (await lab.alice.api.put(lab.one(made), both)).status == 422
    await lab.deliver()
    assert actions(receiver) == ["open"]


NOW = 1_700_000_000


def headers_of(secret: str | None, body: bytes = b"{}", timestamp: int = NOW) -> dict[str, str]:
    return signature_headers(body, webhook_id="m-1", timestamp=timestamp, secret=secret)


def test_the_plain_form_is_the_hex_hmac_of_the_body_as_gitlab_makes_it() -> None:
    signature = "6c52a647de5847fc387ead12919dc6a5b9ed08e9538583c83da266d958e33aec"
    assert headers_of("shared_secret")["X-Service-Signature"] == signature


def test_without_a_secret_nothing_is_signed() -> None:
    assert headers_of(None) == {"webhook-id": "m-1", "webhook-timestamp": str(NOW)}


@given(secret=st.text(min_size=1, max_size=255).filter(lambda text: not text.startswith("whsec_")))
def test_the_standard_webhooks_library_makes_the_same_signature_with_the_secrets_bytes(secret: str) -> None:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    theirs = Webhook(secret.encode()).sign("m-1", moment, "{}")
    assert headers_of(secret)["webhook-signature"] == theirs


def test_a_secret_in_the_libraries_own_form_spells_the_key() -> None:
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    assert headers_of(secret)["webhook-signature"] == Webhook(secret).sign("m-1", moment, "{}")
    # GitLab's header does not decode keys: its key is the secret as it stands
    ours = hmac.digest(secret.encode(), b"{}", "sha256").hex()
    assert headers_of(secret)["X-Service-Signature"] == ours


def test_what_only_looks_like_that_form_is_a_secret_like_any_other() -> None:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    theirs = Webhook(b"whsec_not base64!").sign("m-1", moment, "{}")
    assert headers_of("whsec_not base64!")["webhook-signature"] == theirs


def test_the_library_accepts_ours_while_it_is_new_and_refuses_it_later() -> None:
    webhook = Webhook(b"secret")
    assert webhook.verify(b"{}", headers_of("secret", timestamp=int(time.time()))) == {}
    with pytest.raises(WebhookVerificationError):
        webhook.verify(b"{}", headers_of("secret", timestamp=int(time.time()) - 3600))
