"""A connection string with several hosts: the first that takes writes is used, another when that one is lost."""

import asyncio
import socket
from collections.abc import Callable

import psycopg2
import pytest

from api_server.state.database import connect
from api_server.state.driver import each_host
from api_server.state.errors import Unavailable, UnsuitableDatabase
from api_server.state.migrate import migrate, unsuitable_database
from forgelet.local import embedded_postgres
from tests.support import standbys
from tests.support.outages import way_to
from tests.support.ports import free_port

WRITES = "target_session_attrs=read-write"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u@one/db", ["postgresql://u@one/db"]),
        ("postgresql://u@one:1,two/db", ["user=u dbname=db host=one port=1", "user=u dbname=db host=two"]),
        (
            "postgresql://u@/db?host=/a,/b&port=1,2",
            ["user=u dbname=db host=/a port=1", "user=u dbname=db host=/b port=2"],
        ),
        ("postgresql://u@one,two/db?target_session_attrs=prefer-standby",) * 2,
    ],
)
def test_each_host_of_a_url(url: str, hosts: list[str] | str) -> None:
    def meaning(texts: list[str]) -> list[dict[str, str]]:
        return [psycopg2.extensions.parse_dsn(text) for text in texts]

    assert meaning(each_host(url)) == meaning([hosts] if isinstance(hosts, str) else hosts)


async def test_a_host_that_is_lost_is_replaced(new_database: Callable[[], str]) -> None:
    direct = new_database()
    async with way_to(direct) as first, way_to(direct) as second:
        first_host, second_host = (way.url.partition("@")[2].partition("/")[0] for way in (first, second))
        url = f"{first.url.replace(first_host, f'{first_host},{second_host}')}&{WRITES}"
        async with connect(url, base_url="x", connect_timeout=4) as database:
            assert await database.value("SELECT inet_server_port()") is None  # a socket behind the proxy
            first.take("refused")
            assert await database.value("SELECT 1") == 1
            async with database.transaction() as transaction:
                await transaction.run("CREATE TABLE kept (word text)")
            second.take("refused")
            with pytest.raises(Unavailable) as refused:
                await database.value("SELECT 1")
            assert refused.value.cause.startswith("no host takes the connection: ")
            assert "; " in refused.value.cause
            first.give_back()
            assert await database.value("SELECT count(*) FROM kept") == 0


async def test_a_host_that_does_not_answer_takes_only_its_part_of_the_time(
    new_database: Callable[[], str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with way_to(new_database()) as way:
            host = way.url.partition("@")[2].partition("/")[0]
            url = way.url.replace(host, f"127.0.0.1:{silent.getsockname()[1]},{host}")
            async with asyncio.timeout(30), connect(url, base_url="x", connect_timeout=1) as database:
                assert await database.value("SELECT 1") == 1


def test_all_hosts_are_named_in_what_is_said_of_them() -> None:
    ports = free_port(), free_port()
    url = "postgresql://u:secret@127.0.0.1:{},127.0.0.1:{}/db".format(*ports)
    with pytest.raises(UnsuitableDatabase) as said, unsuitable_database():
        migrate(url)
    assert all(str(port) in said.value.message for port in ports)
    assert "secret" not in said.value.message


@pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed")
async def test_a_standby_is_passed_over(postgres: embedded_postgres.Cluster) -> None:
    with standbys.standby_of(postgres) as standby:
        follower = standby.url("forgelet", "forgelet")
        with pytest.raises(UnsuitableDatabase, match=r"^This PostgreSQL is a standby"):
            migrate(follower)
        url = standbys.several_hosts(follower, postgres.url())
        async with connect(url, base_url="x") as database:
            assert await database.value("SELECT pg_is_in_recovery()") is False
