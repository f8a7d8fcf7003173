"""When schedules run next."""

import datetime
import zoneinfo

import pytest

from api_server.ci.schedules.cron import RAILS_TIME_ZONES, next_run, problems


def runs(cron: str, zone: str, after: str, count: int = 1) -> list[str]:
    """The next moments, as UTC writes them."""
    moment, found = datetime.datetime.fromisoformat(after), []
    for _ in range(count):
        moment = next_run(cron, zone, moment)
        found.append(moment.strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("* * * * *", "UTC", "2026-05-01T10:00:30Z", ["05-01 10:01", "05-01 10:02"]),
        ("0 4 * * *", "UTC", "2026-05-01T04:00:00Z", ["05-02 04:00"]),  # after, not at
        ("0 4 * * *", "Tokyo", "2026-05-01T00:00:00Z", ["05-01 19:00"]),
        ("0 4 * * *", "Asia/Tokyo", "2026-05-01T00:00:00Z", ["05-01 19:00"]),
        ("0 4 * * *", "Pacific Time (US & Canada)", "2026-05-01T00:00:00Z", ["05-01 11:00"]),
        ("0  9 * * mon-fri", "Berlin", "2026-05-01T08:00:00Z", ["05-04 07:00", "05-05 07:00"]),
        ("0 0 1 * 0", "UTC", "2026-05-01T00:00:00Z", ["05-03 00:00", "05-10 00:00"]),  # either day
        ("0 0 * * 7", "UTC", "2026-05-01T00:00:00Z", ["05-03 00:00"]),
        ("*/20 8-9 * * *", "UTC", "2026-05-01T08:30:00Z", ["05-01 08:40", "05-01 09:00", "05-01 09:20"]),
        # clocks are put forward at 01:00 UTC: there is no 02:30, and what falls into it runs an hour later
        ("30 2 * * *", "Berlin", "2026-03-28T00:00:00Z", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("0 * * * *", "Berlin", "2026-03-29T00:00:00Z", ["03-29 01:00", "03-29 02:00"]),
        # they are put back at 01:00 UTC: 02:30 comes twice
        ("30 2 * * *", "Berlin", "2026-10-24T12:00:00Z", ["10-25 00:30", "10-26 01:30"]),
        ("*/30 * * * *", "Berlin", "2026-10-25T00:00:00Z", ["10-25 00:30", "10-25 01:00", "10-25 01:30"]),
    ],
)
def test_the_next_moments(cron: str, zone: str, after: str, expected: list[str]) -> None:
    assert runs(cron, zone, after, len(expected)) == expected


def test_a_leap_day_is_waited_for() -> None:
    found = next_run("0 0 29 2 *", "UTC", datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC))
    assert found == datetime.datetime(2028, 2, 29, tzinfo=datetime.UTC)


def test_rails_names_are_time_zones_and_those_of_iana_are_taken_too() -> None:
    assert len(RAILS_TIME_ZONES) > 150
    assert {name for name in RAILS_TIME_ZONES if problems("* * * * *", name)} == set()
    assert {name for name in zoneinfo.available_timezones() if problems("* * * * *", name)} == set()


@pytest.mark.parametrize(
    "cron",
    ["", "x", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "@daily",
     "*/0 * * * *", "0 0 30 2 *", "H * * * *", "R * * * *", "a b c d e", "0 4 * * * UTC", "-1 * * * *", "* * * * *\0"],
)  # fmt: skip
def test_what_is_no_expression_of_five_fields_or_never_comes_is_refused(cron: str) -> None:
    assert problems(cron, "UTC") == {"cron": [" is invalid syntax"]}
    with pytest.raises(ValueError, match=r"acceptable|columns|moments|next date|hash_id"):
        next_run(cron, "UTC", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


@pytest.mark.parametrize("zone", ["", "Nowhere", "../etc/passwd", "/etc/passwd", "Europe", "x" * 255, "\0"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    assert problems("* * * * *", zone) == {"cron_timezone": [" is invalid syntax"]}
