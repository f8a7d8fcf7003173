"""When what failed is tried again."""

import datetime
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from api_server.status_checks.attempts import JITTER, LONGEST_RETRY_AFTER, WAITS, retry_after, wait_after

NOW = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)

randoms = st.floats(0, 1, exclude_max=True)
patiences = st.none() | st.timedeltas(min_value=datetime.timedelta(), max_value=datetime.timedelta(days=400))


def test_the_waits_are_those_that_were_decided() -> None:
    assert [wait / SECOND for wait in WAITS] == [5, 30, 120, 600, 3600, 21600, 86400]
    assert [wait_after(tries, 0.0) for tries in range(1, 10)] == [*WAITS, None, None]


@given(tries=st.integers(1, len(WAITS)), random=randoms, patience=patiences)
def test_a_wait_is_never_shorter_than_decided_or_asked_for_nor_much_longer(
    tries: int, random: float, patience: datetime.timedelta | None
) -> None:
    asked = min(patience or datetime.timedelta(), LONGEST_RETRY_AFTER)
    wait = wait_after(tries, random, patience)
    assert wait is not None
    assert max(WAITS[tries - 1], asked) <= wait <= max(WAITS[tries - 1] * (1 + JITTER), asked)


@given(random=randoms, patience=patiences)
def test_nothing_makes_another_try_after_the_last(random: float, patience: datetime.timedelta | None) -> None:
    assert wait_after(len(WAITS) + 1, random, patience) is None


@given(seconds=st.integers(0, 10**30))
def test_retry_after_in_seconds_is_bounded(seconds: int) -> None:
    assert retry_after(str(seconds), NOW) == min(
        datetime.timedelta(seconds=min(seconds, 10**8)), LONGEST_RETRY_AFTER
    )


@given(seconds=st.integers(-(10**6), 10**6))
def test_retry_after_as_a_date_is_the_time_until_then(seconds: int) -> None:
    header = format_datetime(NOW + seconds * SECOND, usegmt=True)
    assert retry_after(header, NOW) == max(seconds, 0) * SECOND


@given(header=st.none() | st.text())
def test_no_header_whatever_it_says_breaks_anything(header: str | None) -> None:
    found = retry_after(header, NOW)
    assert found is None or found >= datetime.timedelta()


def test_what_is_no_retry_after_is_ignored() -> None:
    for header in (None, "", "soon", "-5", "1.5", "Fri, 32 Jan 2026 00:00:00 GMT"):
        assert retry_after(header, NOW) is None, header
