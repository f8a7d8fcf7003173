"""Results that are failed because no answer comes."""

from typing import Any

import pytest

from api_server.state.queue import QUEUE
from api_server.status_checks import services
from tests.api_server.status_checks.conftest import ELSEWHERE, Lab, statuses


async def test_pending_answers_time_out_only_once_they_are_old_and_the_newest(lab: Lab) -> None:
    made = await lab.merge_request()
    names = ("pending", "passed", "silent")
    pending, passed, _ = [await lab.check(f"{ELSEWHERE}/{name}", name) for name in names]
    await lab.respond(made, pending, "pending")
    await lab.respond(made, passed, "pending")
    await lab.respond(made, passed, "passed")

    async def time_out() -> list[tuple[str, str]]:
        async with lab.forge.database.transaction() as transaction:
            await services.time_out_responses(transaction, 120)
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
        begun = {task for task, _ in lab.forge.server.app[QUEUE]._app.periodic_registry.periodic_tasks}
        assert ("time_out_status_checks" in begun) == bool(seconds)
        assert "forget_deliveries" in begun
