"""The data of a request: path, query, form and JSON body, merged by name; and its body, decoded and of
limited size.

aiohttp's own access to a body (`request.content`, `read`, `post`) has neither Content-Encoding nor these
limits. Parameters are checked before rights, so anybody can have anything parsed. Therefore number and depth
are limited before any objects are made of the text, and all parsing takes linear time.
"""

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import attrs
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from yarl import URL

from api_server.services import Key
from api_server.web import context
from api_server.web.context import SERVICES
from api_server.web.errors import ApiError, BodyRefused, bad_parameters
from api_server.web.params import MAX_DEPTH, TooDeep, read_json
from common.client_address import one_client
from common.concurrency import aside
from common.connections import ask_for_body

#: The `wbits` of zlib by Content-Encoding (RFC 9110 section 8.4.1).
_CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
#: Maximum bytes decoded in one step, so that other requests do not wait long.
_STEP = 256 * 1024


class BodyMemory:
    """The number of bytes of bodies in memory: in total, and by client address."""

    def __init__(self, limit: int, limit_of_one: int) -> None:
        self._limit = limit
        self._limit_of_one = limit_of_one
        self.bytes = 0
        self._bytes_by: Counter[str] = Counter()

    def add(self, client: str, size: int) -> None:
        """Count `size` more bytes. Raise 503 if the total is too large, and 429 if the client's share is."""
        if self.bytes + size > self._limit:
            raise BodyRefused(503, "The server holds too many request bodies; try again later.", retry=True)
        if self._bytes_by[client] + size > self._limit_of_one:
            raise BodyRefused(429, "Too many request bodies at once; try again later.", retry=True)
        self.bytes += size
        self._bytes_by[client] += size

    def subtract(self, client: str, size: int) -> None:
        self.bytes -= size
        self._bytes_by[client] -= size
        if not self._bytes_by[client]:
            del self._bytes_by[client]


class _Share:
    """The share of one request in `BodyMemory`."""

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self._size = 0

    def add(self, size: int) -> None:
        self._memory.add(self._client, size)
        self._size += size

    def close(self) -> None:
        if self._size:
            self._memory.subtract(self._client, self._size)


BODY_MEMORY = Key[BodyMemory]("held_bodies")
#: A function that receives the body of the request piece by piece, as it is read.
BODY_LISTENER: web.RequestKey[Callable[[bytes], None]] = web.RequestKey("heard", Callable[[bytes], None])  # type: ignore[arg-type]
_SHARE = web.RequestKey("share", _Share)
_READ = web.RequestKey("read", bytearray)


@web.middleware
async def bounded_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Free the memory of a request's body when its answer is ready: sending the answer may take long."""
    if not request.body_exists:
        return await handler(request)
    share = request[_SHARE] = _Share(
        request.match_info.apps[0][SERVICES][BODY_MEMORY], one_client(request.remote or "")
    )
    try:
        return await handler(request)
    finally:
        for key in (_READ, _MERGED):
            request.pop(key, None)
        share.close()


async def read(request: web.Request, limit: int) -> bytearray:
    """Return the whole body, decoded, as a bytearray: copying it would take a millisecond for each megabyte.
    Raise 413 above `limit` bytes, and the errors of `chunks` and `BodyMemory`."""
    if _READ in request:
        return request[_READ]
    _check_length(request, limit)
    body = bytearray()
    async for chunk in chunks(request):
        if len(body) + len(chunk) > limit:
            raise web.HTTPRequestEntityTooLarge(limit)
        request[_SHARE].add(len(chunk))
        body += chunk
    request[_READ] = body
    return body


def refuse_encoded_parts(request: web.Request) -> None:
    """Raise 415 for a multipart body with a Content-Encoding."""
    if hdrs.CONTENT_ENCODING in request.headers:
        raise BodyRefused(415, "A body of several parts cannot have a Content-Encoding.")


def _check_length(request: web.Request, limit: int) -> None:
    """Raise 413 if the Content-Length exceeds `limit` bytes."""
    length = request.content_length
    if length is not None and length > limit:
        raise web.HTTPRequestEntityTooLarge(limit, length)


def chunks(request: web.Request) -> AsyncIterator[bytes]:
    """Return the body as it arrives, decoded, in chunks of at most some hundred KiB.

    Raise 415 for an unknown Content-Encoding, 400 for a body that does not match it, and 408 if the client
    stops sending.
    """
    listener = request.get(BODY_LISTENER)
    return _decoded(request) if listener is None else _observed(_decoded(request), listener)


async def _observed(body: AsyncIterator[bytes], listener: Callable[[bytes], None]) -> AsyncIterator[bytes]:
    async for chunk in body:
        listener(chunk)
        yield chunk


