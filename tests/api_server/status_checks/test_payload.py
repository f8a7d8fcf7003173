"""What a delivery carries: the document's payload with all its fields, and both signatures."""

import datetime
import hmac
from typing import Any

from standardwebhooks.webhooks import Webhook

from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver, answer

#: The document's Events section: every field with the types that it may have.
TEXT, NUMBER, FLAG, LIST, OBJECT, NONE = str, int, bool, list, dict, type(None)
PROJECT = {
    "id": NUMBER,
    "name": TEXT,
    "description": TEXT,
    "web_url": TEXT,
    "avatar_url": (TEXT, NONE),
    "git_ssh_url": TEXT,
    "git_http_url": TEXT,
    "namespace": TEXT,
    "visibility_level": NUMBER,
    "path_with_namespace": TEXT,
    "default_branch": TEXT,
    "ci_config_path": (TEXT, NONE),
    "homepage": TEXT,
    "url": TEXT,
    "ssh_url": TEXT,
    "http_url": TEXT,
}
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
    "object_kind": TEXT,
    "event_type": TEXT,
    "user": {"id": NUMBER, "name": TEXT, "username": TEXT, "avatar_url": TEXT, "email": TEXT},
    "project": PROJECT,
    "object_attributes": MERGE_REQUEST,
    "labels": LIST,
    "changes": OBJECT,
    "repository": {"name": TEXT, "url": TEXT, "description": TEXT, "homepage": TEXT},
    "external_approval_rule": {"id": NUMBER, "name": TEXT, "external_url": TEXT},
}


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
