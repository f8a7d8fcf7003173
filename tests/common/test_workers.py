"""Workers: their supervisor, their combined metrics, and counts in shared memory."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from common import workers
from common import workers as worker_module
from common.operations import _Added
from common.workers import BUCKETS, WAYS, SharedWindows, make_shared_memory
from tests.support.ports import free_port
from tests.support.waiting import until


def registry(requests: int, seconds: float, connections: int) -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("requests", "Asked.", ["route"], registry=made).labels(f"/{requests}").inc(requests)
    Counter("all", "Asked.", registry=made).inc(requests)
    Histogram("seconds", "Took.", buckets=(1, 5), registry=made).observe(seconds)
    Gauge("connections", "Open.", registry=made).set(connections)
    Gauge("jobs", "In the database.", registry=made).set(7)
    return made


def test_counters_and_histograms_are_added_up_and_of_gauges_those_that_are_named() -> None:
    own = list(registry(2, 0.5, 10).collect())
    others = [workers.addable_figures(registry(3, 2.0, 20).collect(), ["connections"])]
    ended = workers.addable_figures(registry(4, 9.0, 40).collect(), ["connections"])
    others.append(workers.without_gauges(ended))
    total = workers.sum_figures([workers.addable_figures(own, ["connections"]), *others])
    text = generate_latest(_Added(own, total)).decode()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert values == {
        ("requests_total", "/2"): 2,
        ("requests_total", "/3"): 3,
        ("requests_total", "/4"): 4,
        ("all_total",): 9,
        ("seconds_bucket", "1.0"): 1,
        ("seconds_bucket", "5.0"): 2,
        ("seconds_bucket", "+Inf"): 3,
        ("seconds_count",): 3,
        ("seconds_sum",): 11.5,
        ("connections",): 30,
        ("jobs",): 7,
    }


#: The program of the supervisor, with a constant that a test may shorten.
PROGRAM = "from common import supervisor; supervisor.READY_SECONDS = {ready_seconds}; supervisor.main()"
#: Number of new connections after which both workers have surely answered.
CONNECTIONS = 40


@attrs.frozen
class Supervised:
    """A supervisor of two workers, which look at `folder`."""

    process: asyncio.subprocess.Process
    folder: Path
    host: str
    port: int

    def begun(self, number: int) -> list[tuple[float, int]]:
        """Return the moments at which the worker began, with its process ids."""
        try:
            lines = (self.folder / f"begun-{number}").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(float(line.split()[0]), int(line.split()[1])) for line in lines]

    async def answered(self) -> str:
        """Return the number of the worker that answers, or "" if nothing listens."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return ""
        try:
            return (await asyncio.wait_for(reader.read(), 20)).decode()
        finally:
            writer.close()

    async def until_answered(self) -> None:
        """Wait until a worker answers."""
        await until(self.answered, 30)

    async def answering(self) -> set[str]:
        return {await self.answered() for _ in range(CONNECTIONS)}


@contextlib.asynccontextmanager
async def supervised(
    folder: Path, host: str = "127.0.0.1", ready_seconds: float = 120
) -> AsyncIterator[Supervised]:
    port = free_port()
    plan = {
        "command": [sys.executable, "-m", "tests.common.worker", str(folder)],
        "workers": 2,
        "host": host,
        "port": port,
        "operations_port": 0,
        "grace": 5,
        "log": ["json", "INFO", str(folder / "log")],
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM.format(ready_seconds=ready_seconds), json.dumps(plan)
    )
    try:
        yield Supervised(process, folder, host, port)
        if process.returncode is None:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_wrong_settings_end_it_with_their_status(tmp_path: Path) -> None:
    (tmp_path / "ends-0").write_text("2")
    async with supervised(tmp_path) as them:
        assert await asyncio.wait_for(them.process.wait(), 20) == 2
        assert len(them.begun(0)) == 1
        assert them.begun(1) == []


async def test_one_that_dies_again_and_again_is_begun_after_longer_and_longer(tmp_path: Path) -> None:
    (tmp_path / "ends-1").write_text("3")
    async with supervised(tmp_path) as them:
        await until(lambda: len(them.begun(1)) >= 4)
        await them.until_answered()
        times = [when for when, _ in them.begun(1)]
        assert times[2] - times[1] >= 0.5
        assert times[3] - times[2] >= 1.0
        assert await them.answering() == {"0"}, "the other gets its clients"
        (tmp_path / "ends-1").unlink()
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)
        assert len(them.begun(0)) == 1


async def test_nobody_is_sent_to_one_that_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "sleeps-1").touch()
    async with supervised(tmp_path) as them:
        await until(lambda: them.begun(1))
        await them.until_answered()
        assert await them.answering() == {"0"}
        (tmp_path / "sleeps-1").unlink()
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)


async def test_one_that_does_not_get_ready_replaces_nobody(tmp_path: Path) -> None:
    async with supervised(tmp_path, ready_seconds=6) as them:
        await until(lambda: them.begun(0) and them.begun(1))
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)
        (tmp_path / "sleeps-0").touch()
        them.process.send_signal(signal.SIGHUP)
        said = "the workers stay as they are: a new one did not get ready"
        await until(lambda: said in (tmp_path / "log").read_text())
        (_, old), (_, new) = them.begun(0)
        assert Path(f"/proc/{old}").exists()
        await until(lambda: not Path(f"/proc/{new}").exists())
        assert await them.answering() == {"0", "1"}
        assert len(them.begun(1)) == 1, "those that are left stay too"


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not _has_ipv6(), reason="the machine has no IPv6")
async def test_they_listen_on_ipv6(tmp_path: Path) -> None:
    async with supervised(tmp_path, host="::1") as them:
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)


