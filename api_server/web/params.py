"""Parsing of parameters: an attrs class is filled strictly from the values sent, with the formats that GitLab
accepts.

A date must be a complete date that Ruby's `DateTime.parse` accepts. Parts of dates, years of two digits,
unknown names of zones and any other text, which Ruby completes or skips, are refused.

A parameter class is a keyword-only attrs class; its annotations say what is accepted: `int` (64 bits),
`float`, `bool`, `str`, `Name`, `Url` and `Description` (strings of limited length), `datetime.date`,
`datetime.datetime`, an Enum or Literal, `list[...]`, `dict[str, str]`, `dict[str, Any]` (any contents),
another attrs class, `CommaList[...]`. A field without a default is required; `X | None` accepts null; `X |
Unset` with default `UNSET` distinguishes a missing parameter from null. A converter of a field of `Any`
declares the accepted type with `metadata={"takes": ...}`, for the API's description. The texts of refusals
are GitLab's.

cattrs fills the classes and collects the errors of their fields. This module defines which single values are
valid, and that an empty one counts as not sent, since cattrs' own conversions accept nearly everything
(`"false"` would be true). A list is refused at its first invalid item and has at most `MAX_ITEMS`, so that
reading parameters is cheap whatever a client sends.
"""

import datetime
import enum
import json
import math
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Protocol, TypeVar

import attrs
import cattrs
import orjson
from cattrs.gen import make_dict_structure_fn, override

from api_server.web.errors import bad_parameters

#: Maximum characters that Ruby reads.
_LONGEST = 128
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: Offsets from UTC in hours; positive is east.
_ZONES = {
    "z": 0,
    "ut": 0,
    "utc": 0,
    "gmt": 0,
    "est": -5,
    "edt": -4,
    "cst": -6,
    "cdt": -5,
    "mst": -7,
    "mdt": -6,
}
_ZONES |= {"pst": -8, "pdt": -7, "bst": 1, "cet": 1, "cest": 2}

_DAY = r"(?P<day>\d{1,2})"
_NAMED_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]*"
_DATES = tuple(
    re.compile(rf"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?{form}", re.ASCII)
    for form in (
        rf"(?P<year>\d{{4}})([-/.])(?P<month>\d{{1,2}})\2{_DAY}",
        rf"{_DAY}([-/.])(?P<month>\d{{1,2}})\2(?P<year>\d{{4}})",
        rf"{_DAY}(?:st|nd|rd|th)?[ -]{_NAMED_MONTH}[ -](?P<year>\d{{4}})",
        rf"{_NAMED_MONTH}\.? {_DAY}(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
    )
)
_TIME = re.compile(
    r"[ t](?P<hour>\d{1,2})(?=:| ?[ap]m)"
    r"(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?(?: ?(?P<half>[ap])m(?![a-z]))?"
    rf"(?: ?(?P<zone>{'|'.join(_ZONES)})(?![a-z]))?(?: ?(?P<offset>[-+]\d{{1,2}}(?::?\d\d)?)(?!\S))?"
    r"(?: \([a-z ]+\)$)?",
    re.ASCII,
)

_FOURTEEN_DIGITS = re.compile(r"^(\d{8})(\d{6})(?!\d)", re.ASCII)


