"""What an unquoted text of a YAML file means: YAML 1.1 as Ruby's Psych reads it, with which GitLab loads CI files."""

import math
import re
from collections.abc import Callable

#: Digits of a number; a longer one stays text, since reading it takes the square of its length.
MAX_DIGITS = 100

Scalar = str | int | float | bool | None

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("~", "null"), None),
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_DATE = r"\d{4}-(?:1[0-2]|0?\d)-(?:3[01]|[0-2]?\d)"
_TIME = r"-?\d{4}-\d{1,2}-\d{1,2}(?:[Tt]|\s+)\d{1,2}:\d\d:\d\d(?:\.\d*)?(?:\s*(?:Z|[-+]\d{1,2}:?(?:\d\d)?))?"
_SIXTIES = r"[-+]?\d[\d_]*(?::[0-5]?\d){1,2}"
#: `1_000` is a thousand, `1__000` and what comes after an underscore at the end do not count.
_NUMBER = re.compile(r"[-+]?\d+(?:_\d+)*(?:\.\d+(?:_\d+)*)?", re.ASCII)


class DateFound(ValueError):
    """A date or time without quotes, which GitLab refuses."""


def _class(name: str) -> Callable[[str], Scalar]:
    def refuse(_: str) -> Scalar:
        raise DateFound(f"Tried to load unspecified class: {name}")

    return refuse


def name(text: str) -> str:
    """The name of a symbol, `:job` or `:"job"`; other texts as they are."""
    quoted = re.match(r""":(["'])(.*)\1""", text)
    if quoted:
        return quoted[2].removeprefix(":")
    return text.removeprefix(":") if len(text) > 1 else text


def _of_sixties(number: Callable[[str], int | float]) -> Callable[[str], Scalar]:
    """Hours, minutes and seconds, or hours and minutes; the sign is that of the first."""

    def read(text: str) -> Scalar:
        parts = [_NUMBER.match(part) for part in text.split(":")]
        total: int | float = sum(
            number(part[0]) * 60**power for part, power in zip(parts, (2, 1, 0), strict=False) if part
        )
        return total

    return read


def _float(text: str) -> Scalar:
    return float(re.sub("[,_]", "", text))


def _integer(text: str) -> Scalar:
    digits = re.sub("[,_]", "", text)
    bare = digits.lstrip("+-")
    number = int(digits, 0 if bare[1:2] in ("b", "x") else 8 if bare.startswith("0") else 10)
    return number if abs(number) < 2**63 else str(number)


#: Tried in this order.
_FORMS: list[tuple[re.Pattern[str], Callable[[str], Scalar]]] = [
    (re.compile(form, re.ASCII), read)
    for form, read in (
        (_TIME, _class("Time")),
        (_DATE, _class("Date")),
        (r"\+?\.(?i:inf)", lambda _: math.inf),
        (r"-\.(?i:inf)", lambda _: -math.inf),
        (r"\.(?i:nan)", lambda _: math.nan),
        (_SIXTIES, _of_sixties(int)),
        (_SIXTIES + r"\.[\d_]*", _of_sixties(float)),
        (r"[-+]?(?:\d[\d_,]*\.\d*|\.\d+)(?:[eE][-+]\d+)?", _float),
        (r"[-+]?(?:0b[01_,]+|0[0-7_,]+|0|[1-9](?:[,_]?\d)*|0x[\da-fA-F_,]+)", _integer),
    )
]


def read(text: str) -> Scalar:
    """The value; numbers beyond 64 bits are their digits, symbols their names.

    Raises DateFound, and another ValueError for what only begins as a number (`0x_`).
    """
    if not text:
        return None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[0] == ":":
        return name(text)
    if text[0] not in "+-.0123456789" or len(text) > MAX_DIGITS:
        return text
    return next((meaning(text) for form, meaning in _FORMS if form.fullmatch(text)), text)


def spell(value: Scalar) -> str:
    """The value as GitLab writes it down where it has to be text: `3.10` is 3.1."""
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        if not math.isfinite(value):
            return {"inf": "Infinity", "-inf": "-Infinity"}.get(mantissa, "NaN")
        return mantissa + ("" if "." in mantissa else ".0") + e + exponent
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
