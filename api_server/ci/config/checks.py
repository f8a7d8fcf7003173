"""The checks from which `keywords.py` composes the rules for values: small checks, combined as data.

A check takes the position (`jobs:test:image`) and the value, and yields one sentence for each error.
Durations as people write them (`1 day 2h`, `30 mins`, `never`) are parsed here too, to whole seconds.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from attrs import field, frozen

from api_server.ci.config import patterns, rules

#: The meaning of `never` and `0` in a duration that says how long something is kept.
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
#: The units of the numbers between colons, the last one first.
_OF_CLOCK = [_SECONDS[unit] for unit in ("second", "minute", "hour", "day", "month", "year")]
_TERM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?![\d.]) ?([a-z]*)(?:(?:,| (?:and|with|plus)\b)* *|$)")
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {word: number for number, word in enumerate(_ONES)} | {
    word: 10 * number for number, word in enumerate(_TENS, start=2)
}
_SPOKEN = re.compile(rf"\b(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_ONES[1:10])}))?|{'|'.join(_ONES)})\b")


def parse_duration(text: str) -> int:
    """Return the seconds that `text` means, NEVER for `never`; a bare number is seconds, `1:30` minutes and
    seconds, a leading unit one of its kind. Numbers below a hundred may be words.

    Raise ValueError if it is not a duration.
    """
    clean = " ".join(text.lower().split())
    if clean == "never":
        return NEVER
    clean = _SPOKEN.sub(
        lambda spoken: str(sum(map(_NUMBERS.__getitem__, re.findall("[a-z]+", spoken[0])))), clean
    )
    if (unit := re.match("[a-z]+", clean)) and unit[0] in _UNITS:
        clean = f"1 {clean}"
    if _CLOCK.fullmatch(clean):
        return int(
            sum(float(part) * unit for part, unit in zip(clean.split(":")[::-1], _OF_CLOCK, strict=False))
        )
    total, position = 0.0, 0
    while position < len(clean):
        term = _TERM.match(clean, position)
        if term is None or (term[2] or "seconds") not in _UNITS:
            raise ValueError("should be a duration")
        total += float(term[1]) * _UNITS[term[2] or "seconds"]
        position = term.end()
    if not clean:
        raise ValueError("should be a duration")
    return int(total)


def spell_duration(seconds: int) -> str:
    """Return the text that `parse_duration` reads as `seconds`, largest units first: `1 week 2 days`."""
    parts = []
    for unit in ("week", "day", "hour", "minute", "second"):
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            parts.append(f"{count} {unit}" + ("s" if count > 1 else ""))
    return " ".join(parts) or "never"


Check = Callable[[str, Any], Iterator[str]]

#: Maximum characters of the name of a job, an environment or a resource group.
MAX_NAME = 255
MAX_LIST_NESTING = 10
#: For lists that GitLab flattens at any depth; YAML limits the depth.
ANY_NESTING = 100
_NAMES = {
    str: "a string",
    dict: "a hash",
    list: "an array",
    bool: "a boolean value",
    int: "an integer",
    float: "a number",
}


def of_type(*types: type) -> Check:
    """Return a check for exactly one of the types: `True` is not an integer."""
    requirement = "should be " + " or ".join(_NAMES[kind] for kind in types)

    def check(path: str, value: Any) -> Iterator[str]:
        if type(value) not in types:
            yield f"{path} config {requirement}"

    return check


def anything(_path: str, _value: Any) -> Iterator[str]:
    """Accept any value."""
    return iter(())


text = of_type(str)
boolean = of_type(bool)
scalar = of_type(str, int)


@frozen
class ByType:
    """A check that depends on the type of the value."""

    checks: Mapping[type, Check]
    #: The error for other types; by default it names the accepted types.
    complaint: str | None = None

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        if type(value) in self.checks:
            yield from self.checks[type(value)](path, value)
        elif self.complaint is not None:
            yield f"{path} {self.complaint}"
        else:
            yield from of_type(*self.checks)(path, value)


@frozen
class Fields:
    """A hash with only these keys; a key whose value is null counts as not given.

    The keys in `beyond` are GitLab's too, but are not supported here; the error says so.
    """

    keys: Mapping[str, Check]
    required: Collection[str] = ()
    beyond: Collection[str] = ()
    #: A check that runs after all others have passed, for rules that involve several keys.
    together: Check | None = None
    #: Keys whose errors GitLab reports as errors of the hash: `jobs:test when should be ...`.
    attributes: Collection[str] = ()

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path} config should be a hash"
            return
        wrong = list(self._wrong(path, value))
        yield from self.together(path, value) if self.together is not None and not wrong else wrong

    def _wrong(self, path: str, value: dict[str, Any]) -> Iterator[str]:
        if unknown := [key for key in value if key not in self.keys and key not in self.beyond]:
            yield f"{path} config contains unknown keys: {', '.join(unknown)}"
        foreign = any(key in self.beyond for key in value)
        if not foreign and (missing := [key for key in self.required if value.get(key) is None]):
            yield f"{path} config missing required keys: {', '.join(missing)}"
        for key, inner in value.items():
            if key in self.beyond:
                yield not_supported(f"{path}:{key}")
            elif key in self.keys and inner is not None:
                errors = self.keys[key](f"{path}:{key}", inner)
                yield from (self._reported(path, key, error) for error in errors)

    def _reported(self, path: str, key: str, error: str) -> str:
        prefix = f"{path}:{key} "
        if key not in self.attributes or not error.startswith(prefix):
            return error
        return f"{path} {key.replace('_', ' ')} {error.removeprefix(prefix).removeprefix('config ')}"


TOO_MANY = "config has too many entries (maximum {})"


@frozen
class Each:
    """A list whose items all satisfy `item`, which runs only if they are of its `types`."""

    item: Check
    types: Collection[type] = field(default=(str,), kw_only=True)
    #: The noun for the items, in GitLab's words.
    of: str = field(default="strings", kw_only=True)
    at_most: int = field(default=sys.maxsize, kw_only=True)
    too_many: str = field(default=TOO_MANY, kw_only=True)
    #: How many levels of nested lists are flattened into one list.
    levels: int = field(default=1, kw_only=True)

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        items = flatten(value, self.levels) if isinstance(value, list) else None
        if items is None or not all(type(item) in self.types for item in items):
            nested = f" or a nested array of {self.of} up to {self.levels} levels deep"
            yield f"{path} config should be an array of {self.of}" + nested * (
                self.levels == MAX_LIST_NESTING
            )
        elif len(items) > self.at_most:
            yield f"{path} {self.too_many.format(self.at_most)}"
        else:
            for inner in items:
                yield from self.item(path, inner)


@frozen
class EachValue:
    """A hash whose values all satisfy `item`. The keys may be any strings of the length of a name."""

    item: Check
    at_most: int = field(default=sys.maxsize, kw_only=True)
    #: Whether a value may also be null.
    optional: bool = field(default=False, kw_only=True)

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path} config should be a hash"
        elif len(value) > self.at_most:
            yield f"{path} {TOO_MANY.format(self.at_most)}"
        else:
            for key, inner in value.items():
                if len(key) > MAX_NAME:
                    yield f"{path} config has a key of more than {MAX_NAME} characters"
                elif inner is not None or not self.optional:
                    yield from self.item(f"{path}:{key}", inner)


def not_supported(keyword: str) -> str:
    """Return the error for a GitLab keyword that is not supported here."""
    return f"{keyword} is not supported by this service"


def one_of(*choices: str) -> Check:
    def check(path: str, value: Any) -> Iterator[str]:
        if type(value) is not str or value not in choices:
            yield f"{path} should be one of: {', '.join(choices)}"

    return check


def integer(low: int, high: int) -> Check:
    def check(path: str, value: Any) -> Iterator[str]:
        if type(value) is not int or not low <= value <= high:
            yield f"{path} config should be an integer between {low} and {high}"

    return check


def duration(*, at_most: int | None = None, never: bool = False) -> Check:
    """Return a check for a duration of at least a second, or optionally `never`; as in GitLab it has to be
    text."""

    def check(path: str, value: Any) -> Iterator[str]:
        try:
            seconds = parse_duration(value) if isinstance(value, str) else -1
        except ValueError:
            seconds = -1
        if seconds < 0 or (seconds == NEVER and not never):
            yield f"{path} config should be a duration"
        elif at_most is not None and seconds > at_most:
            yield f"{path} config should not exceed the limit of {spell_duration(at_most)}"

    return check


def matching(pattern: str, complaint: str, *, at_most: int = sys.maxsize) -> Check:
    """Return a check for text of at most that many characters that matches the pattern as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def check(path: str, value: Any) -> Iterator[str]:
        if not isinstance(value, str):
            yield f"{path} config should be a string"
        elif not compiled.fullmatch(value):
            yield f"{path} {complaint}"
        elif len(value) > at_most:
            yield f"{path} is too long (maximum is {at_most} characters)"

    return check


