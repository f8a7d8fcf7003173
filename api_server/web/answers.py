"""Successful answers: JSON that PostgreSQL has made already, passed through as text; names of what is saved; and
whether anybody still waits."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson
from aiohttp import web

_UNQUOTABLE = re.compile(r'["\\\x00-\x1f\x7f]')


def json_text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An entity's or a list's JSON text as it is."""
    return web.Response(body=text.encode(), status=status, content_type="application/json", headers=headers)


def json_value(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A small value made in Python."""
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json", headers=headers
    )


def no_content() -> web.Response:
    return web.Response(status=204)


def has_left(request: web.Request) -> bool:
    """Whether the client has closed its connection, so that nobody gets the answer."""
    return request.transport is None or request.transport.is_closing()


def attachment(name: str, *, briefly: bool = False) -> str:
    """Return the `Content-Disposition` (RFC 6266) of something to be saved as `name`: as much of the name as ASCII
    holds, and all of it. `briefly` leaves out the latter where both are the same.
    """
    quotable = _UNQUOTABLE.sub("_", name.encode("ascii", "replace").decode())
    brief = f'attachment; filename="{quotable}"'
    return brief if briefly and quotable == name else f"{brief}; filename*=UTF-8''{quote(name, safe='')}"
