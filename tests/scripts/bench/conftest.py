"""Runs as the bench keeps them, made by hand."""

from collections.abc import Callable

import pytest

from scripts.bench.runs import Outcome, Run, Side

Make = Callable[..., Run]


@pytest.fixture
def run_of() -> Make:
    """A run of one row, `hits`, with our values and those of nginx."""

    def make(
        ours: list[float],
        theirs: list[float] | None = None,
        *,
        aim: float | None = 0.5,
        most: float | None = None,
        less_is_better: bool = False,
        reason: str = "",
    ) -> Run:
        others = [] if theirs is None else [Side("nginx", theirs, [], aim, reason)]
        outcome = Outcome(
            "hits",
            "The edge",
            "hits of 4 KiB",
            "requests/s",
            less_is_better,
            most,
            Side("forgelet", ours),
            others,
        )
        return Run("2026-01-02", {"processor": "2 x a processor"}, 3, [outcome])

    return make
