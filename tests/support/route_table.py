"""The API's declared routes, and requests for each of them, made from its parameter class."""

import datetime
import enum
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

import attrs
import pytest

from api_server.api import ROUTES as API
from api_server.web.params import CommaList, Unset, public_name
from api_server.web.routes import Route

ROUTES: list[Route] = [route for routes in API for route in routes.routes]


def name_of(route: Route) -> str:
    """Return `GET /projects/{id}`, for tables and test ids."""
    return f"{route.method} {route.path}"


def in_parts(routes: Sequence[Route], count: int) -> pytest.MarkDecorator:
    """Run the test with each of `count` equal parts of the `routes`, each of which is cheap enough for every day."""
    names = [f"part {number} of {count}" for number in range(1, count + 1)]
    return pytest.mark.parametrize("routes", [routes[start::count] for start in range(count)], ids=names)


#: Parameters that handlers need but their parameter class cannot require, such as one of several.
_ONE_OF: dict[str, dict[str, Any]] = {
    "POST /projects": {"path": "example"},
    "POST /users": {"force_random_password": True},
    "POST /groups/{id}/members": {"user_id": 999_999_999},
    "POST /projects/{id}/members": {"user_id": 999_999_999},
    "POST /projects/{id}/runners": {"runner_id": 999_999_999},
    "PUT /projects/{id}/releases/{tag_name}/assets/links/{link_id}": {"name": "example"},
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes/{note_id}": {
        "body": "example"
    },
    "POST /projects/{id}/pipeline_schedules": {"cron": "0 4 1 1 *"},
}


def required(route: Route) -> dict[str, Any]:
    """Return values for the parameters that the route's request requires, except those of its path."""
    return _required_by_class(route) | _ONE_OF.get(name_of(route), {})


def _required_by_class(route: Route) -> dict[str, Any]:
    if route.parameters is None:
        return {}
    in_path = set(re.findall(r"{(\w+)", route.path))
    return {
        public_name(field): example(field.type)
        for field in attrs.fields(route.parameters)
        if field.default is attrs.NOTHING and field.name not in in_path
    }


def example(wanted: Any) -> Any:
    """Return a JSON value that a parameter of that type accepts."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return example(next(arm for arm in arguments if arm not in (type(None), Unset)))
    if origin is Annotated:
        return example(arguments[0])
    if origin is Literal:
        return arguments[-1]
    if origin in (list, CommaList):
        return [example(arguments[0])]
    if origin is dict:
        return {"key": "value"}
    if attrs.has(wanted):
        return {
            field.name: example(field.type)
            for field in attrs.fields(wanted)
            if field.default is attrs.NOTHING
        }
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return list(wanted)[-1].value
    return _EXAMPLES[wanted]


_EXAMPLES: Mapping[Any, Any] = {
    int: 1,
    float: 1.5,
    bool: True,
    str: "example",
    datetime.date: "2999-01-01",
    datetime.datetime: "2999-01-01T00:00:00Z",
}


def path_of(route: Route, values: Mapping[str, object], other: object = 1) -> str:
    """Return the route's path with `values`, or `other`, for its parameters, percent-encoded."""
    return re.sub(
        r"{(\w+)(?::[^{}]*(?:{[^{}]*})?[^{}]*)?}",
        lambda match: quote(str(values.get(match[1], other)), safe=""),
        route.path,
    )
