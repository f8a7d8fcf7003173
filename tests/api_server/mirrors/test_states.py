"""The states of a mirror: every event from every state, and what no event may do."""

import itertools

import psycopg2
import pytest

from api_server.mirrors import queries
from api_server.mirrors.queries import Ended
from api_server.state.database import Transaction
from tests.api_server.mirrors.service import Mirrored, database
from tests.support.forge import Forge

STATUSES = ("none", "started", "finished", "to_retry", "failed")
#: By event, what it leads to from each state that it can happen in.
EVENTS = {
    "begin": dict.fromkeys(STATUSES, "started"),
    "succeed": {"started": "finished"},
    "diverge": {"started": "failed"},
    "retry": {"started": "to_retry"},
    "fail": {"started": "failed"},
    "retarget": dict.fromkeys(STATUSES, "finished"),
}


@pytest.fixture(scope="module")
async def mirrored(working: Forge) -> Mirrored:
    return await Mirrored.create(working, "http://127.0.0.1:9/x.git")


async def put(transaction: Transaction, mirror_id: int, status: str, retries: int = 0) -> None:
    """The state, however it came about."""
    await transaction.row("ALTER TABLE remote_mirrors DISABLE TRIGGER remote_mirrors_transition")
    await transaction.row(
        "UPDATE remote_mirrors SET update_status = %(status)s, retries = %(retries)s, last_error = 'old', "
        "last_update_at = NULL, last_successful_update_at = NULL, failure_told = false WHERE id = %(id)s",
        id=mirror_id,
        status=status,
        retries=retries,
    )
    await transaction.row("ALTER TABLE remote_mirrors ENABLE TRIGGER remote_mirrors_transition")


@pytest.mark.parametrize(("event", "before"), list(itertools.product(EVENTS, STATUSES)))
async def test_each_event_from_each_state(mirrored: Mirrored, event: str, before: str) -> None:
    mirror_id = mirrored.mirror["id"]
    async with database(mirrored.forge).transaction() as transaction:
        await put(transaction, mirror_id, before)
        run = (await mirrored.row()).run
        if event == "begin":
            await queries.begin_run(transaction, mirror_id)
        elif event == "retarget":
            await queries.retarget(transaction, mirror_id)
        else:
            await queries.end_run(transaction, mirror_id, run, event, None if event == "succeed" else "new")  # type: ignore[arg-type]
        row = await transaction.row("SELECT * FROM remote_mirrors WHERE id = %(id)s", id=mirror_id)
    after = EVENTS[event].get(before, before)
    assert row.update_status == after
    if before not in EVENTS[event]:
        assert (row.last_error, row.last_update_at) == ("old", None)
    elif event in ("succeed", "diverge", "fail"):
        assert row.last_update_at is not None
        assert (row.last_successful_update_at is not None) == (event == "succeed")
        assert row.last_error == (None if event == "succeed" else "new")
    elif event == "retry":
        assert (row.last_error, row.last_update_at, row.retries) == ("new", None, 1)
    elif event == "retarget":
        assert (row.last_error, row.last_update_at, row.run) == (None, None, run + 1)
    else:
        assert (row.last_error, row.run) == ("old", run + 1)
        assert row.last_update_started_at is not None


async def test_the_database_refuses_every_move_that_is_no_event(mirrored: Mirrored) -> None:
    async def move(before: str, after: str) -> None:
        async with database(mirrored.forge).transaction() as transaction:
            await put(transaction, mirrored.mirror["id"], before)
            await transaction.row(
                "UPDATE remote_mirrors SET update_status = %(status)s WHERE id = %(id)s",
                id=mirrored.mirror["id"],
                status=after,
            )

    allowed = {(before, after) for moves in EVENTS.values() for before, after in moves.items()}
    for before, after in itertools.product(STATUSES, [*STATUSES, "scheduled"]):
        if (before, after) not in allowed and before != after:
            with pytest.raises(psycopg2.errors.CheckViolation, match=f"from {before} to {after}"):
                await move(before, after)


@pytest.mark.parametrize("why", ["the mirror", "the repository"])
async def test_what_is_disabled_does_not_begin(working: Forge, why: str) -> None:
    mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")
    if why == "the mirror":
        answer = await mirrored.owner.api.put(mirrored.path, {"enabled": False})
    else:
        values = {"repository_access_level": "disabled"}
        answer = await mirrored.owner.api.put(f"/projects/{mirrored.project['id']}", values)
    assert answer.status == 200
    async with database(working).transaction() as transaction:
        assert await queries.begin_run(transaction, mirrored.mirror["id"]) is None


async def test_a_run_whose_number_has_passed_changes_nothing(mirrored: Mirrored) -> None:
    mirror_id = mirrored.mirror["id"]
    async with database(mirrored.forge).transaction() as transaction:
        first = await queries.begin_run(transaction, mirror_id)
        second = await queries.begin_run(transaction, mirror_id)
        assert first is not None
        assert second is not None
        assert not await queries.is_current_run(transaction, mirror_id, first.run)
        assert await queries.end_run(transaction, mirror_id, first.run, "fail", "late") is None
        assert await queries.is_current_run(transaction, mirror_id, second.run)
        ended = await queries.end_run(transaction, mirror_id, second.run, "succeed", None)
        assert ended == Ended("finished", to_be_told=False)


async def test_the_fourth_failure_in_a_row_is_told_and_the_next_one_is_not(mirrored: Mirrored) -> None:
    mirror_id = mirrored.mirror["id"]
    async with database(mirrored.forge).transaction() as transaction:
        await put(transaction, mirror_id, "finished")
        ends = []
        for _ in range(8):
            begun = await queries.begin_run(transaction, mirror_id)
            assert begun is not None
            ends.append(await queries.end_run(transaction, mirror_id, begun.run, "retry", "x"))
    again = Ended("to_retry", to_be_told=False)
    failed_unseen, failed_told = (
        Ended("failed", to_be_told=False),
        Ended("failed", to_be_told=True),
    )
    assert ends == [again, again, again, failed_told, again, again, again, failed_unseen]
