"""A check whose receiver is gone or has failed for long is paused, still gates, and can be resumed."""

import orjson
import pytest

from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver, answer


async def test_410_stops_the_delivery_and_pauses_the_check(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(500), answer(410)]
    check = await lab.check(receiver.url)
    assert (check["paused"], check["pause_reason"]) == (False, None)
    await lab.merge_request("one")
    await lab.deliver()
    await lab.merge_request("two")
    await lab.deliver()
    paused = await lab.shown(check)
    assert (paused["paused"], paused["pause_reason"]) == (True, "The receiver answered 410 Gone")
    assert paused["paused_at"] is not None
    assert [delivery["status"] for delivery in await lab.deliveries(check)] == ["failed", "failed"]
    await lab.merge_request("three")  # not queued
    await lab.deliver(days=2)
    assert len(receiver.received) == 2
    event = await lab.forge.database.row(
        "SELECT author_name, target_id FROM audit_events WHERE event_type = 'external_status_check_paused'"
        " ORDER BY id DESC LIMIT 1"
    )
    assert (event.author_name, event.target_id) == ("(System)", check["id"])


async def test_a_paused_check_still_gates(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(410)]
    await lab.check(receiver.url)
    demand = {"only_allow_merge_if_all_status_checks_passed": True}
    await lab.alice.api.put(lab.path, demand)
    made = await lab.merge_request()
    await lab.deliver()
    shown = (await lab.alice.api.get(lab.one(made))).body
    assert shown["detailed_merge_status"] == "status_checks_must_pass"


@pytest.mark.parametrize("how", ["flag", "url", "redelivery"])
async def test_a_resumed_check_is_sent_the_state_of_all_open_merge_requests(
    lab: Lab, receiver: Receiver, how: str
) -> None:
    receiver.answers = [answer(410), answer(204)]
    check = await lab.check(receiver.url)
    await lab.merge_request("one")
    await lab.deliver()
    await lab.merge_request("two")
    one = f"{lab.checks}/{check['id']}"
    if how == "flag":
        answered = await lab.alice.api.put(one, {"paused": False})
        assert (answered.status, answered.body) == (200, check)
        told = await lab.forge.database.value(
            "SELECT details FROM audit_events WHERE event_type = 'update_status_check' ORDER BY id DESC LIMIT 1"
        )
        assert orjson.loads(told)["custom_message"] == "Resumed QA status check"
    elif how == "url":
        moved = {"external_url": f"{receiver.url}/2"}
        assert (await lab.alice.api.put(one, moved)).body == check | moved
    else:
        (delivery,) = await lab.deliveries(check)
        answered = await lab.alice.api.post(f"{one}/deliveries/{delivery['id']}/redeliver")
        assert answered.status == 202
        await lab.deliver()
    await lab.deliver()
    shown = await lab.shown(check)
    assert (shown["paused"], shown["failing_since"]) == (False, None)
    sent = [received.payload["object_attributes"] for received in receiver.received]
    again = sent[2:] if how == "redelivery" else sent[1:]
    assert sorted(found["source_branch"] for found in again) == ["one", "two"]
    assert [found["action"] for found in again] == [None, None]


async def test_a_new_url_and_the_wish_to_resume_send_everything_once(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(410), answer(204)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    moved = {"external_url": f"{receiver.url}/2", "paused": False}
    assert (await lab.alice.api.put(f"{lab.checks}/{check['id']}", moved)).body["paused"] is False
    await lab.deliver()
    assert len(receiver.received) == 2


async def test_a_receiver_that_fails_for_three_days_is_paused(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(500)]
    check = await lab.check(receiver.url)
    await lab.merge_request("one")
    await lab.deliver()
    began = lab.clock.now
    since = began.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    assert (await lab.shown(check))["failing_since"] == since
    await lab.merge_request("two")
    await lab.deliver(days=3, seconds=-1)
    assert (await lab.shown(check))["paused"] is False
    await lab.deliver(seconds=120)
    shown = await lab.shown(check)
    assert shown["pause_reason"] == f"The receiver has failed since {began:%Y-%m-%d %H:%M:%S} UTC"
    assert {delivery["status"] for delivery in await lab.deliveries(check)} == {"failed"}


async def test_one_success_starts_the_three_days_anew(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [answer(500), answer(204), answer(500)]
    check = await lab.check(receiver.url)
    await lab.merge_request("one")
    await lab.deliver()
    await lab.deliver(days=2)
    assert (await lab.shown(check))["failing_since"] is None
    await lab.merge_request("two")
    await lab.deliver(days=2)
    shown = await lab.shown(check)
    assert (shown["paused"], shown["failing_since"] is not None) == (False, True)
