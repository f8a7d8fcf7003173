"""Sessions and transactions, counts of long lists, PostgreSQL's log, and the functions of the schema."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import psycopg2
import pytest

from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import COUNTED_ANEW, REMEMBERED_FOR, Counts, Database, Transaction, connect
from api_server.state.driver import WatchedConnection
from api_server.state.errors import Conflict, LockNotAvailable
from api_server.state.listing import ListQuery, Page
from api_server.state.migrate import migrate
from api_server.state.secrets import Vault
from api_server.state.statements import Statement
from forgelet.local.embedded_postgres import Cluster
from tests.support import pgbouncer
from tests.support.database_roles import with_another_role
from tests.support.forge import Forge, running_forge

KEEP = Statement("INSERT INTO kept (word) VALUES (%(word)s::text)")


@pytest.fixture(params=["prepared", "not prepared", "pooled"])
async def database(database_of_module: str, request: pytest.FixtureRequest) -> Any:
    """A database. `pooled` uses a PgBouncer, in which transactions may use different sessions, which others use too."""
    with contextlib.ExitStack() as stack:
        url = database_of_module
        if request.param == "pooled":
            if not pgbouncer.program():
                pytest.skip("PgBouncer is not installed")
            url = stack.enter_context(pgbouncer.running(url))
        connected = connect(
            url, base_url="http://forge.example.org", size=1, prepares=request.param != "not prepared"
        )
        async with connected as database:
            yield await _with_a_table(database)


async def _with_a_table(database: Database) -> Database:
    async with database.transaction() as transaction:
        await transaction.run("DROP TABLE IF EXISTS kept")
        await transaction.row("CREATE TABLE kept (word text CHECK (word <> 'refused'))")
    return database


async def _keep(database: Database, *words: str, fails: bool = False) -> None:
    async with database.transaction() as transaction:
        for word in words:
            await transaction.at_commit(KEEP, word=word)
        if fails:
            raise ZeroDivisionError


async def _words(database: Database) -> list[str]:
    return [row.word for row in await database.rows("SELECT word FROM kept")]


async def test_they_run_in_their_order_behind_everything_else(database: Database) -> None:
    async with database.transaction() as transaction:
        await transaction.at_commit(KEEP, word="it's 100 %")
        await transaction.at_commit("INSERT INTO kept SELECT count(*)::text FROM kept")
        await transaction.row(KEEP, word="first")
    assert await _words(database) == ["first", "it's 100 %", "2"]


async def test_one_that_fails_undoes_the_transaction(database: Database) -> None:
    with pytest.raises(psycopg2.errors.CheckViolation):
        await _keep(database, "first", "refused", "last")
    assert await _words(database) == []
    await _keep(database, "later")
    assert await _words(database) == ["later"]


async def test_a_row_that_is_there_already_is_a_conflict(database: Database) -> None:
    async with database.transaction() as transaction:
        await transaction.row("CREATE UNIQUE INDEX kept_word ON kept (word)")
    with pytest.raises(Conflict, match="kept_word"):
        await _keep(database, "twice", "twice")


async def test_nothing_of_a_block_that_raises_is_run(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        await _keep(database, "first", fails=True)
    assert await _words(database) == []


@pytest.fixture
async def messages(database: Database) -> AsyncIterator[list[str]]:
    """The messages of the only connection of `database`, one for each round trip.

    Servers of other tests in this process send messages too.
    """
    sent: list[str] = []
    execute = WatchedConnection.execute
    async with database._connection() as connection:
        ours = connection._driver

    async def noted(driver: WatchedConnection, cursor: Any, operation: str, *arguments: Any) -> None:
        if driver is ours:
            sent.append(operation)
        await execute(driver, cursor, operation, *arguments)

    with patch.object(WatchedConnection, "execute", noted):
        yield sent


async def _record(transaction: Transaction) -> None:
    target = INSTANCE.target(1, "settings")
    await audit_trail.record(transaction, "application_setting_updated", SYSTEM, target, "Changed")


async def test_recording_events_adds_no_round_trip(database: Database, messages: list[str]) -> None:
    async with database.transaction() as transaction:
        await _record(transaction)
    before = await database.value("SELECT count(*) FROM audit_events")
    messages.clear()
    async with database.transaction() as transaction:
        await transaction.row("SELECT 1")
        await _record(transaction)
        await _record(transaction)
    assert len(messages) == len(["BEGIN", "SELECT 1", "the events and COMMIT"])
    assert await database.value("SELECT count(*) FROM audit_events") == before + 2


async def test_nothing_is_compiled(database: Database) -> None:
    """The cost of a statement is estimated over all partitions, of which it reads one or two."""
    assert await database.value("SHOW jit") == "off"


async def test_of_two_that_would_wait_for_each_other_one_is_told_that_the_row_is_held(
    database_of_module: str,
) -> None:
    """The refused one has changed nothing; the other one goes on."""
    lock = "SELECT id FROM held_rows WHERE id = %(id)s FOR UPDATE"
    async with connect(database_of_module, base_url="http://forge.example.org", size=2) as database:
        async with database.transaction() as transaction:
            await transaction.run("CREATE TABLE held_rows AS SELECT 1 AS id UNION SELECT 2")
        both = asyncio.Barrier(2)

        async def hold(first: int, then: int) -> None:
            async with database.transaction() as transaction:
                await transaction.value(lock, id=first)
                await both.wait()
                await transaction.value(lock, id=then)

        [problem] = filter(None, await asyncio.gather(hold(1, 2), hold(2, 1), return_exceptions=True))
        assert isinstance(problem, LockNotAvailable)


async def test_who_is_cancelled_while_it_commits_goes_on_after_the_commit(database: Database) -> None:
    """After the commit, the ended task writes nothing more."""
    is_done = asyncio.Event()

    async def write() -> None:
        async with database.transaction() as transaction:
            await transaction.at_commit("SELECT pg_sleep(0.3)")
            await transaction.at_commit(KEEP, word="late")
            is_done.set()

    writing = asyncio.create_task(write())
    await asyncio.wait_for(is_done.wait(), 20)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await _words(database) == ["late"]


async def test_the_smallest_number_of_64_bits_can_be_cast(database: Database) -> None:
    smallest = -(2**63)
    found = await database.row(
        "SELECT %(one)s::bigint AS one, %(many)s::bigint[] AS many", one=smallest, many=[smallest]
    )
    assert (found.one, found.many) == (smallest, [smallest])


async def test_without_replicas_showing_is_the_same(database: Database) -> None:
    assert database.replicas is None
    assert database.showing() is database


NUMBERS = ListQuery(
    "SELECT position, id, json_build_object('id', id) AS entity FROM page",
    "SELECT id::bigint FROM numbers WHERE id % 2 = ANY (%(rests)s)",
)
BOTH = [0, 1]


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def counting_database(database_of_module: str, clock: Clock) -> AsyncIterator[tuple[Database, str]]:
    """A database without the table `numbers`."""
    url = database_of_module
    async with connect(url, base_url="http://forge.example.org", size=2) as connected:
        async with connected.transaction() as transaction:
            await transaction.run("DROP TABLE IF EXISTS numbers")
        connected.counts = Counts(clock)
        yield connected, url


def added_elsewhere(url: str, first: int, last: int) -> None:
    """Insert numbers that another process has committed."""
    with contextlib.closing(psycopg2.connect(url)) as other, other, other.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (id bigint)")
        cursor.execute("INSERT INTO numbers SELECT generate_series(%s, %s)", (first, last))


async def total(database: Database, rests: list[int] = BOTH, page: int = 1) -> int | None:
    listed = await NUMBERS.read(database, Page(20, (page - 1) * 20), rests=rests)
    assert listed.more
    return listed.total


async def test_a_long_list_is_counted_once_in_a_while(
    counting_database: tuple[Database, str], clock: Clock
) -> None:
    connected, url = counting_database
    added_elsewhere(url, 1, COUNTED_ANEW + 1)
    assert await total(connected) == COUNTED_ANEW + 1
    added_elsewhere(url, COUNTED_ANEW + 2, COUNTED_ANEW + 9)
    assert await total(connected) == COUNTED_ANEW + 1
    assert await total(connected, page=2) == COUNTED_ANEW + 1
    clock.now += REMEMBERED_FOR
    assert await total(connected) == COUNTED_ANEW + 9


async def test_every_page_tells_how_many_there_are(
    counting_database: tuple[Database, str], clock: Clock
) -> None:
    """Pages at the end of the list, before it, and beyond it."""
    connected, url = counting_database
    before = 0
    for held in (0, 1, 19, 20, 21, 40, 41):
        added_elsewhere(url, before + 1, held)
        before = held
        for page in (1, 2, 3, 4):
            connected.counts = Counts(clock)
            listed = await NUMBERS.read(connected, Page(20, (page - 1) * 20), rests=BOTH)
            assert (listed.total, listed.more) == (held, held > page * 20), (held, page)


async def test_an_own_commit_is_counted_at_once(counting_database: tuple[Database, str]) -> None:
    connected, url = counting_database
    added_elsewhere(url, 1, COUNTED_ANEW + 1)
    assert await total(connected) == COUNTED_ANEW + 1
    async with connected.transaction() as transaction:
        await transaction.run("INSERT INTO numbers VALUES (%(id)s)", id=COUNTED_ANEW + 2)
        listed = await NUMBERS.read(transaction, Page(), rests=BOTH)
        assert listed.total == COUNTED_ANEW + 2
    assert await total(connected) == COUNTED_ANEW + 2


async def test_a_short_list_is_counted_each_time(counting_database: tuple[Database, str]) -> None:
    connected, url = counting_database
    added_elsewhere(url, 1, COUNTED_ANEW - 1)
    assert await total(connected) == COUNTED_ANEW - 1
    added_elsewhere(url, COUNTED_ANEW, COUNTED_ANEW)
    assert await total(connected) == COUNTED_ANEW


async def test_each_choice_has_a_count_of_its_own(counting_database: tuple[Database, str]) -> None:
    connected, url = counting_database
    added_elsewhere(url, 1, 4 * COUNTED_ANEW + 1)
    assert await total(connected) == 4 * COUNTED_ANEW + 1
    assert await total(connected, rests=[0]) == 2 * COUNTED_ANEW
    assert await total(connected, rests=[1]) == 2 * COUNTED_ANEW + 1
    uncounted = await NUMBERS.read(connected, Page(counted=False), rests=BOTH)
    assert uncounted.total is None


PASSWORD = "correct horse battery staple"


class Log:
    """The lines that PostgreSQL has written since the creation of this object about one database."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = cluster.log.stat().st_size

    def text(self) -> str:
        return self._cluster.log.read_bytes()[self._before :].decode()