def read_moment(text: str) -> datetime.datetime:
    """Return the moment that a text states, in UTC if it names no zone. Raise ValueError."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    text = _FOURTEEN_DIGITS.sub(r"\1t\2", " ".join(text.lower().split()))
    try:
        read = datetime.datetime.fromisoformat(text.upper())
    except ValueError:
        read = _other_form(text)
    return read if read.tzinfo else read.replace(tzinfo=datetime.UTC)


def _other_form(text: str) -> datetime.datetime:
    time = _TIME.search(text)
    date_text = text if time is None else text[: time.start()] + text[time.end() :]
    date = next((match for form in _DATES if (match := form.fullmatch(date_text))), None)
    if date is None:
        raise ValueError("no date")
    month = date["month"]
    number = int(month) if month.isdecimal() else _MONTHS.index(month) + 1
    midnight = datetime.datetime(int(date["year"]), number, int(date["day"]))
    return midnight if time is None else _at_time(midnight, time)


def _at_time(midnight: datetime.datetime, time: re.Match[str]) -> datetime.datetime:
    hour, minute, second = (int(time[part] or 0) for part in ("hour", "minute", "second"))
    if time["half"]:
        if not 1 <= hour <= 12:
            raise ValueError("not an hour of a half day")
        hour = hour % 12 + 12 * (time["half"] == "p")
    days, hour = (1, 0) if (hour, minute, second) == (24, 0, 0) else (0, hour)  # 24:00:00 ends the day
    microsecond = int(f"{time['fraction'] or 0:0<6}"[:6])
    zone = datetime.timezone(
        datetime.timedelta(hours=_ZONES.get(time["zone"], 0)) + _zone_offset(time["offset"])
    )
    moment = midnight.replace(
        hour=hour, minute=minute, second=min(second, 59) if second == 60 else second, microsecond=microsecond
    )
    return moment.replace(tzinfo=zone) + datetime.timedelta(days=days)


def _zone_offset(text: str | None) -> datetime.timedelta:
    if text is None:
        return datetime.timedelta()
    sign = -1 if text[0] == "-" else 1
    hours, _, minutes = text[1:].partition(":") if ":" in text else (text[1:3], "", text[3:])
    return sign * datetime.timedelta(hours=int(hours), minutes=int(minutes or 0))


#: Maximum nesting depth of hashes and lists.
MAX_DEPTH = 32


class TooDeep(ValueError):
    """JSON beyond `MAX_DEPTH`."""


def read_json(text: str | bytearray) -> Any:
    """Return the value of JSON text, with whole numbers beyond 64 bits as their digits, like those of YAML:
    orjson makes floats of them, which keep the first digits only. Raise ValueError."""
    value = orjson.loads(text)
    level: list[Any] = [value]
    rounded = False
    for _ in range(MAX_DEPTH + 1):
        rounded = rounded or any(isinstance(item, float) and abs(item) >= 2**63 for item in level)
        outer = [item for item in level if isinstance(item, dict | list)]
        if not outer:
            return json.loads(text, parse_int=_whole) if rounded else value
        level = [inner for node in outer for inner in (node.values() if isinstance(node, dict) else node)]
    raise TooDeep


def _whole(digits: str) -> int | str:
    number = int(digits[:21])  # no number of 64 bits has more; reading all would take quadratic time
    return number if -(2**63) <= number < 2**64 else digits


_TRUE = frozenset({"true", "t", "1", "y", "yes", "on"})
_FALSE = frozenset({"false", "f", "0", "n", "no", "off"})


class Refused(Exception):
    """A value that is not accepted; the text continues the parameter's name: `is invalid`."""


def integer(value: Any, _type: Any) -> int:
    if isinstance(value, str) and (
        len(value) < 30 and value.isascii() and value.removeprefix("-").isdecimal()
    ):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise Refused("is invalid")
    return value


def number(value: Any, _type: Any) -> float:
    try:
        if not isinstance(value, bool) and math.isfinite(parsed := float(value)):
            return parsed
    except (TypeError, ValueError):
        pass
    raise Refused("is invalid")


def boolean(value: Any, _type: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, (str, int)) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise Refused("is invalid")


