"""Taking an upload apart while it comes: its file goes straight into the object store, its fields are few and small."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import attrs
from aiohttp import hdrs, web

from api_server.state.objects import Objects
from api_server.web import request_data
from api_server.web.errors import ApiError, bad_parameters, bad_request

_FIELD_BYTES = 1024
_FIELDS = 20
#: What a body has at most besides the file.
_FORM_BYTES = 64 * 1024


@attrs.frozen
class Received:
    """A file that is in the object store now, and nowhere else yet."""

    key: str
    filename: str
    size: int
    sha256: bytes
    fields: Mapping[str, str]


async def receive(
    request: web.Request, objects: Objects, folder: str, grow: Callable[[int], None]
) -> Received:
    """Stores the part `file` of a multipart body below `folder`; the other parts are fields. `grow` is told how many
    bytes the file has, as it comes, and first of all how many it has at least. Raises 400, and what `grow` raises;
    nothing is stored then."""
    if request.content_type != "multipart/form-data":
        raise bad_parameters("file is missing")
    grow(max(0, (request.content_length or 0) - _FORM_BYTES))
    request_data.refuse_encoded_parts(request)
    fields: dict[str, str] = {}
    stored: dict[str, Any] = {}
    try:
        parts = _Parts(request_data.pieces(request), request.headers[hdrs.CONTENT_TYPE])
        while part := await parts.next():
            name, filename = part
            if name == "file" and not stored:
                stored = await _store(parts.content(), filename, objects, folder, grow)
            else:
                fields[name] = (await parts.short(parts.delimiter, _FIELD_BYTES)).decode(errors="replace")
    except ValueError:
        await objects.discard(filter(None, [stored.get("key")]))
        raise bad_request("the form is not understood") from None
    except BaseException:
        await objects.discard(filter(None, [stored.get("key")]))
        raise
    if not stored:
        raise bad_parameters("file is missing")
    return Received(**stored, fields=fields)


def too_large(reason: str = "") -> ApiError:
    """413, after which runners do not try again."""
    text = "413 Request Entity Too Large"
    return ApiError(413, {"message": f"{text} - {reason}" if reason else text})


class _Parts:
    """The parts of a body, one after the other: of each either its content or, if that is short, all of it."""

    def __init__(self, coming: AsyncIterator[bytes], content_type: str) -> None:
        """Raises ValueError."""
        self.delimiter = b"\r\n" + request_data.boundary_of(content_type)
        self._coming = coming
        self._buffer = b"\r\n"  # so that the first delimiter is like the others
        self._number = 0  # of parts, which may have one name

    async def next(self) -> tuple[str, str | None] | None:
        """The names of the next part and of its file; None behind the last one. Raises ValueError."""
        if not self._number:
            await self.short(self.delimiter, request_data.MAX_PART_HEAD)
        self._number += 1
        while len(self._buffer) < len(b"--"):
            await self._more()
        if self._buffer.startswith(b"--"):
            await self._end()
            return None
        if self._number > _FIELDS:
            raise ValueError(self._number)
        return request_data.part_named(await self.short(b"\r\n\r\n", request_data.MAX_PART_HEAD))

    async def content(self) -> AsyncIterator[bytes]:
        """Up to the next delimiter, as it comes."""
        async for piece in self._until(self.delimiter):
            yield piece

    async def short(self, end: bytes, most: int) -> bytes:
        """What comes before `end`, of `most` bytes."""
        before = b""
        async for piece in self._until(end):
            before += piece
            if len(before) > most:
                raise ValueError(most)
        return before

    async def _end(self) -> None:
        """A connection serves the next request once the body has been read."""
        while len(self._buffer) <= request_data.MAX_PART_HEAD:
            piece = await anext(self._coming, b"")
            if not piece:
                return
            self._buffer += piece
        raise ValueError("more comes behind the last part")

    async def _until(self, end: bytes) -> AsyncIterator[bytes]:
        while (at := self._buffer.find(end)) < 0:
            certain = len(self._buffer) - len(end) + 1
            if certain > 0:
                piece, self._buffer = self._buffer[:certain], self._buffer[certain:]
                yield piece
            await self._more()
        piece, self._buffer = self._buffer[:at], self._buffer[at + len(end) :]
        yield piece

    async def _more(self) -> None:
        piece = await anext(self._coming, b"")
        if not piece:
            raise ValueError("the body ends too early")
        self._buffer += piece


async def _store(
    content: AsyncIterator[bytes],
    filename: str | None,
    objects: Objects,
    folder: str,
    grow: Callable[[int], None],
) -> dict[str, Any]:
    key = f"{folder}/{secrets.token_hex(16)}"
    digest = hashlib.sha256()
    size = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal size
        async for chunk in content:
            size += len(chunk)
            grow(size)
            digest.update(chunk)
            yield chunk

    await objects.put(key, chunks())
    return {"key": key, "filename": _plain(filename), "size": size, "sha256": digest.digest()}


def _plain(name: str | None) -> str:
    """A file name that can be shown and sent in a header."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:255] or "artifacts.zip"
