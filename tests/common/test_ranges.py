"""One reading of Range for both processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import http_fields
from common.http_fields import Span, UnsatisfiableError

#: First and last byte; without the last to the end, without the first so many from the end.
FROM = st.tuples(st.integers(0, 300), st.none() | st.integers(0, 300))
SUFFIX = st.tuples(st.none(), st.integers(0, 300))


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("bytes=0-0", [(0, 0)]),
        ("bytes=2-4", [(2, 4)]),
        ("bytes=2-", [(2, 9)]),
        ("bytes=-3", [(7, 9)]),
        ("bytes=-99", [(0, 9)]),
        ("bytes=2-99", [(2, 9)]),
        ("bytes=0-9", [(0, 9)]),
        ("bytes=007-8", [(7, 8)]),
        ("Bytes=0-1", [(0, 1)]),
        (f"bytes=1-{'9' * 3000}", [(1, 9)]),
        ("bytes=0-1, 4-5", [(0, 1), (4, 5)]),
        ("bytes=4-5,,0-1,", [(4, 5), (0, 1)]),
        ("bytes=0-1,10-12", [(0, 1)]),
        ("bytes=0-4,2-6", [(0, 6)]),
        ("bytes=8-,-3", [(7, 9)]),
        ("bytes=0-1,2-3", [(0, 1), (2, 3)]),
    ],
)
def test_ranges_of_ten_bytes(field: str, parts: list[tuple[int, int]]) -> None:
    assert http_fields.requested_ranges(field, 10) == [Span(first, last) for first, last in parts]


@pytest.mark.parametrize(
    "field",
    [None, "", "bytes", "bytes=", "bytes=,", "bytes=-", "bytes=a-b", "bytes=1", "bytes=4-2", "bytes=0-1,4-2",
     "bytes=--1", "bytes=1-2-3", "bytes=0 - 1", "bytes=+1-2", "bytes=\u0661-\u0662", "lines=0-1", "0-1", "bytes 0-1",
     "bytes=" + "0-0," * 17],
)  # fmt: skip
def test_what_is_no_range_of_bytes_is_ignored(field: str | None) -> None:
    assert http_fields.requested_ranges(field, 10) is None


@pytest.mark.parametrize(
    ("field", "length"),
    [("bytes=10-", 10), ("bytes=10-12,20-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0),
     (f"bytes={'9' * 3000}-", 10)],
)  # fmt: skip
def test_a_range_behind_the_end_cannot_be_satisfied(field: str, length: int) -> None:
    with pytest.raises(UnsatisfiableError):
        http_fields.requested_ranges(field, length)
    assert http_fields.content_range(None, length) == f"bytes */{length}"


@given(st.lists(FROM | SUFFIX, min_size=1, max_size=6), st.integers(1, 250))
def test_ranges_cover_exactly_the_bytes_asked_for(
    pairs: list[tuple[int | None, int | None]], length: int
) -> None:
    def text(number: int | None) -> str:
        return "" if number is None else str(number)

    field = "bytes=" + ",".join(f"{text(first)}-{text(last)}" for first, last in pairs)
    asked = {n for first, last in pairs for n in _bytes(first, last, length)}
    try:
        spans = http_fields.requested_ranges(field, length)
    except UnsatisfiableError:
        assert not asked
        return
    if spans is None:
        assert any(first is not None and last is not None and last < first for first, last in pairs)
        return
    sent = [n for span in spans for n in range(span.first, span.last + 1)]
    assert sorted(sent) == sorted(asked)
    assert sum(span.length for span in spans) == len(sent)


def _bytes(first: int | None, last: int | None, length: int) -> range:
    """What one range covers, said the slow way."""
    everything = range(length)
    if first is None:
        return everything[-last:] if last else range(0)
    return everything[first:] if last is None else everything[first : last + 1]


@given(st.text(max_size=60), st.integers(0, 100))
def test_no_field_value_breaks_the_parser(value: str, length: int) -> None:
    for field in (value, f"bytes={value}"):
        try:
            spans = http_fields.requested_ranges(field, length)
        except UnsatisfiableError:
            continue
        for span in spans or []:
            assert 0 <= span.first <= span.last < length
            assert http_fields.content_range(span, length) == f"bytes {span.first}-{span.last}/{length}"
