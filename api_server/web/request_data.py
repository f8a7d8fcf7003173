"""What a request sends: path, query, form and JSON body, merged by name before anything is made of them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from api_server.web.errors import bad_parameters

MAX_FIELDS = 1000
MAX_DEPTH = 32

_MERGED = web.RequestKey("merged_parameters", dict)


async def merged(request: web.Request) -> dict[str, Any]:
    """Everything that was sent, by name; where a name comes twice the path wins, then the body, then the query."""
    if _MERGED not in request:
        sent = _query(request) | await _body(request) | dict(request.match_info)
        request[_MERGED] = sent
    return request[_MERGED]


def in_url(request: web.Request) -> dict[str, Any]:
    """What stands in path and query, the path winning."""
    return _query(request) | dict(request.match_info)


def _query(request: web.Request) -> dict[str, Any]:
    return _nested(_pairs(request.rel_url.raw_query_string))


def _pairs(encoded: str) -> list[tuple[str, Any]]:
    try:
        return parse_qsl(encoded, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise bad_parameters("parameters are not valid UTF-8") from None
    except ValueError:
        raise bad_parameters(f"more than {MAX_FIELDS} parameters") from None


async def _body(request: web.Request) -> dict[str, Any]:
    if not request.can_read_body:
        return {}
    if request.content_type == "application/json":
        return _json(await request.read())
    if request.content_type == "application/x-www-form-urlencoded":
        try:
            return _nested(_pairs((await request.read()).decode()))
        except UnicodeDecodeError:
            raise bad_parameters("parameters are not valid UTF-8") from None
    if request.content_type == "multipart/form-data":
        return _nested(
            [(name, value) for name, value in (await read_form(request)).items() if isinstance(value, str)]
        )
    return {}


async def read_form(request: web.Request) -> Mapping[str, Any]:
    """The fields of an HTML form. Raises 400 where it cannot be read."""
    try:
        return await request.post()
    except (ValueError, AssertionError, LookupError, HttpProcessingError) as problem:
        raise bad_parameters("the form cannot be read") from problem


def _json(text: bytes) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise bad_parameters("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise bad_parameters("the body is not a JSON object")
    return body


def _nested(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`a=1&b[]=2&c[d]=3&e[0][f]=4&g[][h]=5` as `{a: 1, b: [2], c: {d: 3}, e: {0: {f: 4}}, g: [{h: 5}]}`."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        keys = _keys(name)
        if len(keys) > MAX_DEPTH:
            raise bad_parameters(f"{keys[0]} is nested too deeply")
        _put(result, keys, value)
    return result


def _keys(name: str) -> list[str]:
    first, bracket, rest = name.partition("[")
    return (
        [first, *rest.removesuffix("]").split("][")] if bracket and rest.endswith("]") and first else [name]
    )


def _put(target: dict[str, Any], keys: list[str], value: Any) -> None:
    key, *inner = keys
    if not inner:
        target[key] = value
    elif inner[0] == "":
        items = target.setdefault(key, [])
        if not isinstance(items, list):
            raise bad_parameters(f"{key} is invalid")
        if len(inner) == 1:
            items.append(value)
            return
        # `g[][h]=1&g[][i]=2` is one object; a name that comes again starts the next
        if not items or not isinstance(items[-1], dict) or inner[1] in items[-1]:
            items.append({})
        _put(items[-1], inner[1:], value)
    else:
        items = target.setdefault(key, {})
        if not isinstance(items, dict):
            raise bad_parameters(f"{key} is invalid")
        _put(items, inner, value)
