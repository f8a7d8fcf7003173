"""Query functions, declared by putting their SQL above their signature."""

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from api_server.state.database import EntityRow, Executor
from api_server.state.statements import Query, Statement, numbered

FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[Any]])


def statement(
    sql: str, *, prepared: bool = False, planned_once: bool = False
) -> Callable[[FunctionT], FunctionT]:
    """Declare a query function, which has a docstring instead of a body: its first argument runs the SQL, the
    others are its parameters.

    The return annotation determines the result: `None`; an attrs class `Row` (raises `NotFound` without a
    row), `Row | None`, `list[Row]`; a scalar, which is the first column of the first row (`int | None`: None
    without a row); `list[int]`, the first column of all rows. `bool` is the scalar of a statement that yields
    rows; for a statement that yields none, it is whether any row was touched. An `entity_statement` yields
    the entity's JSON as `str`, or as `str | None`.

    An argument that is an attrs object provides the parameters that are named like its fields and that no
    other argument provides; a collection is passed as an array. An argument that the SQL does not use, or a
    parameter without an argument, raises TypeError at import.

    `prepared` and `planned_once` are explained at `Statement`.
    """

    def declare(function: FunctionT) -> FunctionT:
        row: Any
        row, method, convert = _result(typing.get_type_hints(function)["return"], sql)
        query: Query[Any]
        if isinstance(sql, Query):
            query = sql
        elif prepared:
            query = Statement(sql, row, planned_once=planned_once)
        else:
            query = Query(sql, row)
        signature = inspect.signature(function)
        parameters_of = _parameters(function, signature, query)
        names = list(signature.parameters)[1:]

        @functools.wraps(function)
        def call(executor: Executor, *values: Any, **kwargs: Any) -> Awaitable[Any]:
            arguments = dict(zip(names, values, strict=False)) | kwargs
            if len(arguments) != len(names) or len(values) > len(names):
                bound = signature.bind(executor, *values, **kwargs)  # raises TypeError, or fills in defaults
                bound.apply_defaults()
                arguments = dict(list(bound.arguments.items())[1:])
            result: Awaitable[Any] = getattr(executor, method)(query, **parameters_of(arguments))
            return result if convert is None else _converted(result, convert)

        call.statement = query  # type: ignore[attr-defined]
        return typing.cast("FunctionT", call)

    return declare


def _parameters(
    function: Callable[..., Any], signature: inspect.Signature, query: str
) -> Callable[[dict[str, Any]], Mapping[str, Any]]:
    """Return the function that converts arguments to the parameters of the SQL. Raise TypeError if they do
    not match."""
    hints = typing.get_type_hints(function)
    arguments = list(signature.parameters.values())[1:]
    needed = set(numbered(query)[1]) - {"now"}
    rest = next((argument.name for argument in arguments if argument.kind is argument.VAR_KEYWORD), None)
    plain = {argument.name for argument in arguments if not attrs.has(hints[argument.name])} - {rest}
    arrays = {name for name in plain if _is_collection(hints[name])}
    objects = {
        argument.name: (needed - plain) & {field.name for field in attrs.fields(hints[argument.name])}
        for argument in arguments
        if attrs.has(hints[argument.name])
    }
    of_objects = [name for names in objects.values() for name in names]
    without = needed - plain - set(of_objects)
    clashes = len(of_objects) != len(set(of_objects))
    if plain - needed or not all(objects.values()) or clashes or (without and rest is None):
        raise TypeError(
            f"{function.__module__}.{function.__qualname__}: the SQL takes {sorted(needed)}, the function"
            f" {[argument.name for argument in arguments]}"
        )
    if not (objects or arrays or rest):
        return lambda values: values

    def parameters_of(values: dict[str, Any]) -> dict[str, Any]:
        parameters = {
            name: list(value) if name in arrays and value is not None else value
            for name, value in values.items()
            if name in plain
        }
        for name, fields in objects.items():
            parameters |= {field: getattr(values[name], field) for field in fields}
        if rest is not None:
            parameters |= {name: values[name] for name in values.keys() - plain - objects.keys() - {rest}}
            parameters |= values.get(rest, {})
        return parameters

    return parameters_of


def _is_collection(hint: Any) -> bool:
    return any(
        isinstance(kind := typing.get_origin(arm) or arm, type)
        and issubclass(kind, Iterable)
        and not issubclass(kind, (str, bytes, list, Mapping))
        for arm in _arms(hint)
    )


def _arms(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _result(hint: Any, sql: str) -> tuple[type | None, str, Callable[[Any], Any] | None]:
    """Return the row class, the method of `Executor` and the conversion that produce this return type."""
    arms = [arm for arm in _arms(hint) if arm is not types.NoneType]
    optional = len(arms) < len(_arms(hint))
    if not arms:
        return None, "run", None
    origin = typing.get_origin(arms[0])
    if isinstance(sql, Query) and sql.row is EntityRow and arms == [str]:
        return EntityRow, "entity_if_there" if optional else "entity", None
    if isinstance(origin, type) and issubclass(origin, Collection):
        (item,) = typing.get_args(arms[0])
        return (item, "rows", None) if attrs.has(item) else (None, "column", origin)
    if len(arms) == 1 and attrs.has(arms[0]):
        return arms[0], "row" if optional else "one", None
    if arms == [bool] and not optional:
        return None, "truth", None
    return None, "value", None


async def _converted(result: Awaitable[Any], convert: Callable[[Any], Any]) -> Any:
    return convert(await result)
