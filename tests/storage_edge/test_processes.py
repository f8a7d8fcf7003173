"""The edge as processes: TLS, several on one port, and a reload that keeps the cache."""

import asyncio
import os
import resource
import signal
import ssl
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from tests.storage_edge.conftest import PURGE_TOKEN, RAW, Origin
from tests.storage_edge.processes import EdgeProcess, edge_process
from tests.support.certificates import key_and_certificate
from tests.support.ports import free_port, is_listened_on
from tests.support.processes import children_of
from tests.support.waiting import seconds_of, until
from tests.support.wire import talk

#: Number of new connections after which both processes of a port have surely answered.
CONNECTIONS = 40
#: Seconds that answers may take at the end.
TIMEOUT = 4.0


async def _get(url: str, context: ssl.SSLContext | bool = True) -> tuple[bytes, str]:
    """Return body and Cache-Status, on a new connection."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(url, ssl=context) as response,
    ):
        assert response.status == 200
        return await response.read(), response.headers.get("Cache-Status", "")


async def _purge(url: str) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {PURGE_TOKEN}"}) as session,
        session.post(f"{url}/-/purge", json={"prefixes": ["/group/"]}) as response,
    ):
        assert response.status == 200


async def _requests(operations_port: int) -> float:
    """Return the number of requests that the process with this port has counted."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{operations_port}/-/metrics") as answer,
    ):
        families = text_string_to_metric_families(await answer.text())
        (family,) = [family for family in families if family.name == "edge_requests"]
        return sum(sample.value for sample in family.samples if sample.name == "edge_requests_total")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    files = tmp_path / "edge.crt", tmp_path / "edge.key"
    key, made = key_and_certificate()
    files[0].write_bytes(made)
    files[1].write_bytes(key)
    return files


@pytest.mark.parametrize("size", [1000, 3_000_000])
async def test_it_listens_with_tls_and_with_nothing_else(
    origin: Origin, tmp_path: Path, certificate: tuple[Path, Path], size: int
) -> None:
    origin.answers(b"t" * size)
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--memory-object-bytes", "65536")
    async with edge_process(origin, tmp_path / "edge", *options) as edge:
        for _ in range(2):
            body, _ = await _get(f"https://127.0.0.1:{edge.port}{RAW}", context)
            assert body == b"t" * size
        with pytest.raises(aiohttp.ClientError):
            await _get(edge.url + RAW)
        await edge.stop()
    assert len(origin.requests) <= 2


async def test_two_processes_on_one_port_share_what_is_stored_and_every_purge(
    origin: Origin, tmp_path: Path
) -> None:
    origin.answers(b"0")
    directory = tmp_path / "edge"
    async with (
        edge_process(origin, directory, "--reuse-port") as one,
        edge_process(origin, directory, "--reuse-port", "--port", str(one.port)) as two,
    ):
        for version in range(4):
            for _ in range(CONNECTIONS):
                body, _ = await _get(one.url + RAW)
                assert body == b"%d" % version
            origin.answers(b"%d" % (version + 1), etag=f'"{version + 1}"')
            await _purge(one.url)
        logs = [await one.stop(), await two.stop()]
    assert len(origin.requests) <= 4 * 2
    for log in logs:
        assert any("; hit" in str(line.get("cache")) for line in log)


async def test_of_several_processes_each_has_metrics_of_its_own(origin: Origin, tmp_path: Path) -> None:
    origin.answers(b"0")
    ports = [free_port(), free_port()]
    directory = tmp_path / "edge"
    with_port = ["--reuse-port", "--operations-port"]
    async with (
        edge_process(origin, directory, *with_port, str(ports[0])) as one,
        edge_process(origin, directory, *with_port, str(ports[1]), "--port", str(one.port)) as two,
    ):
        before = [0.0, 0.0]
        for _ in range(3):
            for _ in range(CONNECTIONS):
                await _get(one.url + RAW)
            counted = [await _requests(port) for port in ports]
            assert all(now > then for now, then in zip(counted, before, strict=True))
            assert sum(counted) == sum(before) + CONNECTIONS
            before = counted
        await one.stop()
        await two.stop()


async def test_what_several_processes_have_counted_is_not_served_on_the_port_they_share(
    origin: Origin, tmp_path: Path
) -> None:
    origin.answers(b"0")
    async with (
        edge_process(origin, tmp_path / "edge", "--reuse-port") as edge,
        aiohttp.ClientSession() as session,
    ):
        for path, status in {"/-/metrics": 404, "/-/readiness": 200}.items():
            async with session.get(edge.url + path) as answer:
                assert answer.status == status
        await edge.stop()


