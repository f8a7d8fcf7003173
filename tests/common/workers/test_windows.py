"""What several workers count in one memory, also when one is killed in the middle of it."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import workers as worker_module
from common.workers import BUCKETS, WAYS, SharedWindows, make_shared_memory

SECTIONS = 4
MINUTE = 60.0


class Steps:
    """A steady clock that goes when it is told to."""

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


def workers(memory: int) -> list[SharedWindows]:
    return [SharedWindows(memory, section, SECTIONS) for section in range(SECTIONS)]


def test_all_workers_count_in_the_window_that_the_first_began(memory: int, clock: Steps) -> None:
    first, second, *_ = workers(memory)
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
    each, expected = workers(made), dict[bytes, tuple[float, int]]()
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
    first, second, *_ = workers(memory)
    for number in range(WAYS + 1):
        clock.now += 1
        first.count(b"%d" % number, MINUTE)
    assert second.count(b"0", MINUTE) == (0, 1)
    assert second.count(b"1", MINUTE) == (WAYS - 1, 2)
    assert BUCKETS == 16_384


@pytest.mark.parametrize("steps", range(4))
def test_one_that_ends_in_the_middle_holds_nobody_up(memory: int, clock: Steps, steps: int) -> None:
    """A worker writes three words for a new key; it is ended before each of them, and after the last."""
    first, second, *_ = workers(memory)
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
    # two that come in the same microsecond may both be refused
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
    counting = workers(memory)[0]
    for number in range(256):
        before = counting.count(bytes([number]), MINUTE)[1]
        assert counting.count(bytes([number]), MINUTE)[1] == before + 1
