"""Parameters, parsed once: path, query, form and JSON body merged, then an attrs class filled strictly.

A parameter class is a keyword-only attrs class; its annotations say what is accepted: `int` (64 bits), `float`,
`bool`, `str`, `datetime.date`, `datetime.datetime`, an Enum or Literal, `list[...]`, `dict[str, str]`, another attrs
class, `CommaList[...]`. A field without a default is required; `X | None` accepts null; `X | Unset` with default
`UNSET` tells "not sent" from null. The texts of refusals are GitLab's.
"""

import datetime
import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import attrs
import cattrs
from aiohttp import web

from api_server.web.errors import ApiError, bad_parameters
from api_server.web.request_data import in_url, merged

ParametersT = TypeVar("ParametersT")
ItemT = TypeVar("ItemT")

_TRUE = frozenset({"true", "t", "1", "y", "yes", "on"})
_FALSE = frozenset({"false", "f", "0", "n", "no", "off"})


class Unset(enum.Enum):
    """The type of `UNSET`: the parameter was not sent."""

    UNSET = "unset"


UNSET = Unset.UNSET


class CommaList(list[ItemT]):
    """A list that may also be sent as one text with commas: `a,b`, `["a", "b"]` or `k[]=a&k[]=b`."""


class Refused(Exception):
    """A value that does not fit; `where` grows from the inside out (`[0][key]`)."""

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where


async def parse(request: web.Request, parameters: type[ParametersT]) -> ParametersT:
    """The request's parameters as an instance of `parameters`. Raises the 400 that names every failing one."""
    return structure(await merged(request), parameters)


def parse_query(request: web.Request, parameters: type[ParametersT]) -> ParametersT:
    """As `parse`, for routes whose body is a stream of bytes: only path and query are read."""
    return structure(in_url(request), parameters)


def structure(sent: Mapping[str, Any], parameters: type[ParametersT]) -> ParametersT:
    """An instance of `parameters` from untyped values. Raises the 400 of `merged` values that do not fit."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field in attrs.fields(typing.cast("Any", parameters)):
        name = field.metadata.get("name", field.name)
        try:
            if name in sent:
                values[field.alias] = _field_value(sent[name], field)
            elif field.default is attrs.NOTHING:
                raise Refused("is missing")
        except Refused as refused:
            problems.append(f"{name}{refused.where} {refused.problem}")
    if problems:
        raise bad_parameters(*problems)
    try:
        return parameters(**values)
    except ValueError as problem:  # an attrs validator over several parameters
        raise bad_parameters(str(problem)) from None


def _field_value(value: Any, field: "attrs.Attribute[Any]") -> Any:
    wanted, nullable = _wanted(typing.cast("Any", field.type))
    if value is None or (value == "" and wanted is not str and not _takes_empty(wanted)):
        if nullable:
            return None
        if field.default is attrs.NOTHING:
            raise Refused("is empty")
        return _default(field)
    checked = _structured(value, wanted)
    if field.metadata.get("present") and not str(checked).strip():
        raise Refused("is empty")
    return checked


def _default(field: "attrs.Attribute[Any]") -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _takes_empty(wanted: Any) -> bool:
    return typing.get_origin(wanted) in (list, CommaList, dict) or _is_choice(wanted)


@cache
def _wanted(annotation: Any) -> tuple[Any, bool]:
    """The type without `None` and `Unset`, and whether null is accepted."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, False
    arms = typing.get_args(annotation)
    real = [arm for arm in arms if arm not in (type(None), Unset)]
    return typing.Union[tuple(real)], type(None) in arms  # noqa: UP007


def _structured(value: Any, wanted: Any) -> Any:
    # Choices first: cattrs would take an IntEnum for an int, and let every number pass.
    return _choice(value, wanted) if _is_choice(wanted) else _CONVERTER.structure(value, wanted)


def _integer(value: Any, _type: Any) -> int:
    if isinstance(value, str) and (
        value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 30
    ):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise Refused("is invalid")
    return value


def _number(value: Any, _type: Any) -> float:
    try:
        return float(value) if not isinstance(value, bool) else _refuse()
    except (TypeError, ValueError):
        raise Refused("is invalid") from None


def _refuse() -> typing.NoReturn:
    raise Refused("is invalid")


def _boolean(value: Any, _type: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, (str, int)) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise Refused("is invalid")


def _string(value: Any, _type: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
        raise Refused("is invalid")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _date(value: Any, _type: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(value) if len(value) == 10 else _moment(value, None).date()
    except (TypeError, ValueError):
        raise Refused("is invalid") from None


def _moment(value: Any, _type: Any) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (TypeError, ValueError, OverflowError):
        raise Refused("is invalid") from None


def _is_choice(wanted: Any) -> bool:
    return typing.get_origin(wanted) is Literal or (
        isinstance(wanted, type) and issubclass(wanted, enum.Enum)
    )


def _choice(value: Any, wanted: Any) -> Any:
    choices = {str(arm): arm for arm in typing.get_args(wanted)} or {str(arm.value): arm for arm in wanted}
    if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value) in choices:
        return choices[str(value)]
    raise Refused("does not have a valid value")


def _list(value: Any, wanted: Any) -> list[Any]:
    (item,) = typing.get_args(wanted)
    if isinstance(value, dict) and attrs.has(item):  # k[0][key]=...
        value = list(value.values())
    if typing.get_origin(wanted) is CommaList:
        value = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        value = [value] if isinstance(value, int) else value
    if not isinstance(value, list):
        raise Refused("is invalid")
    return [_item(element, item, index) for index, element in enumerate(value)]


def _item(element: Any, wanted: Any, index: int) -> Any:
    try:
        return _structured(element, wanted)
    except Refused as refused:
        where = f"[{index}]{refused.where}" if attrs.has(wanted) else ""
        raise Refused(refused.problem, where) from None


def _mapping(value: Any, _type: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Refused("is invalid")
    return {_string(key, str): _string(item, str) for key, item in value.items()}


def _object(value: Any, wanted: Any) -> Any:
    if not isinstance(value, dict):
        raise Refused("is invalid")
    try:
        return structure(value, wanted)
    except ApiError as error:
        where, _, problem = str(error.body["error"]).split(", ", 1)[0].partition(" ")
        name, bracket, rest = where.partition("[")
        raise Refused(problem, f"[{name}]{bracket}{rest}") from None


def _origin(wanted: Any) -> Any:
    return typing.get_origin(wanted)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(int, _integer)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(bool, _boolean)
    converter.register_structure_hook(str, _string)
    converter.register_structure_hook(datetime.date, _date)
    converter.register_structure_hook(datetime.datetime, _moment)
    converter.register_structure_hook_func(lambda wanted: _origin(wanted) in (list, CommaList), _list)
    converter.register_structure_hook_func(lambda wanted: _origin(wanted) is dict, _mapping)
    converter.register_structure_hook_func(attrs.has, _object)
    return converter


_CONVERTER = _converter()