def string(value: Any, _type: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
        raise Refused("is invalid")
    return value


def _is_unicode(text: str) -> bool:
    if text.isascii():  # takes no time, whatever its length
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def date(value: Any, _type: Any) -> datetime.date:
    """Return the date as written, whatever the zone of a time behind it."""
    return _moment(value).date()


def moment(value: Any, _type: Any) -> datetime.datetime:
    try:
        return _moment(value).astimezone(datetime.UTC)
    except OverflowError:
        raise Refused("is invalid") from None


def _moment(value: Any) -> datetime.datetime:
    try:
        return read_moment(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise Refused("is invalid") from None


#: The function that reads each type of parameter.
HOOKS: Mapping[Any, Callable[[Any, Any], Any]] = {
    int: integer,
    float: number,
    bool: boolean,
    str: string,
    datetime.date: date,
    datetime.datetime: moment,
}


ParametersT = TypeVar("ParametersT")
ItemT = TypeVar("ItemT")
Hook = Callable[[Any, Any], Any]

#: Maximum items of a list, and keys of a hash.
MAX_ITEMS = 1000


class Unset(enum.Enum):
    """The type of `UNSET`: the parameter was not sent."""

    UNSET = "unset"


UNSET = Unset.UNSET


class CommaList(list[ItemT]):
    """A list that may also be sent as one text with commas: `a,b`, `["a", "b"]`, `["a,b"]` or `k[]=a&k[]=b`.

    Blank items count as not sent, so `k=` and `k[]=` send an empty list in forms.
    """


#: In `CommaList[Annotated[str, AtMost(...), KEEPS_BLANKS]]`: blank items are kept.
KEEPS_BLANKS = "keeps blanks"


@attrs.frozen
class AtMost:
    """The maximum number of characters of a text, in `Annotated[str, AtMost(255)]`."""

    characters: int

    def allows(self, text: str) -> bool:
        return len(text) <= self.characters


@attrs.frozen
class AtMostBytes(AtMost):
    """The maximum number of bytes, for addresses and refs, whose readers and indexes count bytes."""

    def allows(self, text: str) -> bool:
        return len(text.encode()) <= self.characters


#: A name or a line of text; a web address; a text of any kind (decision D11).
Name = Annotated[str, AtMost(255)]
Url = Annotated[str, AtMostBytes(2048)]
Description = Annotated[str, AtMost(2**20)]
#: A file in a multipart form.
Upload = dict[str, Any]


class _ItemRefused(Exception):
    """The first invalid item of a list: its `index`, if items are named by index, and its error."""

    def __init__(self, index: int | None, problem: Exception) -> None:
        super().__init__(index, problem)
        self.index = index
        self.problem = problem


def structure(data: Mapping[str, Any], parameters: type[ParametersT]) -> ParametersT:
    """Return an instance of `parameters` from untyped values. Raise 400 for invalid values."""
    try:
        return _CONVERTER.structure(data, parameters)
    except cattrs.ClassValidationError as problem:
        raise bad_parameters(*_texts(problem)) from None


class Field(Protocol):
    """The parts of an attrs field that determine which values are valid."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> Any: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def default(self) -> Any: ...


def check(values: Mapping[str, Any], fields: Iterable[Field]) -> None:
    """Raise 400 for `values` that are invalid for their `fields`. Do not generate code for the whole
    class: that is slow for hundreds of fields, of which few are ever sent."""
    problems: list[str] = []
    for field in fields:
        try:
            _field_hook(field, _CONVERTER)(values[public_name(field)], field.type)
        except Exception as problem:  # like cattrs, take any exception for the refusal of the value
            problems.extend(_texts(problem, public_name(field)))
    if problems:
        raise bad_parameters(*problems)


def public_name(field: "attrs.Attribute[Any] | Field") -> str:
    """Return the name of a parameter in requests, if Python or the class needs another name for it."""
    return str(field.metadata.get("name", field.name))


def _texts(problem: Exception, path: str = "") -> Iterator[str]:
    """Yield the errors with the names that were sent: `name is missing`, `actions[0][file_path] is empty`."""
    # cattrs' frames hold these errors, whose tracebacks hold the frames and with them everything that was
    # sent
    traceback.clear_frames(problem.__traceback__)
    match problem:
        case cattrs.ClassValidationError():
            fields = attrs.fields_dict(problem.cl)
            with_notes, others = problem.group_exceptions()
            for inner, note in with_notes:
                name = public_name(fields[note.name])
                yield from _texts(inner, f"{path}[{name}]" if path else name)
            yield from map(str, others)  # from attrs validators or converters, which name their parameters
        case _ItemRefused():
            yield from _texts(problem.problem, path if problem.index is None else f"{path}[{problem.index}]")
        case KeyError():
            yield f"{path} is missing"
        case _:
            yield f"{path} {problem}"


def _class_hook(parameters: Any, converter: Any) -> Hook:
    overrides: dict[str, Any] = {
        field.name: override(rename=public_name(field), struct_hook=_field_hook(field, converter))
        for field in attrs.fields(parameters)
    }
    fill: Hook = make_dict_structure_fn(parameters, converter, **overrides)

    def structured(value: Any, kind: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Refused("is invalid")
        return fill(value, kind)

    return structured


def _field_hook(field: "attrs.Attribute[Any] | Field", converter: cattrs.Converter) -> Hook:
    """Return the hook of a field. It reads an empty value as null if null is accepted, and otherwise as not
    sent."""
    kind, nullable = _kind_of(typing.cast("Any", field.type))
    takes_empty = kind is str or _origin(kind) in (Annotated, list, CommaList, dict) or _is_choice(kind)
    takes_empty = takes_empty and not field.metadata.get("cleared_by_empty")

    def structured(value: Any, _type: Any) -> Any:
        if value is None or (value == "" and not takes_empty):
            return None if nullable else _default(field)
        fitting = converter.structure(value, kind)
        if field.metadata.get("present") and not (fitting.strip() if isinstance(fitting, str) else fitting):
            raise Refused("is empty")
        return fitting

    return structured


def _default(field: "attrs.Attribute[Any] | Field") -> Any:
    default: Any = field.default
    if default is attrs.NOTHING:
        raise Refused("is empty")
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


@cache
def _kind_of(annotation: Any) -> tuple[Any, bool]:
    """Return the type without `None` and `Unset`, and whether null is accepted."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, False
    arms = typing.get_args(annotation)
    real = [arm for arm in arms if arm not in (type(None), Unset)]
    return typing.Union[tuple(real)], type(None) in arms  # noqa: UP007


def _origin(kind: Any) -> Any:
    return typing.get_origin(kind)


def _is_choice(kind: Any) -> bool:
    return _origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum))


