"""One comparison of entity tags for both processes."""

import pytest

from common import http_fields


@pytest.mark.parametrize(
    ("lines", "current", "found"),
    [
        (['"a"'], '"a"', True),
        (['W/"a"'], '"a"', True),
        (['"a"'], 'W/"a"', True),
        (['"b", W/"a"'], '"a"', True),
        (['"b"', '"a"'], '"a"', True),
        (['"b,a"'], '"a"', False),
        (['"b"'], '"a"', False),
        (["*"], '"a"', True),
        (["*"], None, True),
        (['"*"'], '"a"', False),
        (['"*"'], '"*"', True),
        (['"a"'], None, False),
        (["a"], '"a"', True),
        ([""], '""', False),
        ([], '"a"', False),
        ([], '""', False),
    ],
)
def test_if_none_match_names_a_tag(lines: list[str], current: str | None, found: bool) -> None:
    assert http_fields.has_tag(lines, current) is found


DATE = "Fri, 15 Jan 2027 08:00:00 GMT"


@pytest.mark.parametrize(
    ("if_range", "etag", "last_modified", "applies"),
    [
        (None, None, None, True),
        ('"a"', '"a"', None, True),
        ('"a"', '"b"', None, False),
        ('"a"', None, None, False),
        ('W/"a"', 'W/"a"', None, False),
        ('"a"', 'W/"a"', None, False),
        (DATE, '"a"', DATE, True),
        (DATE, '"a"', "Fri, 15 Jan 2027 08:00:01 GMT", False),
        (DATE, '"a"', None, False),
        ("", '"a"', None, False),
    ],
)
def test_if_range_is_strict(
    if_range: str | None, etag: str | None, last_modified: str | None, applies: bool
) -> None:
    assert http_fields.range_applies(if_range, etag, last_modified) is applies