def _parsed_by(parse: Callable[[str], object], complaint: str) -> Check:
    """Return a check for text that `parse` accepts; `parse` raises ValueError for other text."""

    def check(path: str, value: Any) -> Iterator[str]:
        try:
            parsed = parse(value) if isinstance(value, str) else None
        except ValueError:
            parsed = None
        if parsed is None:
            yield f"{path} {complaint}"

    return check


regex = _parsed_by(patterns.parse_delimited, "config must be a regular expression")
#: A date and time in ISO 8601.
moment = _parsed_by(datetime.fromisoformat, "must be a valid datetime")
#: An expression of `rules:if`.
condition = _parsed_by(rules.parse_condition, "invalid expression syntax")
#: An item of `only:refs`.
ref = _parsed_by(
    patterns.check_ref, "config should be an array of strings or regular expressions using re2 syntax"
)
glob = _parsed_by(patterns.compile_glob, "config has a path pattern that is too large")


def script(path: str, value: Any) -> Iterator[str]:
    """Check commands: a string, or strings in lists, which may be nested because of anchors and references,
    or nothing."""
    lines = flatten(value, MAX_LIST_NESTING)
    if lines is None or not all(isinstance(line, str) for line in lines):
        yield (
            f"{path} config should be a string or "
            f"a nested array of strings up to {MAX_LIST_NESTING} levels deep"
        )


def flatten(value: Any, levels: int = ANY_NESTING) -> list[Any] | None:
    """Return a single value, or nested lists, as one list; None if lists are nested more than `levels`
    deep."""
    if not isinstance(value, list):
        return [value]
    if not levels:
        return None
    flat: list[Any] = []
    for item in value:
        inner = flatten(item, levels - 1)
        if inner is None:
            return None
        flat += inner
    return flat
