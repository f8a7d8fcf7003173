"""Looks for garbage among all objects are put off while very many are made, and not for ever."""

import gc
import weakref

import pytest

from common import loop_watch
from common.loop_watch import large_work


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def test_work_that_makes_many_objects_puts_off_full_looks_until_the_last_of_it_ends() -> None:
    usual = gc.get_threshold()
    with large_work():
        with large_work():
            assert gc.get_threshold() == (*usual[:2], loop_watch._NEVER)
        assert gc.get_threshold()[2] == loop_watch._NEVER
    assert gc.get_threshold() == usual


def test_work_that_never_ends_does_not_keep_garbage_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = _Circle()
    garbage = weakref.ref(circle)
    with large_work():
        gc.collect(1)  # from now on it is old
        del circle
        with large_work():
            gc.collect(1)
            assert garbage() is not None
        monkeypatch.setattr(loop_watch, "LONGEST_UNCOLLECTED", 0.0)
        with large_work():
            assert garbage() is None
