"""Responses with a file at a ref: its attributes, and its bytes, which are streamed from git no faster than the client
reads."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import attrs
import orjson
from aiohttp import hdrs, web
from cachetools import LRUCache

from api_server.code.entities import commit_named
from api_server.code.reading import reading
from api_server.git import trees
from api_server.git.commits import History, history
from api_server.git.repositories import Repository
from api_server.git.trees import IN_MEMORY_BYTES, Entry
from api_server.services import Key, Services
from api_server.web import context
from api_server.web.answers import attachment, cut_to, matches_etag, not_modified, requested_part, send_part
from api_server.web.errors import ApiError, not_found
from api_server.web.routes import caller_or_anonymous
from common.concurrency import TooBusy
from common.http_fields import rejoined

#: The same as for the API's other responses.
_PRIVATE: dict[str, str] = {hdrs.CACHE_CONTROL: "max-age=0, private, must-revalidate"}
#: Seconds that a file waits for its history.
_HISTORY_SECONDS = 3
#: Cache of the last commit that changed a path, up to a commit; it never changes.
LAST_COMMITS = Key[LRUCache[tuple[str, str], str]]("last_commits")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def setup(services: Services) -> None:
    services[LAST_COMMITS] = LRUCache(maxsize=10_000)


@attrs.frozen
class FoundFile:
    """A file that was found. `ref` is as the caller wrote it, `commit` is the full SHA that it names, and
    `last_commit` is the newest commit up to that one which changed the file."""

    entry: Entry
    ref: str
    commit: str
    last_commit: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """GitLab's entity without the content. The digest is left empty here."""
        return {
            "file_name": self.entry.path.rpartition("/")[2],
            "file_path": self.entry.path,
            "size": self.entry.size,
            "encoding": "base64",
            "content_sha256": "",
            "ref": self.ref,
            "blob_id": self.entry.id,
            "commit_id": self.commit,
            "last_commit_id": self.last_commit,
            "execute_filemode": self.entry.kind == "executable",
        }

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of the entity. Its entity tag can be computed without the content."""
        identity = repr((self.commit, self.entry.id, self.entry.kind, self.ref, self.entry.path))
        tag = hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:40]
        return {hdrs.CONTENT_TYPE: "application/json", hdrs.ETAG: f'"{tag}"'} | _PRIVATE | self._fields

    @property
    def raw_headers(self) -> dict[str, str]:
        """The header fields of the bytes alone, which browsers save and never show."""
        headers: dict[str, str] = {
            hdrs.CONTENT_TYPE: "application/octet-stream",
            hdrs.CONTENT_DISPOSITION: attachment(self.entry.path.rpartition("/")[2]),
            hdrs.ETAG: f'"{self.entry.id}"',
            "X-Content-Type-Options": "nosniff",
        }
        return headers | _PRIVATE | self._fields

    @property
    def _fields(self) -> dict[str, str]:
        """The entity's values as header fields with GitLab's names. The digest is left out, because the file would
        have to be read for it."""
        return {
            f"X-Gitlab-{name.replace('_', '-').title()}": _CONTROL.sub("_", _text(value))
            for name, value in self.values.items()
            if name != "content_sha256" and value is not None
        }

    def require_size(self, limit: int) -> None:
        """Raise 413 if the file is larger than `limit` bytes, too large for JSON."""
        if (self.entry.size or 0) > limit:
            raise ApiError(
                413,
                {
                    "message": f"413 Request Entity Too Large - files beyond {limit} bytes are read at "
                    "/projects/:id/repository/files/:file_path/raw"
                },
            )

    async def with_history(self, request: web.Request, repository: Repository) -> "FoundFile":
        """Return the file with its last commit, or without it if that takes too long to find."""
        cache = context.services(request)[LAST_COMMITS]
        key = self.commit, self.entry.path
        if key not in cache:
            with suppress(ApiError, TimeoutError, TooBusy):
                async with (
                    asyncio.timeout(_HISTORY_SECONDS),
                    reading(context.services(request), caller_or_anonymous(request)),
                ):
                    query = History(start=self.commit, path=self.entry.path)
                    (cache[key],) = await history(repository, query, skip=0, limit=1)
        return attrs.evolve(self, last_commit=cache.get(key))


def file_at(repository: Repository, ref: str, path: str) -> FoundFile:
    """Return the file at that path of a branch, tag or commit. Raise 404."""
    commit = commit_named(repository, ref)
    entry = trees.find_entry(repository, commit, path)
    if entry is None or not entry.is_blob:
        raise not_found("File")
    return FoundFile(entry, ref, commit)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Slot = AbstractAsyncContextManager[None]
#: A function that returns header fields for the first bytes of a file.
Describe = Callable[[bytes], Mapping[str, str]]
_DESCRIBED_BYTES = 512


async def send_raw(
    request: web.Request,
    repository: Repository,
    entry: Entry,
    headers: Mapping[str, str],
    slot: Slot,
    describe: Describe | None = None,
) -> web.StreamResponse:
    """Answer with the file's bytes: 200, 206, or 304 without reading anything. A HEAD request that needs no
    description reads nothing either.

    `headers` contain the entity tag. `slot` is held while a large file is streamed. Raise 416.
    """
    if matches_etag(request, headers[hdrs.ETAG]):
        return not_modified(headers)
    size = entry.size or 0
    part = requested_part(request, size, headers[hdrs.ETAG])
    all_headers = {**headers, **part.headers}
    if request.method == "HEAD" and describe is None:
        return web.StreamResponse(status=part.status, headers=all_headers)
    if size <= IN_MEMORY_BYTES:
        data = await asyncio.to_thread(trees.read_blob, repository, entry)
        all_headers |= describe(data[:_DESCRIBED_BYTES]) if describe else {}
        return web.Response(status=part.status, body=data[part.start : part.end], headers=all_headers)
    async with slot, trees.stream_blob(repository, entry) as chunks:
        first = await _first(chunks)
        all_headers |= describe(first[:_DESCRIBED_BYTES]) if describe else {}
        return await send_part(request, cut_to(rejoined(first, chunks), part), part, all_headers)


async def _first(chunks: AsyncIterator[bytes]) -> bytes:
    """Return enough of the first bytes to describe the file, or all of them."""
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
    slot: Slot,
) -> web.StreamResponse:
    """Answer with `values` as JSON, with the file's bytes in base64 as `content` and their digest as `content_sha256`.
    HEAD gets the length of that answer. `headers` contain the entity tag. `slot` is held while a large file is
    streamed.

    A large file is read twice, because the digest comes first and the file need not fit into memory.
    """
    if matches_etag(request, headers[hdrs.ETAG]):
        return not_modified(headers)
    size = entry.size or 0
    length = len(_json(values, _EMPTY_DIGEST)) + 4 * -(-size // 3)
    all_headers = {**headers, hdrs.CONTENT_LENGTH: str(length)}
    if request.method == "HEAD":
        return web.StreamResponse(headers=all_headers)
    if size <= IN_MEMORY_BYTES:
        data = await asyncio.to_thread(trees.read_blob, repository, entry)
        content = base64.b64encode(data).decode()
        return web.Response(
            body=_json(values, hashlib.sha256(data).hexdigest(), content), headers=all_headers
        )
    async with slot:
        before = _json(values, await _digest(repository, entry)).removesuffix(_AFTER)
        response = web.StreamResponse(headers=all_headers)
        await response.prepare(request)
        await response.write(before)
        async with trees.stream_blob(repository, entry) as chunks:
            async for chunk in _base64(chunks):
                await response.write(chunk)
        await response.write_eof(_AFTER)
        return response


#: The JSON after the content.
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
        data = rest + chunk
        end = len(data) - len(data) % 3
        rest = data[end:]
        yield base64.b64encode(data[:end])
    yield base64.b64encode(rest)