SECTIONS = 4
MINUTE = 60.0


class Steps:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def memory() -> Iterator[int]:
    made = make_shared_memory(SECTIONS)
    yield made
    os.close(made)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    monkeypatch.setattr(worker_module, "time", steps)
    return steps


def window_workers(memory: int) -> list[SharedWindows]:
    return [SharedWindows(memory, section, SECTIONS) for section in range(SECTIONS)]


def test_all_workers_count_in_the_window_that_the_first_began(memory: int, clock: Steps) -> None:
    first, second, *_ = window_workers(memory)
    assert first.count(b"ann", MINUTE) == (0, 1)
    clock.now += 30
    assert second.count(b"ann", MINUTE) == (30, 2)
    assert second.count(b"bob", MINUTE) == (0, 1)
    assert first.count(b"ann", MINUTE) == (30, 3)
    clock.now += 30
    assert second.count(b"ann", MINUTE) == (0, 1)
    assert first.count(b"ann", MINUTE) == (0, 2)


@given(
    st.lists(
        st.tuples(
            st.integers(0, SECTIONS - 1), st.sampled_from([b"a", b"b", b""]), st.sampled_from([0, 1, 25, 61])
        ),
        max_size=60,
    )
)
def test_they_count_as_one_process_does(steps: list[tuple[int, bytes, int]]) -> None:
    clock, made = Steps(), make_shared_memory(SECTIONS)
    each, expected = window_workers(made), dict[bytes, tuple[float, int]]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_module, "time", clock)
        for section, key, seconds in steps:
            clock.now += seconds
            began, count = expected.get(key, (clock.now, 0))
            if clock.now - began >= MINUTE:
                began, count = clock.now, 0
            expected[key] = began, count + 1
            assert each[section].count(key, MINUTE) == (clock.now - began, count + 1)
    os.close(made)


def test_more_keys_than_there_is_room_for_forget_the_oldest(
    memory: int, clock: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "BUCKETS", 1)
    first, second, *_ = window_workers(memory)
    for number in range(WAYS + 1):
        clock.now += 1
        first.count(b"%d" % number, MINUTE)
    assert second.count(b"0", MINUTE) == (0, 1)
    assert second.count(b"1", MINUTE) == (WAYS - 1, 2)
    assert BUCKETS == 16_384


@pytest.mark.parametrize("steps", range(4))
def test_one_that_ends_in_the_middle_holds_nobody_up(memory: int, clock: Steps, steps: int) -> None:
    """A worker writes three words for a new key; it is killed before each of them, and after the last."""
    first, second, *_ = window_workers(memory)
    for number in range(WAYS):
        first.count(b"%d" % number, MINUTE)

    class Ends:
        def __init__(self, words: Any) -> None:
            self.words, self.left = words, steps

        def __getitem__(self, at: Any) -> Any:
            return self.words[at]

        def __setitem__(self, at: int, value: int) -> None:
            if not self.left:
                raise SystemExit
            self.left -= 1
            self.words[at] = value

    first._words = Ends(first._words)  # type: ignore[assignment]
    if steps < 3:
        with pytest.raises(SystemExit):
            first.count(b"new", MINUTE)
    else:
        first.count(b"new", MINUTE)
    successor = SharedWindows(memory, 0, SECTIONS)
    begun = 1 if steps == 3 else 0
    assert second.count(b"new", MINUTE)[1] == begun + 1
    assert successor.count(b"new", MINUTE)[1] == begun + 2


def _ask(memory: int, section: int, times: int, allowed: Any) -> None:
    counting = SharedWindows(memory, section, SECTIONS)
    allowed.put(sum(counting.count(b"all", MINUTE)[1] <= 1000 for _ in range(times)))


def _ask_for_ever(memory: int, section: int) -> None:
    counting = SharedWindows(memory, section, SECTIONS)
    while True:
        counting.count(os.urandom(1), MINUTE)


def test_processes_at_once_let_no_more_through_than_one_would(memory: int) -> None:
    context = multiprocessing.get_context("fork")
    allowed = context.SimpleQueue()
    busy = [context.Process(target=_ask, args=(memory, section, 1500, allowed)) for section in range(2)]
    for one in busy:
        one.start()
    numbers = [allowed.get() for _ in busy]
    for one in busy:
        one.join(20)
    # two in the same microsecond may both be refused
    assert 990 <= sum(numbers) <= 1000


def test_killed_ones_leave_a_memory_that_goes_on(memory: int) -> None:
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        one = context.Process(target=_ask_for_ever, args=(memory, 1))
        one.start()
        time.sleep(0.02)
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
        one.join(20)
    counting = window_workers(memory)[0]
    for number in range(256):
        before = counting.count(bytes([number]), MINUTE)[1]
        assert counting.count(bytes([number]), MINUTE)[1] == before + 1