async def _decoded(request: web.Request) -> AsyncIterator[bytes]:
    coding = ", ".join(request.headers.getall(hdrs.CONTENT_ENCODING, ())).strip().lower() or "identity"
    if coding != "identity" and coding not in _CODINGS:
        raise BodyRefused(415, "The Content-Encoding is not supported; gzip and deflate are.")
    await ask_for_body(request)
    if coding == "identity":
        while chunk := await request.content.readany():
            yield chunk
        return
    decoder = _Decoder(coding)
    while chunk := await request.content.readany():
        for decoded in decoder.decode(chunk):
            yield decoded
            await asyncio.sleep(0)  # few bytes can decode to many
    decoder.end()


class _Decoder:
    """Decodes one Content-Encoding, in steps. Raises 400 for invalid or truncated data, and for several
    concatenated gzip members, which no client sends and which are slow to decode."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._undo = zlib.decompressobj(_CODINGS[coding])
        self._has_begun = False

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._undo.eof:
                raise self._cannot_be_decoded()
            if not self._has_begun and self._coding == "deflate" and chunk[0] & 0x0F != 8:
                self._undo = zlib.decompressobj(-15)  # without zlib's header, as many clients send it
            self._has_begun = True
            try:
                decoded = self._undo.decompress(chunk, _STEP)
            except zlib.error:
                raise self._cannot_be_decoded() from None
            chunk = self._undo.unconsumed_tail or self._undo.unused_data
            if decoded:
                yield decoded

    def end(self) -> None:
        """Raise 400 if the data is truncated. An empty body is valid."""
        if self._has_begun and not self._undo.eof:
            raise self._cannot_be_decoded()

    def _cannot_be_decoded(self) -> BodyRefused:
        return BodyRefused(400, f"The body is not valid {self._coding}.")


#: Maximum fields of a query or a form, parts of a multipart body, and fields of a form of our pages.
MAX_FIELDS = 1000
MAX_PAGE_FIELDS = 100
#: Maximum total of items and members of all lists and objects in a JSON body.
MAX_ELEMENTS = 10_000
#: Maximum bytes of a part's headers.
MAX_PART_HEAD = 4096
#: Size of a body whose parsing takes some milliseconds.
_LARGE = 2**20

#: Places of credentials outside of bodies.
_IN_HEADERS = ("PRIVATE-TOKEN", "JOB-TOKEN", hdrs.AUTHORIZATION)
_IN_QUERY = frozenset({"private_token", "job_token", "token"})

_MERGED = web.RequestKey("merged_parameters", dict)
_LIMIT = web.RequestKey("body_limit", int)


async def merged(request: web.Request) -> dict[str, Any]:
    """Return all parameters by name; if a name occurs twice, the path wins over the body, and the body over
    the query.

    Of a body whose sender is not yet known, at most as much is read as `limit_body` allows. Raise 413 above
    that.
    """
    if _MERGED not in request:
        limit = request.get(_LIMIT) or context.services(request).settings.body_limit
        parameters = _query(request) | await _body(request, limit) | _path(request)
        request[_MERGED] = parameters
    return request[_MERGED]


def limit_body(request: web.Request, limit: int) -> None:
    """Limit the body that `merged` reads to `limit` bytes."""
    request[_LIMIT] = limit


async def with_credentials(request: web.Request) -> dict[str, Any]:
    """Return the parameters that may contain credentials before the caller is known: those of the query, and
    of a body that has at most `early_body_limit` bytes. A body of unknown length is read up to that limit if
    there are no credentials elsewhere."""
    if not request.body_exists:
        return await merged(request)
    limit, length = context.services(request).settings.early_body_limit, request.content_length
    if length is None or length > limit or hdrs.CONTENT_ENCODING in request.headers:
        elsewhere = in_url(request)
        has_credentials = any(name in request.headers for name in _IN_HEADERS) or _IN_QUERY & elsewhere.keys()
        if has_credentials or (length or 0) > limit:
            return elsewhere
        limit_body(request, limit)
    try:
        return await merged(request)
    except (ApiError, web.HTTPRequestEntityTooLarge):
        return in_url(request)  # an authenticated caller gets the error later


def in_url(request: web.Request) -> dict[str, Any]:
    """Return the parameters in path and query; the path wins."""
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
    """Return the fields of a query or of a form's body. Raise 400 if it is malformed."""
    return _nested(_pairs(encoded, MAX_FIELDS))


