"""Successful answers: JSON that PostgreSQL has made already, passed through as text."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web


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
