"""Taking an upload apart while it comes: its file goes straight into the object store, its fields are few and small."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import attrs
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from api_server.state.objects import CHUNK, Objects
from api_server.web import request_body
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
    await request_body.ask_for_parts(request)
    fields: dict[str, str] = {}
    stored: dict[str, Any] = {}
    try:
        number = 0  # of parts, which may have one name, or none
        async for part in await request.multipart():
            number += 1
            if not isinstance(part, BodyPartReader) or number > _FIELDS:
                raise bad_request("the form is not understood")
            if part.name == "file" and not stored:
                stored = await _store(part, objects, folder, grow)
            elif part.name:
                fields[part.name] = await _field(part)
    except (ValueError, HttpProcessingError):
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


async def _store(
    part: BodyPartReader, objects: Objects, folder: str, grow: Callable[[int], None]
) -> dict[str, Any]:
    key = f"{folder}/{secrets.token_hex(16)}"
    digest = hashlib.sha256()
    size = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal size
        while chunk := await part.read_chunk(CHUNK):
            size += len(chunk)
            grow(size)
            digest.update(chunk)
            yield bytes(chunk)

    await objects.put(key, chunks())
    return {"key": key, "filename": _plain(part.filename), "size": size, "sha256": digest.digest()}


def _plain(name: str | None) -> str:
    """A file name that can be shown and sent in a header."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:255] or "artifacts.zip"


async def _field(part: BodyPartReader) -> str:
    text = b""
    while chunk := await part.read_chunk(_FIELD_BYTES):
        text += chunk
        if len(text) > _FIELD_BYTES:
            raise bad_request("a field of the form is too long")
    return text.decode(errors="replace")