@cache
def _choices(kind: Any) -> Mapping[str, Any]:
    """Return the values of a Literal or an Enum by their text."""
    return {str(arm): arm for arm in typing.get_args(kind)} or {str(arm.value): arm for arm in kind}


def _choice(value: Any, kind: Any) -> Any:
    choices = _choices(kind)
    if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value) in choices:
        return choices[str(value)]
    raise Refused("does not have a valid value")


def _or_choice(hook: Hook) -> Hook:
    """Check the choice first: cattrs uses the hook of int for every IntEnum too and would accept any
    number."""
    return lambda value, kind: (_choice if _is_choice(kind) else hook)(value, kind)


def _list_hook(kind: Any, converter: Any) -> Hook:
    (item,) = typing.get_args(kind)
    fill: Hook = converter.get_structure_hook(item)
    takes_commas, has_names = _origin(kind) is CommaList, attrs.has(item)
    blanks = (
        () if KEEPS_BLANKS in getattr(item, "__metadata__", ()) else ("", None) if takes_commas else ("",)
    )

    def structured(value: Any, _type: Any) -> Any:
        if isinstance(value, dict) and has_names:  # k[0][key]=...
            value = list(value.values())
        if value == "" and not takes_commas:  # k=
            value = []
        if takes_commas:
            value = _separated(value)
        if not isinstance(value, list):
            raise Refused("is invalid")
        _check_number(len(value))
        items = []
        for index, item_value in enumerate(value):
            if item_value in blanks:
                continue
            try:
                items.append(fill(item_value, item))
            except Exception as problem:
                raise _ItemRefused(index if has_names else None, problem) from None
        return items

    return structured


def _separated(value: Any) -> Any:
    """Return the items of a `CommaList`, splitting those that hold several; return other values unchanged."""
    sent = [value] if isinstance(value, (str, int)) else value
    if not isinstance(sent, list):
        return value
    _check_number(sum(item.count(",") + 1 if isinstance(item, str) else 1 for item in sent))
    items: list[Any] = []
    for item in sent:
        items.extend(map(str.strip, item.split(",")) if isinstance(item, str) else [item])
    return items


def _check_number(items: int) -> None:
    if items > MAX_ITEMS:
        raise Refused(f"is too long (maximum is {MAX_ITEMS} items)")


def _bounded(value: Any, kind: Any) -> str:
    text = string(value, str)
    bound = next(bound for bound in kind.__metadata__ if isinstance(bound, AtMost))
    if not bound.allows(text):
        raise Refused(f"is too long (maximum is {bound.characters} characters)")
    return text


def _mapping(value: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused("is invalid")
    _check_number(len(value))
    if typing.get_args(kind)[1] is Any:
        return value
    return {string(key, str): string(item, str) for key, item in value.items()}


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True)
    for kind, hook in HOOKS.items():
        converter.register_structure_hook(kind, _or_choice(hook))
    converter.register_structure_hook_func(_is_choice, _choice)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is Annotated, _bounded)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is dict, _mapping)
    converter.register_structure_hook_factory(lambda kind: _origin(kind) in (list, CommaList), _list_hook)
    converter.register_structure_hook_factory(attrs.has, _class_hook)
    return converter


_CONVERTER = _converter()
