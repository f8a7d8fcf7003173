"""What users have stored, as an answer: the whole or a part, straight from the object store."""

from collections.abc import Mapping
from contextlib import aclosing

from aiohttp import hdrs, web

from api_server.state.objects import Objects
from api_server.web.conditional import matches, not_modified
from api_server.web.ranges import wanted_part
from api_server.web.sending import send_part
from common.http_fields import rejoined

#: Others made these bytes: nothing in them may run in a browser.
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-cache",
}


async def send_stored(
    request: web.Request, objects: Objects, key: str, size: int, sha256: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """The object of `size` bytes under `key`, whose entity tag is `sha256`, or what of it `Range` asks for.

    Raises FileNotFoundError where it has been deleted, and 416.
    """
    etag = f'"{sha256}"'
    whole = SAFETY | {hdrs.ETAG: etag} | dict(headers)
    if matches(request, etag):
        return not_modified(whole)
    part = wanted_part(request, size, etag)
    async with aclosing(objects.read(key, part.start, part.end)) as chunks:
        first = await anext(chunks, b"")
        return await send_part(request, rejoined(first, chunks), part, whole)
