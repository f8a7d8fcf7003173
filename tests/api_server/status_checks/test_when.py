"""When a status check service is sent a delivery, and when it is not."""

from typing import Any

from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver
from tests.support.merge_requests import commit


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
