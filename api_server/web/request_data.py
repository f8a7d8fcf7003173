"""What a request sends: path, query, form and JSON body, merged by name before anything is made of them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from api_server.web import context, request_body
from api_server.web.errors import ApiError, bad_parameters

MAX_FIELDS = 1000
MAX_DEPTH = 32

#: Where credentials may stand outside of bodies.
_IN_HEADERS = ("PRIVATE-TOKEN", "JOB-TOKEN", hdrs.AUTHORIZATION)
_IN_QUERY = frozenset({"private_token", "job_token", "token"})

_MERGED = web.RequestKey("merged_parameters", dict)
_LIMIT = web.RequestKey("body_limit", int)


async def merged(request: web.Request) -> dict[str, Any]:
    """Everything that was sent, by name; where a name comes twice the path wins, then the body, then the query.

    Of a body whose sender is not known yet, no more is read than `limit_body` has said. Raises 413 above that.
    """
    if _MERGED not in request:
        limit = request.get(_LIMIT) or context.settings(request).body_limit
        sent = _query(request) | await _body(request, limit) | _path(request)
        request[_MERGED] = sent
    return request[_MERGED]


def limit_body(request: web.Request, limit: int) -> None:
    """Lets `merged` take no more than `limit` bytes of a body."""
    request[_LIMIT] = limit


async def with_credentials(request: web.Request) -> dict[str, Any]:
    """What was sent, as far as it is looked at before the caller is known: the query, and a body that certainly has no
    more than `early_body_limit` bytes. Others are read up to there where there are no credentials elsewhere."""
    if not request.body_exists:
        return in_url(request)
    limit, length = context.settings(request).early_body_limit, request.content_length
    if length is None or length > limit or hdrs.CONTENT_ENCODING in request.headers:
        elsewhere = in_url(request)
        has_credentials = any(name in request.headers for name in _IN_HEADERS) or _IN_QUERY & elsewhere.keys()
        if has_credentials or (length or 0) > limit:
            return elsewhere
        limit_body(request, limit)
    try:
        return await merged(request)
    except (ApiError, web.HTTPRequestEntityTooLarge):
        return in_url(request)  # who is known is told later what is wrong with it


def in_url(request: web.Request) -> dict[str, Any]:
    """What stands in path and query, the path winning."""
    return _query(request) | _path(request)


def _path(request: web.Request) -> dict[str, str]:
    if "%" in request.rel_url.raw_path and not _is_utf8(unquote_to_bytes(request.rel_url.raw_path)):
        raise bad_parameters("parameters are not valid UTF-8")
    return dict(request.match_info)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _query(request: web.Request) -> dict[str, Any]:
    return fields_of(request.rel_url.raw_query_string)


def fields_of(encoded: str) -> dict[str, Any]:
    """What a query, or the body of a form, says. Raises 400 where it cannot be read."""
    return _nested(_pairs(encoded))


def _pairs(encoded: str) -> list[tuple[str, Any]]:
    try:
        return parse_qsl(encoded, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise bad_parameters("parameters are not valid UTF-8") from None
    except ValueError:
        raise bad_parameters(f"more than {MAX_FIELDS} parameters") from None


async def _body(request: web.Request, limit: int) -> dict[str, Any]:
    if not request.body_exists:
        return {}
    if request.content_type == "application/json":
        return _json(await request_body.read(request, limit))
    if request.content_type == "application/x-www-form-urlencoded":
        return _nested(_form_pairs(await request_body.read(request, limit)))
    if request.content_type == "multipart/form-data":
        form = await _parts(request, limit)
        # a file is a mapping, which fits no text: nobody takes one here, but it has been sent
        return _nested([(name, value if isinstance(value, str) else {}) for name, value in form.items()])
    return {}


async def read_form(request: web.Request, limit: int) -> Mapping[str, Any]:
    """The fields of an HTML form of at most `limit` bytes. Raises 400 where it cannot be read, or has a NUL, which no
    browser sends and no table keeps; and 413."""
    if not request.body_exists:
        return {}
    if request.content_type == "application/x-www-form-urlencoded":
        form: Mapping[str, Any] = dict(_form_pairs(await request_body.read(request, limit)))
    else:
        form = await _parts(request, limit)
    if any("\0" in value for value in form.values() if isinstance(value, str)):
        raise bad_parameters("the form has a NUL character")
    return form


def _form_pairs(body: bytes) -> list[tuple[str, Any]]:
    try:
        return _pairs(body.decode())
    except UnicodeDecodeError:
        raise bad_parameters("parameters are not valid UTF-8") from None


async def _parts(request: web.Request, limit: int) -> Mapping[str, Any]:
    """A form of several parts, which aiohttp takes apart: files go to the disk."""
    await request_body.hold_form(request, limit)
    try:
        form = await request.post()
        for value in form.values():
            if isinstance(value, str):
                value.encode()  # what its part says of its charset may have made anything of it
        return form
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
