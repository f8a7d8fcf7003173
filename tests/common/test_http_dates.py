"""One reading of dates for both processes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import http_fields

NOW = 1_800_000_000.0


@given(st.integers(0, 4_000_000_000))
def test_all_three_forms_of_a_date_are_read(timestamp: int) -> None:
    parts = time.gmtime(timestamp)
    now = float(timestamp)
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT"):
        assert http_fields.parse_date(time.strftime(form, parts), now) == timestamp
    assert http_fields.parse_date(time.asctime(parts), now) == timestamp


@pytest.mark.parametrize(("year", "full"), [("77", 2077), ("78", 1978), ("27", 2027)])
def test_two_digits_of_a_year_are_at_most_fifty_years_ahead(year: str, full: int) -> None:
    short = http_fields.parse_date(f"Friday, 15-Jan-{year} 08:00:00 GMT", NOW)
    assert short == http_fields.parse_date(f"Fri, 15 Jan {full} 08:00:00 GMT", NOW)


@pytest.mark.parametrize(
    "value",
    [None, "", "0", "-1", "soon", "Fri, 32 Jan 2026 00:00:00 GMT", "Fri, 29 Feb 2026 00:00:00 GMT",
     "Fri, 15 Foo 2027 08:00:00 GMT", "Fri, 15 Jan 2027 24:00:00 GMT", "Fri, 15 Jan 2027 08:00:00 +0000",
     "Fri, 15 Jan 1969 08:00:00 GMT", "Fri, 1\u0665 Jan 2027 08:00:00 GMT"],
)  # fmt: skip
def test_what_is_no_date_is_none(value: str | None) -> None:
    assert http_fields.parse_date(value, NOW) is None


@given(st.text(max_size=60))
def test_no_text_breaks_the_parser(value: str) -> None:
    found = http_fields.parse_date(value, NOW)
    assert found is None or found >= 0
