"""How moments, sizes and paths are written on pages: the filters of the templates."""

import datetime
from collections.abc import Callable, Mapping
from urllib.parse import quote

import markupsafe

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def moment(value: datetime.datetime | str | None) -> markupsafe.Markup:
    """`2026-11-22 17:16 UTC`, of a moment or of what the API shows for one; a dash for none."""
    if value is None:
        return markupsafe.Markup("–")
    read = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    utc = read.astimezone(datetime.UTC)
    return markupsafe.Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), f"{utc:%Y-%m-%d %H:%M} UTC"
    )


def size(count: float) -> str:
    """`1.5 MiB`, of a number of bytes."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def url_path(text: str) -> str:
    """A path, a ref or a file's name as it stands in a URL; slashes stay."""
    return quote(text, safe="/:@!$&'()*+,;=~")


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 commit`, `2 commits`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


FILTERS: Mapping[str, Callable[..., str]] = {
    "moment": moment,
    "size": size,
    "url_path": url_path,
    "plural": plural,
}
