"""`GET /openapi.json`: the API's description, for programs."""

import asyncio
import gzip
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import orjson
from aiohttp import hdrs, web

from api_server.services import Key, Services
from api_server.web.routes import ANYONE, Route, Routes

routes = Routes()


@attrs.frozen
class Operation:
    method: str
    path: str
    summary: str


@attrs.frozen
class Resource:
    name: str
    description: str
    operations: tuple[Operation, ...]


@attrs.frozen
class RenderedDescription:
    """The description as text, compressed to a tenth of its size."""

    compressed: bytes
    etag: str
    #: The outline that a page shows.
    outline: tuple[Resource, ...]


class Description:
    """The description, written in a thread on the first request: that takes a tenth of a second."""

    def __init__(self, described: Iterable[Routes], base_path: str) -> None:
        self._base_path = base_path
        self._routes = [route for of_resource in described for route in of_resource.routes]
        self._rendered: RenderedDescription | None = None
        self._lock = asyncio.Lock()

    async def rendered(self) -> RenderedDescription:
        async with self._lock:
            if self._rendered is None:
                self._rendered = await asyncio.to_thread(_render, self._routes, self._base_path)
            return self._rendered


DESCRIPTION = Key[Description]("description")


def setup(services: Services, described: Iterable[Routes], base_path: str) -> None:
    """Set up the description; `base_path` is that of the service's URL: empty, or `/forgelet`."""
    services[DESCRIPTION] = Description(described, base_path)


@routes.get("/openapi.json", access=ANYONE, answers="200 object")
async def show_description(request: web.Request, services: Services) -> web.Response:
    """Return this description, in OpenAPI 3.1."""
    rendered = await services[DESCRIPTION].rendered()
    headers = {
        hdrs.ETAG: rendered.etag,
        hdrs.VARY: hdrs.ACCEPT_ENCODING,
        hdrs.CACHE_CONTROL: "max-age=0, public, must-revalidate",
    }
    if "gzip" not in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        body = await asyncio.to_thread(gzip.decompress, rendered.compressed)
        return web.Response(body=body, content_type="application/json", headers=headers)
    headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=rendered.compressed, content_type="application/json", headers=headers)


def _render(described: list[Route], base_path: str) -> RenderedDescription:
    # imported on the first call: no other request needs it
    from api_server.description.document import document

    description = document(described, base_path)
    text = orjson.dumps(description)
    etag = f'W/"{hashlib.sha256(text).hexdigest()[:32]}"'
    return RenderedDescription(gzip.compress(text, 6, mtime=0), etag, tuple(_outline(description)))


def _outline(description: dict[str, Any]) -> Iterator[Resource]:
    for tag in description["tags"]:
        operations = [
            Operation(method.upper(), path, operation["summary"])
            for path, item in description["paths"].items()
            for method, operation in item.items()
            if tag["name"] in operation["tags"]
        ]
        yield Resource(tag["name"].replace("_", " ").capitalize(), tag["description"], tuple(operations))
