"""Parameters that GitLab has and that this service does not support (decision D11).

unsupported.txt lists them for each route. Their values are checked, and the answer names them, so that no
client believes that they had an effect.
"""

import datetime
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.web import context
from api_server.web.errors import bad_parameters
from api_server.web.params import CommaList, Upload, check

HEADER = "X-Ignored-Parameters"
_NOT_WANTED = (None, False, "", "false", "0", 0)
_TYPES: Mapping[str, Any] = {
    "boolean": bool,
    "integer": int,
    "number": float,
    "string": str,
    "date": datetime.date,
    "date-time": datetime.datetime,
    "strings": CommaList[str],
    "integers": CommaList[int],
    "object": dict[str, Any],
    "objects": list[dict[str, Any]],
    "file": Upload,
}

_IGNORED = web.RequestKey("unsupported_parameters", list[str])


@attrs.frozen
class Ignored:
    """A parameter that is ignored, or refused if `metadata` says so; it serves as a field for `params.check`.
    Null counts as not sent, whatever its `type` says."""

    name: str
    type: Any
    metadata: Mapping[str, bool]
    default: None = None


@functools.cache
def ignored_parameters() -> Mapping[str, tuple[Ignored, ...]]:
    """Return the ignored parameters by route ("GET /users")."""
    ignored: defaultdict[str, list[Ignored]] = defaultdict(list)
    routes: list[str] = []
    ends = True  # the next line begins a new group of routes
    for line in resources.files("api_server.web").joinpath("unsupported.txt").read_text().splitlines():
        if line.startswith(" "):
            parameters = list(_read(line))
            for route in routes:
                ignored[route] += parameters
            ends = True
        elif line and not line.startswith("#"):
            routes = [line] if ends else [*routes, line]
            ends = False
    return {route: tuple(parameters) for route, parameters in ignored.items()}


def _read(line: str) -> Iterator[Ignored]:
    """Yield the parameters of a line `type: names`."""
    about, _, names = line.strip().partition(": ")
    kind, _, refused = about.partition(", ")
    type_ = _TYPES[kind] if kind in _TYPES else Literal[tuple(kind.split("|"))]
    metadata = {"refused": True} if refused else {"cleared_by_empty": True} if kind == "file" else {}
    for name in names.split():
        yield Ignored(name, type_, metadata)


def check_ignored(request: web.Request, data: dict[str, Any], ignored: tuple[Ignored, ...]) -> None:
    """Remember which of the `ignored` parameters were sent. Raise 400 for values that GitLab would refuse, and
    for parameters that must not be sent."""
    parameters = [parameter for parameter in ignored if parameter.name in data]
    if not parameters:
        return
    refuses_all = context.services(request).settings.unsupported_parameters == "refuse"
    refused = [
        parameter.name
        for parameter in parameters
        if refuses_all or _is_refused(parameter, data[parameter.name])
    ]
    check(data, parameters)
    if refused:
        raise bad_parameters(*(f"{name} is not supported by this service" for name in refused))
    request[_IGNORED] = [parameter.name for parameter in parameters]


def _is_refused(parameter: Ignored, value: Any) -> bool:
    return bool(parameter.metadata.get("refused")) and value not in _NOT_WANTED


def ignore(request: web.Request, name: str) -> None:
    """Record a sent parameter that the route supports for other callers but not for this one. Raise 400 if
    unsupported parameters are refused."""
    if context.services(request).settings.unsupported_parameters == "refuse":
        raise bad_parameters(f"{name} is not supported by this service")
    request[_IGNORED] = [*request.get(_IGNORED, []), name]


def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """List the ignored parameters in a response header."""
    if _IGNORED in request and not response.prepared:
        names = request[_IGNORED]
        response.headers[HEADER] = ", ".join(names)
