"""The dispatcher of deliveries: its order, its retries, pauses and time-outs."""

import asyncio
import datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.state.errors import Unavailable
from api_server.status_checks import checks, delivery_queries, queries
from api_server.status_checks import dispatcher as module
from api_server.status_checks.attempts import JITTER, LONGEST_RETRY_AFTER, WAITS, retry_after, wait_after
from api_server.status_checks.delivery_queries import TAKE_DUE
from api_server.web.context import SERVICES
from tests.api_server.status_checks.conftest import ELSEWHERE, Lab, install_doubles, lab_on, statuses
from tests.api_server.status_checks.receiver import Receiver, answer, answer_late, hang, running_receiver
from tests.support.background import watched
from tests.support.forge import SharedForges
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.waiting import until, until_somebody_waits


async def queue(lab: Lab, check: dict[str, Any], count: int) -> None:
    """Queue the first delivery of a check this many more times."""
    async with lab.forge.database.transaction() as transaction:
        await transaction.row(
            """
            INSERT INTO status_check_deliveries (check_id, merge_request_id, body, next_attempt_at, created_at)
            SELECT first.check_id, first.merge_request_id, first.body, %(now)s, %(now)s
            FROM generate_series(1, %(count)s), (
                SELECT * FROM status_check_deliveries WHERE check_id = %(id)s ORDER BY id LIMIT 1) first
            """,
            id=check["id"],
            count=count,
        )


async def test_a_running_server_delivers_by_itself(shared_forge: SharedForges, receiver: Receiver) -> None:
    forge = await shared_forge(work=True, allow_local_requests=True)
    alice = await forge.user("alice")
    project = await new_project(forge, alice)
    wanted = {"name": "QA", "external_url": receiver.url}
    made = await alice.api.post(f"/projects/{project['id']}/external_status_checks", wanted)
    assert made.status == 201
    await open_merge_request(alice, project)
    await until(lambda: receiver.received)
    assert receiver.received[0].payload["object_attributes"]["action"] == "open"


async def test_a_worker_that_is_killed_while_it_sends_loses_nothing(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url)
    await lab.merge_request()
    receiver.answers = [hang]
    dispatcher = lab.dispatcher
    killed = asyncio.create_task(dispatcher.deliver_due())
    await until(lambda: receiver.received)
    killed.cancel()
    for task in list(dispatcher._in_flight):
        task.cancel()
    await asyncio.gather(killed, *dispatcher._in_flight, return_exceptions=True)
    receiver.answers = []
    await lab.deliver(seconds=59)
    assert len(receiver.received) == 1, "another worker may still be at it"
    await lab.deliver(seconds=1)
    assert len(receiver.received) == 2
    assert receiver.received[0].headers["webhook-id"] == receiver.received[1].headers["webhook-id"]
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("delivered", 1)


