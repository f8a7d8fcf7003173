"""What measurements print."""

import pytest

from scripts.bench.rows import Limit, Row


@pytest.mark.parametrize(
    ("ours", "aim", "end"),
    [
        (46, 0.45, "share 0.46, aim 0.45"),
        (135, 1.0, "share 1.35, aim 1"),
        (0.48, 0.005, "share 0.0048, aim 0.005  MISSED"),
    ],
)
def test_a_row_tells_a_small_aim_from_none_and_from_what_was_reached(
    ours: float, aim: float, end: str
) -> None:
    assert str(Row("hits", ours, 100, "another", aim)).endswith(f"; {end}")


@pytest.mark.parametrize(
    ("measured", "end"), [(1.571, ": 1.57 s, at most 2"), (2.31, ": 2.31 s, at most 2  MISSED")]
)
def test_a_limit_is_missed_by_more(measured: float, end: str) -> None:
    assert str(Limit("a start", measured, 2.0, "s")) == f"a start{end}"
