"""Garbage, memory and threads of a server."""

import gc
import subprocess
import sys
import weakref

import pytest

from common import interpreter
from common.interpreter import large_work


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def test_work_that_makes_many_objects_puts_off_full_looks_until_the_last_of_it_ends() -> None:
    usual = gc.get_threshold()
    with large_work():
        with large_work():
            assert gc.get_threshold() == (*usual[:2], interpreter._NEVER)
        assert gc.get_threshold()[2] == interpreter._NEVER
    assert gc.get_threshold() == usual


def test_work_that_never_ends_does_not_keep_garbage_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = _Circle()
    garbage = weakref.ref(circle)
    with large_work():
        gc.collect(1)  # it is old from now on
        del circle
        with large_work():
            gc.collect(1)
            assert garbage() is not None
        monkeypatch.setattr(interpreter, "LONGEST_UNCOLLECTED", 0.0)
        with large_work():
            assert garbage() is None


def test_a_thread_that_computes_hands_the_interpreter_over_soon() -> None:
    """Otherwise, each of them takes 5 ms between any two steps of a request."""
    usual = sys.getswitchinterval()
    try:
        interpreter.tune_interpreter()
        assert sys.getswitchinterval() == pytest.approx(0.001)
    finally:
        sys.setswitchinterval(usual)
        gc.unfreeze()


#: Creates small objects that stay among large ones that do not, as answers among bodies. Prints how many of 40 MiB the
#: process still has when all large ones are deleted.
_LARGE_AMONG_SMALL = """
import os, re
from pathlib import Path
from common.interpreter import return_large_objects

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

if os.environ["HOW"] == "returned":
    return_large_objects()
bytearray(8 << 20)  # glibc expects more of this size from now on
before, large, small = resident(), [], []
for _ in range(10):
    large.append(bytearray(b"x") * (4 << 20))
    small.append(bytearray(100_000))
large.clear()
print(resident() - before)
"""


@pytest.mark.parametrize(
    ("variables", "least", "most"),
    [
        ({"HOW": "returned"}, -5, 5),
        ({"HOW": "kept"}, 30, 45),
        ({"HOW": "returned", "MALLOC_MMAP_THRESHOLD_": "33554432"}, 30, 45),
    ],
    ids=["returned", "as glibc does", "as the operator says"],
)
def test_the_system_gets_large_objects_back(variables: dict[str, str], least: int, most: int) -> None:
    command = [sys.executable, "-c", _LARGE_AMONG_SMALL]
    printed = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert least <= int(printed) <= most