async def test_what_has_been_delivered_is_recorded_when_the_database_is_back_and_not_sent_again(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = await lab.check(receiver.url)
    await lab.merge_request()

    async def away(*_: Any) -> Any:
        raise Unavailable("the database")

    with monkeypatch.context() as outage:
        outage.setattr(delivery_queries, "record", away)
        for seconds in (0, 1):
            with pytest.raises(Unavailable):
                await lab.deliver(seconds=seconds)
    await lab.deliver(seconds=3600)
    assert len(receiver.received) == 1
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("delivered", 1)


async def test_a_server_that_ends_between_attempts_loses_nothing(
    new_forge: Any, new_database: Any, receiver: Receiver, tmp_path: Path
) -> None:
    settings = {"database_url": new_database(), "work": False, "allow_local_requests": True}
    receiver.answers = [answer(500), answer(204)]
    async with new_forge(change_app=install_doubles, data_dir=tmp_path, **settings) as forge:
        lab = await lab_on(forge)
        check = await lab.check(receiver.url, shared_secret="s")
        await lab.merge_request("one")
        await lab.deliver()
        await lab.merge_request("two")  # queued, but never tried by this server
        began = lab.clock.now
    path = tmp_path / "again"
    path.mkdir()
    (path / "secret_key").write_text((tmp_path / "secret_key").read_text())
    async with new_forge(change_app=install_doubles, data_dir=path, **settings) as forge:
        restarted = await lab_on(forge)
        restarted.clock.now = began
        await restarted.deliver(seconds=5)
        rows = await restarted.forge.database.rows(
            "SELECT status, attempts FROM status_check_deliveries WHERE check_id = %(id)s ORDER BY id",
            id=check["id"],
        )
        assert [tuple(row) for row in rows] == [("delivered", 2), ("delivered", 1)]
    assert len({received.headers["webhook-id"] for received in receiver.received}) == 2


async def test_a_server_that_is_told_to_stop_gives_back_what_it_cannot_finish(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.05)
    check = await lab.check(receiver.url)
    await lab.merge_request()
    receiver.answers = [hang]
    dispatcher = lab.dispatcher
    async with watched() as life, dispatcher.working(*life):
        await until(lambda: receiver.received)
    (delivery,) = await lab.deliveries(check)
    now = lab.clock.now.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    assert (delivery["status"], delivery["attempts"]) == ("queued", [])
    assert delivery["next_attempt_at"] == now


async def test_two_workers_send_each_delivery_once(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await queue(lab, check, 199)
    first = lab.dispatcher
    second = module.Dispatcher(first._database, first._session, first._vault, first._random)
    await asyncio.gather(first.deliver_due(), second.deliver_due())
    ids = [received.headers["webhook-id"] for received in receiver.received]
    assert len(ids) == len(set(ids)) == 200


async def test_a_slow_receiver_delays_nobody_else(lab: Lab, receiver: Receiver) -> None:
    receiver.answers = [hang]
    slow = await lab.check(receiver.url, "slow")
    async with running_receiver() as quick:
        await lab.merge_request()
        fast = await lab.check(quick.url, "fast")  # queued after all deliveries of the slow one
        await queue(lab, slow, 100)
        await queue(lab, fast, 99)
        sending = asyncio.create_task(lab.dispatcher.deliver_due())
        await until(lambda: len(quick.received) == 100)
        assert len(receiver.received) <= module.CONNECTIONS_OF_ONE
        receiver.closing.set()  # hanging requests are answered
        await sending
    assert len(receiver.received) == 101


async def test_answers_that_come_while_the_queue_is_read_make_room_for_the_rest(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answers = [hang]
    async with running_receiver() as quick:
        slow = await lab.check(receiver.url, "slow")
        await lab.check(quick.url, "quick")
        await lab.merge_request()
        await queue(lab, slow, module.CONNECTIONS_OF_ONE)
        dispatcher = lab.dispatcher
        take_due = module.delivery_queries.take_due

        async def answered_meanwhile(*arguments: Any, **options: Any) -> Any:
            taken = await take_due(*arguments, **options)
            if quick.received:
                receiver.closing.set()
                await until(lambda: not dispatcher._in_flight)
            return taken

        monkeypatch.setattr(module.delivery_queries, "take_due", answered_meanwhile)
        await dispatcher.deliver_due()
    assert len(receiver.received) == module.CONNECTIONS_OF_ONE + 1


async def test_a_receiver_that_fails_gets_one_connection_until_it_succeeds(
    lab: Lab, receiver: Receiver
) -> None:
    at_once: list[int] = []
    busy = 0

    async def note(request: Any) -> Any:
        nonlocal busy
        busy += 1
        at_once.append(busy)
        await asyncio.sleep(0.01)
        busy -= 1
        return await answer(500 if len(at_once) < 20 else 204)(request)

    receiver.answers = [answer(500), note]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    await queue(lab, check, 100)
    await lab.deliver()
    assert set(at_once[:20]) == {1}
    assert 1 < max(at_once) <= module.CONNECTIONS_OF_ONE


async def test_a_delivery_that_is_redelivered_while_it_is_under_way_counts_both_attempts(
    lab: Lab, receiver: Receiver
) -> None:
    receiver.answers = [hang]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    sending = asyncio.create_task(lab.dispatcher.deliver_due())
    await until(lambda: receiver.received)
    delivery = (await lab.alice.api.get(f"{lab.checks}/{check['id']}/deliveries")).body[0]
    await lab.alice.api.post(f"{lab.checks}/{check['id']}/deliveries/{delivery['id']}/redeliver")
    again = asyncio.create_task(lab.dispatcher.deliver_due())
    await until(lambda: len(receiver.received) == 2)
    receiver.closing.set()
    await asyncio.gather(sending, again)
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"], len(delivery["attempts"])) == ("delivered", 2, 2)


async def test_a_delivery_that_is_redelivered_during_its_last_try_begins_anew(
    lab: Lab, receiver: Receiver
) -> None:
    receiver.answers = [answer_late(500), answer(500), answer(204)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.forge.execute(
        "UPDATE status_check_deliveries SET tries = 7 WHERE check_id = %(id)s", id=check["id"]
    )
    sending = asyncio.create_task(lab.dispatcher.deliver_due())
    await until(lambda: receiver.received)
    (delivery,) = await lab.deliveries(check)
    await lab.alice.api.post(f"{lab.checks}/{check['id']}/deliveries/{delivery['id']}/redeliver", expect=202)
    receiver.closing.set()
    await sending
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("queued", 2)
    await lab.deliver(seconds=5)
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("delivered", 3)


@pytest.mark.parametrize("status", [410, 500])
async def test_what_a_former_url_answers_does_not_count_for_the_new_one(
    lab: Lab, receiver: Receiver, status: int
) -> None:
    receiver.answers = [answer(500), answer_late(status), answer(204)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await lab.deliver()
    sending = asyncio.create_task(lab.deliver(days=3))
    await until(lambda: len(receiver.received) == 2)
    await lab.alice.api.put(
        f"{lab.checks}/{check['id']}", {"external_url": f"{receiver.url}/new"}, expect=200
    )
    receiver.closing.set()
    await sending
    assert (await lab.shown(check))["paused"] is False
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("queued", 2)
    await lab.deliver(minutes=1)
    (delivery,) = await lab.deliveries(check)
    assert (delivery["status"], delivery["attempts_count"]) == ("delivered", 3)
    assert [received.path for received in receiver.received] == ["/hook", "/hook", "/hook/new"]


@pytest.mark.parametrize(
    ("status", "hold"),
    [
        (500, "SELECT FROM external_status_checks WHERE id = %(id)s FOR UPDATE"),
        (410, "SELECT FROM projects WHERE id = %(project_id)s FOR UPDATE"),
    ],
)
async def test_a_check_is_deleted_while_its_attempts_are_recorded(
    lab: Lab, receiver: Receiver, status: int, hold: str
) -> None:
    """Neither waits for the other in a circle: a failure changes the check, whose deletion deletes the delivery."""
    receiver.answers = [answer_late(status)]
    check = await lab.check(receiver.url)
    await lab.merge_request()
    sending = asyncio.create_task(lab.dispatcher.deliver_due())
    await until(lambda: receiver.received)
    async with lab.forge.database.transaction() as transaction:
        await transaction.run(hold, id=check["id"], project_id=lab.project["id"])
        receiver.closing.set()
        await until_somebody_waits(lab.forge.database)
        await queries.delete(transaction, check["id"])
    await sending
    left = "SELECT count(*) FROM status_check_deliveries WHERE check_id = %(id)s"
    assert await lab.forge.database.value(left, id=check["id"]) == 0


async def test_a_failure_of_our_own_is_an_attempt_like_any_other(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url, shared_secret="s")
    await lab.merge_request()
    async with lab.forge.database.transaction() as transaction:
        await transaction.row(
            "UPDATE external_status_checks SET shared_secret = '\\x00112233445566778899aabbccddeeff'"
        )
    await lab.deliver()
    (delivery,) = await lab.deliveries(check)
    (attempt,) = delivery["attempts"]
    assert attempt["error"] == "The request could not be made; the server's log says why"
    assert (delivery["status"], receiver.received) == ("queued", [])


async def test_taking_what_is_due_reads_by_index_whatever_else_there_is(lab: Lab, receiver: Receiver) -> None:
    check = await lab.check(receiver.url)
    await lab.merge_request()
    await queue(lab, check, 20_000)
    async with lab.forge.database.transaction() as transaction:
        await transaction.row("ANALYZE status_check_deliveries")
        plan = await transaction.rows(
            "EXPLAIN (ANALYZE, BUFFERS) " + str(TAKE_DUE),
            due_again_at=lab.clock.now,
            busy_checks=[],
            busy_counts=[],
            per_check=16,
            limit=256,
        )
    text = "\n".join(row[0] for row in plan)
    assert "Seq Scan on status_check_deliveries" not in text, text
    assert "Index" in text
    # This index contains delivered ones too, for 90 days.
    assert "status_check_deliveries_of_check" not in text, text


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


NOW = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)

randoms = st.floats(0, 1, exclude_max=True)
asked_waits = st.none() | st.timedeltas(
    min_value=datetime.timedelta(), max_value=datetime.timedelta(days=400)
)


def test_the_waits_are_those_that_were_decided() -> None:
    assert [wait / SECOND for wait in WAITS] == [5, 30, 120, 600, 3600, 21600, 86400]
    assert [wait_after(tries, 0.0) for tries in range(1, 10)] == [*WAITS, None, None]


@given(tries=st.integers(1, len(WAITS)), random=randoms, asked_wait=asked_waits)
def test_a_wait_is_never_shorter_than_decided_or_asked_for_nor_much_longer(
    tries: int, random: float, asked_wait: datetime.timedelta | None
) -> None:
    asked = min(asked_wait or datetime.timedelta(), LONGEST_RETRY_AFTER)
    wait = wait_after(tries, random, asked_wait)
    assert wait is not None
    assert max(WAITS[tries - 1], asked) <= wait <= max(WAITS[tries - 1] * (1 + JITTER), asked)


@given(random=randoms, asked_wait=asked_waits)
def test_nothing_makes_another_try_after_the_last(
    random: float, asked_wait: datetime.timedelta | None
) -> None:
    assert wait_after(len(WAITS) + 1, random, asked_wait) is None


@given(seconds=st.integers(0, 10**30))
def test_retry_after_in_seconds_is_bounded(seconds: int) -> None:
    assert retry_after(str(seconds), NOW) == min(
        datetime.timedelta(seconds=min(seconds, 10**8)), LONGEST_RETRY_AFTER
    )


@given(seconds=st.integers(-(10**6), 10**6))
def test_retry_after_as_a_date_is_the_time_until_then(seconds: int) -> None:
    header = format_datetime(NOW + seconds * SECOND, usegmt=True)
    assert retry_after(header, NOW) == max(seconds, 0) * SECOND


@given(header=st.none() | st.text())
def test_no_header_whatever_it_says_breaks_anything(header: str | None) -> None:
    found = retry_after(header, NOW)
    assert found is None or found >= datetime.timedelta()


def test_what_is_no_retry_after_is_ignored() -> None:
    for header in (None, "", "soon", "-5", "1.5", "Fri, 32 Jan 2026 00:00:00 GMT"):
        assert retry_after(header, NOW) is None, header


async def test_pending_answers_time_out_only_once_they_are_old_and_the_newest(lab: Lab) -> None:
    made = await lab.merge_request()
    names = ("pending", "passed", "silent")
    pending, passed, _ = [await lab.check(f"{ELSEWHERE}/{name}", name) for name in names]
    await lab.respond(made, pending, "pending")
    await lab.respond(made, passed, "pending")
    await lab.respond(made, passed, "passed")

    async def time_out() -> list[tuple[str, str]]:
        async with lab.forge.database.transaction() as transaction:
            await checks.time_out_responses(transaction, 120)
        return await statuses(lab.alice, lab.one(made))

    lab.clock.move(seconds=60)
    untouched = [("pending", "pending"), ("passed", "passed"), ("silent", "pending")]
    assert await time_out() == untouched
    lab.clock.move(seconds=100)
    for _ in range(2):  # once is enough
        assert await time_out() == [("pending", "failed"), *untouched[1:]]
    url = f"{lab.one(made)}/status_checks/{pending['id']}/responses"
    history = (await lab.alice.api.get(url)).body
    assert [entry["status"] for entry in history] == ["failed", "pending"]
    assert (history[0]["user"], history[0]["description"]) == (None, "Not answered within 120 seconds")
    event = await lab.forge.database.row(
        "SELECT author_id, author_name FROM audit_events WHERE event_type = 'status_check_response_update' "
        "ORDER BY id DESC LIMIT 1"
    )
    assert (event.author_id, event.author_name) == (-1, "(System)")


@pytest.mark.parametrize("seconds", [0, 120])
async def test_the_time_out_runs_by_itself_only_where_it_is_set(new_lab: Any, seconds: int) -> None:
    async with new_lab(status_check_timeout=seconds) as lab:
        begun = {
            task for task, _ in lab.forge.server.app[SERVICES].queue._app.periodic_registry.periodic_tasks
        }
        assert ("time_out_status_checks" in begun) == bool(seconds)
        assert "forget_deliveries" in begun