def _pairs(encoded: str, max_pairs: int) -> list[tuple[str, Any]]:
    if not encoded:
        return []
    if encoded.count("&") >= max_pairs:
        raise bad_parameters(f"more than {max_pairs} parameters")
    # urllib creates an object for each escape, which takes sixty times as long and a hundred bytes
    pairs = list(URL.build(query_string=encoded, encoded=True).query.items())
    # yarl replaces invalid UTF-8 by U+FFFD
    replaced = sum(name.count(_REPLACED) + value.count(_REPLACED) for name, value in pairs)
    if replaced and replaced > encoded.count(_REPLACED) + len(_ENCODED_REPLACED.findall(encoded)):
        raise bad_parameters("parameters are not valid UTF-8")
    return pairs


_REPLACED = "\N{REPLACEMENT CHARACTER}"
_ENCODED_REPLACED = re.compile("%EF%BF%BD", re.IGNORECASE)


def media_type(request: web.Request) -> str:
    """Return the type of the body without parameters, in lower case. aiohttp's `content_type` has `email`
    parse the whole field, which takes 0.1 s for 8 KB of parameters."""
    return request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


def cookie_value(request: web.Request, name: str) -> str:
    """Return the value of a cookie, "" of one that was not sent. aiohttp's `cookies` makes objects of all,
    which takes 5 ms for 8 KB of them."""
    match = re.search(rf'(?:^|;)\s*{re.escape(name)}="?([^;"\s]*)', request.headers.get(hdrs.COOKIE, ""))
    return match[1] if match else ""


async def _body(request: web.Request, limit: int) -> dict[str, Any]:
    if not request.body_exists:
        return {}
    match media_type(request):
        case "application/json":
            body = await read(request, limit)
            return await aside(len(body) > _LARGE, _json, body)
        case "application/x-www-form-urlencoded":
            body = await read(request, limit)
            return await aside(len(body) > _LARGE, _form, body)
        case "multipart/form-data":
            refuse_encoded_parts(request)
            body = await read(request, limit)
            return await aside(len(body) > _LARGE, _form_of_parts, body, request.headers[hdrs.CONTENT_TYPE])
    return {}


@attrs.frozen
class UploadedFile:
    """A file in a form of a page."""

    name: str
    data: bytes = attrs.field(repr=False)


async def read_form(request: web.Request, limit: int, *, files: bool = False) -> Mapping[str, Any]:
    """Return the fields of an HTML form of at most `limit` bytes, nested as their names say; with `files`,
    they may include files, as `UploadedFile`. Raise 400 for another media type and for a NUL, which no
    browser sends and no table can store, and 413."""
    if not request.body_exists:
        return {}
    kind = media_type(request)
    if kind == "multipart/form-data" and files:
        refuse_encoded_parts(request)
        body = await read(request, limit)
        boundary = request.headers[hdrs.CONTENT_TYPE]
        pairs = await aside(
            len(body) > _LARGE, _pairs_of_parts, body, boundary, MAX_PAGE_FIELDS, UploadedFile
        )
    elif kind == "application/x-www-form-urlencoded":
        body = await read(request, limit)
        pairs = await aside(len(body) > _LARGE, _form_pairs, body, MAX_PAGE_FIELDS)
    else:
        raise bad_parameters("the form cannot be read")
    if any("\0" in value for _, value in pairs if isinstance(value, str)):
        raise bad_parameters("the form has a NUL character")
    return _nested(pairs)


def _pairs_of_parts(
    body: bytearray, content_type: str, max_pairs: int, keep: Callable[[str, bytes], Any]
) -> list[tuple[str, Any]]:
    try:
        return list(_parts(body, boundary_of(content_type), max_pairs, keep))
    except ValueError:
        raise bad_parameters("the form cannot be read") from None


def _form(body: bytearray) -> dict[str, Any]:
    return _nested(_form_pairs(body, MAX_FIELDS))


def _form_pairs(body: bytearray, max_pairs: int) -> list[tuple[str, Any]]:
    try:
        return _pairs(body.decode(), max_pairs)
    except UnicodeDecodeError:
        raise bad_parameters("parameters are not valid UTF-8") from None


#: RFC 2046 section 5.1.1.
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))\s*(?:;|$)', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:\s*form-data\s*(;.*?)\r?$", re.IGNORECASE | re.MULTILINE)
_PART_PARAMETER = re.compile(
    rb';\s*(name|filename\*?)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;]*))', re.IGNORECASE
)
#: Other encodings of a part, which RFC 7578 (section 4.7) forbids.
_ENCODED_PART = re.compile(
    rb"^content-transfer-encoding:(?!\s*(?:binary|[78]bit)\s*$)", re.IGNORECASE | re.MULTILINE
)


