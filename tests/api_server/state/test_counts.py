"""Long lists are counted once in a while, short ones each time."""

import contextlib
from collections.abc import AsyncIterator

import psycopg2
import pytest

from api_server.state.database import COUNTED_ANEW, REMEMBERED_FOR, Counts, Database, connect
from api_server.state.listing import ListQuery, Page

NUMBERS = ListQuery(
    "SELECT position, id, json_build_object('id', id) AS entity FROM page",
    "SELECT id::bigint FROM numbers WHERE id % 2 = ANY (%(rests)s)",
)
BOTH = [0, 1]


class Clock:
    """Seconds, as they are set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(database_of_module: str, clock: Clock) -> AsyncIterator[tuple[Database, str]]:
    """Without the table `numbers`."""
    url = database_of_module
    async with connect(url, base_url="http://forge.example.org", size=2) as connected:
        async with connected.transaction() as transaction:
            await transaction.run("DROP TABLE IF EXISTS numbers")
        connected.counts = Counts(clock)
        yield connected, url


def added_elsewhere(url: str, first: int, last: int) -> None:
    """Numbers that another process has committed."""
    with contextlib.closing(psycopg2.connect(url)) as other, other, other.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (id bigint)")
        cursor.execute("INSERT INTO numbers SELECT generate_series(%s, %s)", (first, last))


async def total(database: Database, rests: list[int] = BOTH, page: int = 1) -> int | None:
    listed = await NUMBERS.read(database, Page(20, (page - 1) * 20), rests=rests)
    assert listed.more
    return listed.total


async def test_a_long_list_is_counted_once_in_a_while(database: tuple[Database, str], clock: Clock) -> None:
    connected, url = database
    added_elsewhere(url, 1, COUNTED_ANEW + 1)
    assert await total(connected) == COUNTED_ANEW + 1
    added_elsewhere(url, COUNTED_ANEW + 2, COUNTED_ANEW + 9)
    assert await total(connected) == COUNTED_ANEW + 1
    assert await total(connected, page=2) == COUNTED_ANEW + 1
    clock.now += REMEMBERED_FOR
    assert await total(connected) == COUNTED_ANEW + 9


async def test_every_page_tells_how_many_there_are(database: tuple[Database, str], clock: Clock) -> None:
    """Where the list ends on it, where more follows, and behind the end."""
    connected, url = database
    before = 0
    for held in (0, 1, 19, 20, 21, 40, 41):
        added_elsewhere(url, before + 1, held)
        before = held
        for page in (1, 2, 3, 4):
            connected.counts = Counts(clock)
            listed = await NUMBERS.read(connected, Page(20, (page - 1) * 20), rests=BOTH)
            assert (listed.total, listed.more) == (held, held > page * 20), (held, page)


async def test_an_own_commit_is_counted_at_once(database: tuple[Database, str]) -> None:
    connected, url = database
    added_elsewhere(url, 1, COUNTED_ANEW + 1)
    assert await total(connected) == COUNTED_ANEW + 1
    async with connected.transaction() as transaction:
        await transaction.run("INSERT INTO numbers VALUES (%(id)s)", id=COUNTED_ANEW + 2)
        listed = await NUMBERS.read(transaction, Page(), rests=BOTH)
        assert listed.total == COUNTED_ANEW + 2
    assert await total(connected) == COUNTED_ANEW + 2


async def test_a_short_list_is_counted_each_time(database: tuple[Database, str]) -> None:
    connected, url = database
    added_elsewhere(url, 1, COUNTED_ANEW - 1)
    assert await total(connected) == COUNTED_ANEW - 1
    added_elsewhere(url, COUNTED_ANEW, COUNTED_ANEW)
    assert await total(connected) == COUNTED_ANEW


async def test_each_choice_has_a_count_of_its_own(database: tuple[Database, str]) -> None:
    connected, url = database
    added_elsewhere(url, 1, 4 * COUNTED_ANEW + 1)
    assert await total(connected) == 4 * COUNTED_ANEW + 1
    assert await total(connected, rests=[0]) == 2 * COUNTED_ANEW
    assert await total(connected, rests=[1]) == 2 * COUNTED_ANEW + 1
    uncounted = await NUMBERS.read(connected, Page(counted=False), rests=BOTH)
    assert uncounted.total is None
