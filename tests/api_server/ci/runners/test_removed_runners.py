"""A runner that is removed while somebody changes it is not there, and has no new token."""

import asyncio

import pytest

from tests.support.forge import Forge
from tests.support.runner import a_runner
from tests.support.waiting import until_somebody_waits

REMOVE = "DELETE FROM runners WHERE id = %(id)s"
EVENTS = "SELECT count(*) FROM audit_events WHERE event_type LIKE 'runner%%' AND target_id = %(id)s"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", {"description": "another one"}),
        ("DELETE", "", None),
        ("POST", "/reset_authentication_token", None),
    ],
)
async def test_a_change_that_comes_too_late(
    forge: Forge, method: str, path: str, body: dict[str, str] | None
) -> None:
    runner = await a_runner(forge)
    assert await forge.database.value(EVENTS, id=runner.id) == 1
    async with forge.database.transaction() as transaction:
        await transaction.run(REMOVE, id=runner.id)
        late = asyncio.create_task(forge.root.request(method, f"/runners/{runner.id}{path}", json=body))
        await until_somebody_waits(forge.database)
    answer = await late
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert await forge.database.value(EVENTS, id=runner.id) == 1