async def test_a_reload_ends_what_is_in_flight_and_keeps_the_cache(origin: Origin, tmp_path: Path) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "max-age=600", "ETag": '"1"'})
        response.content_length = 2_000_000
        await response.prepare(request)
        await response.write(b"a" * 1_000_000)
        begun.set()
        await gate.wait()
        await response.write(b"b" * 1_000_000)
        return response

    origin.handler = handler
    expected = b"a" * 1_000_000 + b"b" * 1_000_000
    async with edge_process(origin, tmp_path / "edge") as edge:
        first = asyncio.create_task(_get(edge.url + RAW))
        await begun.wait()
        stopped = asyncio.create_task(edge.stop())
        await until(lambda: not is_listened_on(edge.port))
        gate.set()
        assert (await first)[0] == expected
        await stopped
    async with edge_process(origin, tmp_path / "edge") as edge:
        body, status = await _get(edge.url + RAW)
        assert (body, "; hit" in status) == (expected, True)
    assert len(origin.requests) == 1


async def test_what_has_been_written_is_sent_before_the_process_ends(origin: Origin, tmp_path: Path) -> None:
    origin.answers(b"m" * 3_000_000)
    async with edge_process(origin, tmp_path / "edge") as edge:
        for _ in range(2):
            await _get(edge.url + RAW)
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, limit=1000)
        writer.write(f"GET {RAW} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        stopped = asyncio.create_task(edge.stop())
        await until(lambda: not is_listened_on(edge.port))
        body = await reader.readexactly(3_000_000)
        assert body == b"m" * 3_000_000
        writer.close()
        await stopped


async def test_a_client_that_takes_nothing_is_cut_off_in_time(origin: Origin, tmp_path: Path) -> None:
    """A process that waits for several things in turn needs several times as long."""
    origin.answers(bytes(20_000_000))
    options = ("--shutdown-timeout", str(TIMEOUT), "--operations-port", str(free_port()))
    async with (
        edge_process(origin, tmp_path / "edge", *options) as edge,
        talk(edge.port, takes_little=True) as client,
    ):
        await client.send(f"GET {RAW} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        assert await seconds_of(edge.stop) < 2.75 * TIMEOUT


async def test_it_may_have_as_many_connections_as_the_system_lets_it(origin: Origin, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        async with edge_process(origin, tmp_path / "edge") as edge:
            assert resource.prlimit(edge.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            await edge.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


WORKERS = 2
#: Number of new connections after which both workers have surely answered.


async def _until_there_are(edge: EdgeProcess, *, without: set[int]) -> None:
    while len(found := set(children_of(edge.process.pid))) != WORKERS or found & without:
        await asyncio.sleep(0.05)


def _options() -> tuple[str, ...]:
    return "--workers", str(WORKERS), "--port", str(free_port()), "--no-access-log"


async def test_workers_share_what_is_stored_and_every_purge(origin: Origin, tmp_path: Path) -> None:
    origin.answers(b"0")
    async with edge_process(origin, tmp_path / "edge", *_options()) as edge, asyncio.timeout(90):
        await _until_there_are(edge, without=set())
        for version in range(4):
            for _ in range(CONNECTIONS):
                assert (await _get(edge.url + RAW))[0] == b"%d" % version
            origin.answers(b"%d" % (version + 1), etag=f'"{version + 1}"')
            await _purge(edge.url)
        assert len(origin.requests) <= 4 * WORKERS
        before = origin.requests[:]
        text = (await _get(f"{edge.url}/-/metrics"))[0].decode()
        assert sum(_samples(text, "edge_requests_total")) == 4 * CONNECTIONS
        assert len(origin.requests) == len(before)
        await edge.stop()


def _samples(text: str, name: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{")]


async def test_workers_are_replaced_and_killed_and_nobody_is_refused(origin: Origin, tmp_path: Path) -> None:
    origin.answers(b"0")
    async with edge_process(origin, tmp_path / "edge", *_options()) as edge, asyncio.timeout(90):
        await _until_there_are(edge, without=set())
        answered = 0

        async def ask() -> None:
            nonlocal answered
            while True:
                assert (await _get(edge.url + RAW))[0] == b"0"
                answered += 1

        asking = asyncio.create_task(ask())
        before = set(children_of(edge.process.pid))
        edge.process.send_signal(signal.SIGHUP)
        await _until_there_are(edge, without=before)
        assert not asking.done()
        asking.cancel()
        assert answered
        assert len(origin.requests) == 1, "what is stored stays"

        killed = min(set(children_of(edge.process.pid)))
        os.kill(killed, signal.SIGKILL)
        await _until_there_are(edge, without={killed})
        for _ in range(CONNECTIONS):
            assert (await _get(edge.url + RAW))[0] == b"0"
        await edge.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "several workers share a data_dir, and there is none"),
        (("--data-dir", "DIRECTORY", "--reuse-port"), "reuse_port and workers contradict each other"),
        (("--data-dir", "DIRECTORY", "--testing"), "testing and workers contradict each other"),
    ],
)
async def test_what_workers_cannot_have_is_said(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    options = tuple(str(tmp_path) if one == "DIRECTORY" else one for one in options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "storage_edge", *_options(), *options, stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, said in told.decode()) == (2, True), told
