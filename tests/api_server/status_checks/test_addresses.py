"""Deliveries never reach addresses that the settings do not allow, whatever a name resolves to."""

import collections
from typing import Any

from tests.api_server.status_checks.conftest import Lab
from tests.api_server.status_checks.receiver import Receiver, answer

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
        """Public when it is asked first, local ever after."""

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
