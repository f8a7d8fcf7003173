"""Attempts to deliver: which answers count, when the next one is made, and what is kept of each."""

import datetime

import aiohttp
import pytest
from aiohttp import web

from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver, answer, hang, never_end, reset


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
