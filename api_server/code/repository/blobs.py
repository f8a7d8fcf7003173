"""A file's bytes as an answer: in pieces from git to the client, no faster than it reads, whatever their size."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from aiohttp import hdrs, web

from api_server.git import trees
from api_server.git.repositories import Repository
from api_server.git.trees import IN_MEMORY_BYTES, Entry
from api_server.web.answers import cut_to, matches_etag, not_modified, send_part, wanted_part
from common.http_fields import rejoined

Place = AbstractAsyncContextManager[None]
#: What the first bytes of a file add to the head of the answer.
Describe = Callable[[bytes], Mapping[str, str]]
_DESCRIBED_BYTES = 512


async def send(
    request: web.Request,
    repository: Repository,
    entry: Entry,
    headers: Mapping[str, str],
    place: Place,
    describe: Describe | None = None,
) -> web.StreamResponse:
    """200, 206, or 304 before anything is read; nothing is read either for a HEAD that needs no description.

    `headers` have the entity tag; `place` is held while a large file flows. Raises 416.
    """
    if matches_etag(request, headers[hdrs.ETAG]):
        return not_modified(headers)
    size = entry.size or 0
    part = wanted_part(request, size, headers[hdrs.ETAG])
    told = {**headers, **part.headers}
    if request.method == "HEAD" and describe is None:
        return web.StreamResponse(status=part.status, headers=told)
    if size <= IN_MEMORY_BYTES:
        data = await asyncio.to_thread(trees.read_blob, repository, entry)
        told |= describe(data[:_DESCRIBED_BYTES]) if describe else {}
        return web.Response(status=part.status, body=data[part.start : part.end], headers=told)
    async with place, trees.stream_blob(repository, entry) as chunks:
        first = await _first(chunks)
        told |= describe(first[:_DESCRIBED_BYTES]) if describe else {}
        return await send_part(request, cut_to(rejoined(first, chunks), part), part, told)


async def _first(chunks: AsyncIterator[bytes]) -> bytes:
    """So many bytes that they can be described, or all."""
    first = b""
    while len(first) < _DESCRIBED_BYTES and (chunk := await anext(chunks, None)) is not None:
        first += chunk
    return first


async def send_json(
    request: web.Request,
    repository: Repository,
    entry: Entry,
    values: dict[str, Any],
    headers: Mapping[str, str],
    place: Place,
) -> web.StreamResponse:
    """`values` as JSON with the file's bytes in base64 as `content`, and their digest as `content_sha256`; to HEAD as
    many bytes as that would be. `headers` have the entity tag; `place` is held while a large file flows.

    A large file is read twice, the digest coming first, so that it need not be in memory.
    """
    if matches_etag(request, headers[hdrs.ETAG]):
        return not_modified(headers)
    size = entry.size or 0
    length = len(_json(values, _EMPTY_DIGEST)) + 4 * -(-size // 3)
    told = {**headers, hdrs.CONTENT_LENGTH: str(length)}
    if request.method == "HEAD":
        return web.StreamResponse(headers=told)
    if size <= IN_MEMORY_BYTES:
        data = await asyncio.to_thread(trees.read_blob, repository, entry)
        content = base64.b64encode(data).decode()
        return web.Response(body=_json(values, hashlib.sha256(data).hexdigest(), content), headers=told)
    async with place:
        before = _json(values, await _digest(repository, entry)).removesuffix(_AFTER)
        response = web.StreamResponse(headers=told)
        await response.prepare(request)
        await response.write(before)
        async with trees.stream_blob(repository, entry) as chunks:
            async for piece in _base64(chunks):
                await response.write(piece)
        await response.write_eof(_AFTER)
        return response


#: What follows the content.
_AFTER = b'"}'
_EMPTY_DIGEST = hashlib.sha256().hexdigest()


def _json(values: Mapping[str, Any], digest: str, content: str = "") -> bytes:
    return orjson.dumps({**values, "content_sha256": digest, "content": content})


async def _digest(repository: Repository, entry: Entry) -> str:
    digest = hashlib.sha256()
    async with trees.stream_blob(repository, entry) as chunks:
        async for chunk in chunks:
            digest.update(chunk)
    return digest.hexdigest()


async def _base64(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        whole = rest + chunk
        end = len(whole) - len(whole) % 3
        rest = whole[end:]
        yield base64.b64encode(whole[:end])
    yield base64.b64encode(rest)
