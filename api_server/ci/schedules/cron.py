"""When a schedule runs next: cron expressions of five fields, in the time zones that Rails and IANA name. Pure."""

import datetime
import re
import zoneinfo

from croniter import croniter

from api_server.ci.schedules.rails_time_zones import RAILS_TIME_ZONES

#: Fields that croniter would fill with a number of its own choice.
_CHOSEN_BY_CHANCE = re.compile(r"(?<![a-z])[rh](?![a-z])", re.IGNORECASE)
_FIELDS = 5
_HOURS = 1


def problems(cron: str, time_zone: str) -> dict[str, list[str]]:
    """Why this cannot be when a schedule runs, by attribute, in GitLab's words."""
    found = {}
    if _zone(time_zone) is None:
        found["cron_timezone"] = [" is invalid syntax"]
    try:
        next_run(cron, "UTC", datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
    except ValueError:
        found["cron"] = [" is invalid syntax"]
    return found


def next_run(cron: str, time_zone: str, after: datetime.datetime) -> datetime.datetime:
    """The first moment after `after`, in UTC. Raises ValueError for what is no expression, or has no moment.

    Where clocks are put back, what is said of an hour by its number runs in the first of the two; where they are put
    forward, what falls into the hour that is missing runs when that one has passed.
    """
    fields = cron.split()
    zone = _zone(time_zone)
    if len(fields) != _FIELDS or _CHOSEN_BY_CHANCE.search(cron) or zone is None:
        raise ValueError(f"{cron!r} in {time_zone!r} has no moments")
    moments = croniter(" ".join(fields), after.astimezone(zone))
    while True:
        found: datetime.datetime = moments.get_next(datetime.datetime).astimezone(datetime.UTC)
        is_repeated = found.astimezone(zone).fold == 1
        if not is_repeated or fields[_HOURS].startswith("*"):
            return found


def _zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(RAILS_TIME_ZONES.get(name, name))
    except (
        zoneinfo.ZoneInfoNotFoundError,
        ValueError,
        OSError,
    ):  # of a folder's name, or one that is too long
        return None