def _form_of_parts(body: bytearray, content_type: str) -> dict[str, Any]:
    # No parameter accepts an empty mapping: a file in place of a text is refused.
    return _nested(_pairs_of_parts(body, content_type, MAX_FIELDS, lambda *_: {}))


def boundary_of(content_type: str) -> bytes:
    """Return the delimiter between the parts of a body, without its line breaks. Raise ValueError."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise ValueError(content_type)
    return b"--" + (boundary[1] or boundary[2]).encode()


def part_named(head: bytes) -> tuple[str, str | None]:
    """Return the name of a part and of the file in it (None for a field), given the part's headers. Raise
    ValueError."""
    disposition = _DISPOSITION.search(head) if len(head) <= MAX_PART_HEAD else None
    if disposition is None or not head.lstrip(b" \t").startswith(b"\r\n") or _ENCODED_PART.search(head):
        raise ValueError(head)
    disposition_parameters = {
        name.lower(): re.sub(rb"\\(.)", rb"\1", quoted) or unquoted
        for name, quoted, unquoted in _PART_PARAMETER.findall(disposition[1])
    }
    if b"name" not in disposition_parameters:
        raise ValueError(head)
    encoded = disposition_parameters.get(b"filename*", b"").rpartition(b"'")[2]
    file = disposition_parameters.get(b"filename") or unquote_to_bytes(encoded)
    return disposition_parameters[b"name"].decode(), file.decode(errors="replace") or None


def _parts(
    body: bytearray, delimiter: bytes, max_pairs: int, keep: Callable[[str, bytes], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a multipart form (RFC 7578); `keep` makes the value of a file from its name
    and bytes. aiohttp would take a tenth of a millisecond for each part, and would decode it with any codec
    that its sender names. Raise ValueError."""
    preamble, _, remainder = body.partition(delimiter)
    *parts, end = remainder.split(b"\r\n" + delimiter, max_pairs + 1)
    if len(parts) > max_pairs:
        raise bad_parameters(f"more than {max_pairs} parameters")
    if not end.startswith(b"--") or (preamble and not preamble.endswith(b"\r\n")):
        raise ValueError(end)
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name, file = part_named(bytes(head))
        yield name, keep(file, bytes(value)) if file else value.decode()


def _json(text: bytearray) -> dict[str, Any]:
    # Each element stands behind one of these characters; those inside of strings do not count. Counting holds
    # the interpreter's lock, so it is done in steps.
    steps = range(0, len(text), _STEP)
    upper_bound = sum(text.count(mark, start, start + _STEP) for start in steps for mark in _BEFORE_ELEMENTS)
    if upper_bound > MAX_ELEMENTS and _elements(text) > MAX_ELEMENTS:
        raise bad_parameters("Too many total parameters")
    # Like Grape, which takes parameters only from objects: clients send `null` for none.
    try:
        body = read_json(text) if text.strip() else {}
    except TooDeep:
        if not text.lstrip().startswith(b"{"):
            return {}
        raise bad_parameters("Parameters nested too deeply") from None
    except ValueError:
        raise bad_parameters("the body is not valid JSON") from None
    return body if isinstance(body, dict) else {}


_BEFORE_ELEMENTS = (b",", b"[", b"{")


def _elements(text: bytearray) -> int:
    """Return an upper bound of the number of items and members in valid JSON, or a number above the limit."""
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = unescaped.count(b'"')
    if quotes > 4 * MAX_ELEMENTS:  # at most two strings for each member
        return quotes
    outside = b"".join(unescaped.split(b'"')[::2])
    return sum(map(outside.count, _BEFORE_ELEMENTS))


def _nested(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert `a=1&b[]=2&c[d]=3&e[0][f]=4&g[][h]=5` to `{a: 1, b: [2], c: {d: 3}, e: {0: {f: 4}}, g: [{h:
    5}]}`."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        keys = _keys(name)
        if len(keys) > MAX_DEPTH:
            raise bad_parameters(f"{keys[0]} is nested too deeply")
        _put(result, keys, value)
    return result


def _keys(name: str) -> list[str]:
    """Return the keys in a name, more than `MAX_DEPTH` if it has more."""
    first, bracket, nested = name.partition("[")
    if not (bracket and nested.endswith("]") and first):
        return [name]
    return [first, *nested.removesuffix("]").split("][", MAX_DEPTH)]


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
        # `g[][h]=1&g[][i]=2` is one object; a repeated name starts the next
        if not items or not isinstance(items[-1], dict) or inner[1] in items[-1]:
            items.append({})
        _put(items[-1], inner[1:], value)
    else:
        items = target.setdefault(key, {})
        if not isinstance(items, dict):
            raise bad_parameters(f"{key} is invalid")
        _put(items, inner, value)
