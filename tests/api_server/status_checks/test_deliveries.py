"""The deliveries API: sending one again, and what becomes of deliveries when their check changes or they are old."""

import datetime

import orjson
from standardwebhooks.webhooks import Webhook

from api_server.status_checks import delivery_queries
from api_server.status_checks.dispatcher import KEPT_FOR
from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver, answer
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
