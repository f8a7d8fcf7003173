"""Durations as people write them in a configuration (`1 day 2h`, `30 mins`, `never`), in whole seconds."""

import re

#: What `never` and `0` mean where a duration says how long something is kept.
NEVER = 0

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000,
            "year": 31_557_600}  # fmt: skip
_SHORT = {
    "second": ("s", "sec", "secs"),
    "minute": ("m", "min", "mins"),
    "hour": ("h", "hr", "hrs"),
    "day": ("d", "dy"),
    "week": ("w", "wk", "wks"),
    "month": ("mo", "mos", "mon"),
    "year": ("y", "yr", "yrs"),
}
_UNITS = {
    spelling: _SECONDS[unit] for unit, short in _SHORT.items() for spelling in (unit, unit + "s", *short)
}
_CLOCK = re.compile(r"\d{1,9}(?:\.\d{1,9})?(?:: ?\d{1,9}(?:\.\d{1,9})?){1,5}")
#: What the numbers between colons count, last one first.
_OF_CLOCK = [_SECONDS[unit] for unit in ("second", "minute", "hour", "day", "month", "year")]
_TERM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?![\d.]) ?([a-z]*)(?:(?:,| and\b)* *|$)")


def parse(text: str) -> int:
    """Seconds that `text` means, NEVER for `never`; a bare number is seconds, and `1:30` minutes and seconds.

    Raises ValueError for what is no duration.
    """
    words = " ".join(text.lower().split())
    if words == "never":
        return NEVER
    if _CLOCK.fullmatch(words):
        return int(
            sum(float(part) * unit for part, unit in zip(words.split(":")[::-1], _OF_CLOCK, strict=False))
        )
    total, position = 0.0, 0
    while position < len(words):
        term = _TERM.match(words, position)
        if term is None or (term[2] or "seconds") not in _UNITS:
            raise ValueError("should be a duration")
        total += float(term[1]) * _UNITS[term[2] or "seconds"]
        position = term.end()
    if not words:
        raise ValueError("should be a duration")
    return int(total)


def spell(seconds: int) -> str:
    """The text that `parse` reads as `seconds`, largest units first: `1 week 2 days`."""
    parts = []
    for unit in ("week", "day", "hour", "minute", "second"):
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            parts.append(f"{count} {unit}" + ("s" if count > 1 else ""))
    return " ".join(parts) or "never"