async def fail_with_secrets(forge: Forge) -> None:
    """Run statements with a password's hash, seeds and digests, which the database refuses."""
    alice = await forge.user("alice")
    changes = {"username": alice.username.upper(), "password": PASSWORD}
    answer = await forge.root.put(f"/users/{(await forge.user()).id}", changes)
    assert answer.status == 409, answer
    async with forge.database.transaction() as transaction:
        with pytest.raises(psycopg2.Error):
            await transaction.run(
                "UPDATE personal_access_tokens SET digest = %(digest)s, user_id = NULL", digest=b"\x01"
            )


async def test_statements_that_fail_are_not_written(postgres: Cluster, forge: Forge) -> None:
    log = Log(postgres)
    await fail_with_secrets(forge)
    assert 'violates unique constraint "users_username"' in log.text(), "the error itself is"
    for secret in ("UPDATE users", "keyed$", "UPDATE personal_access_tokens", PASSWORD):
        assert secret not in log.text(), secret


async def test_without_the_privilege_they_say_nothing_of_use_without_the_key(
    postgres: Cluster, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """The role may not exclude statements from the log; password hashes in it cannot be tried out."""
    roles = with_another_role(postgres, new_database())
    migrate(roles.owner, roles.name)
    log = Log(postgres)
    async with running_forge(roles.serving, tmp_path, work=False) as forge:
        await fail_with_secrets(forge)
        (hashed,) = set(re.findall(r"keyed\$[0-9a-f$]+", log.text()))
        vault = Vault(bytes.fromhex((tmp_path / "secret_key").read_text().strip()))
        assert vault.password_matches(PASSWORD, hashed)
        assert not Vault(bytes(32)).password_matches(PASSWORD, hashed), "another key"
        _, salt, digest = hashed.split("$")
        assert not vault.password_matches(PASSWORD, f"scrypt${salt}${digest}"), "without a key"
        assert PASSWORD not in log.text()


def test_passwords_that_were_stored_before_still_open() -> None:
    stored = "scrypt$" + "07" * 16 + "$67ae444ac1cd3a35071ac80db439b45ebeef6d3059eeb77e90f06fb0dc37baea"
    vault = Vault(bytes(range(32)))
    assert vault.password_matches(PASSWORD, stored)
    assert not vault.password_matches("another", stored)
    assert not vault.password_matches(PASSWORD, None)


#: SQL functions that return a value and read tables. PostgreSQL does not inline them, so they would be planned again
#: in every statement that calls them.
PLANNED_EACH_TIME = """
    SELECT proname::text FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
    WHERE lanname = 'sql' AND NOT proretset AND pronamespace = 'public'::regnamespace
        AND prosqlbody::text LIKE '%:rtekind 0 %'
"""


async def test_no_function_is_planned_in_each_statement(forge: Forge) -> None:
    connection = await asyncpg.connect(forge.settings.database_url)
    try:
        assert [row["proname"] for row in await connection.fetch(PLANNED_EACH_TIME)] == []
        # The query finds such functions.
        await connection.execute(
            "CREATE FUNCTION pg_temp.users_there() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM users)"
        )
        here = PLANNED_EACH_TIME.replace("'public'::regnamespace", "pg_my_temp_schema()")
        assert [row["proname"] for row in await connection.fetch(here)] == ["users_there"]
    finally:
        await connection.close()
