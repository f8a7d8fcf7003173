"""Uploads of artifacts: the form is parsed as it arrives, its file is streamed into the object store and gets
a row, if the project's limit allows it."""

import datetime
import hashlib
import re
import secrets
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Self

import attrs
from aiohttp import hdrs, web

from api_server.ci.config import checks
from api_server.ci.config.execution import REPORTS
from api_server.ci.jobs import artifact_queries
from api_server.ci.runners.job_queries import AssignedJob
from api_server.services import Key, Services
from api_server.state.database import Transaction
from api_server.state.errors import Conflict, Unavailable
from api_server.state.objects import Objects
from api_server.web import context, request_data
from api_server.web.errors import ApiError, bad_parameters, bad_request, forbidden
from api_server.web.params import structure
from api_server.zip_files import ZIP_FILES, Limits, TooMuchError, ZipFiles, with_indices

_FIELD_BYTES = 1024
_FIELDS = 20
#: Maximum bytes of a body besides the file.
_FORM_BYTES = 64 * 1024


@attrs.frozen
class ReceivedFile:
    """A file in the object store that no row names yet."""

    key: str
    filename: str
    size: int
    sha256: bytes
    fields: Mapping[str, str]


async def receive_file(
    request: web.Request, objects: Objects, folder: str, grow: Callable[[int], None]
) -> ReceivedFile:
    """Store the part `file` of a multipart body below `folder`; the other parts are fields.

    `grow` is called first with the minimum size of the file, and then with the number of bytes received so
    far. Raise 400, and the errors of `grow`; then nothing is stored.
    """
    if request_data.media_type(request) != "multipart/form-data":
        raise bad_parameters("file is missing")
    grow(max(0, (request.content_length or 0) - _FORM_BYTES))
    request_data.refuse_encoded_parts(request)
    fields: dict[str, str] = {}
    stored: dict[str, Any] = {}
    try:
        parts = _Parts(request_data.chunks(request), request.headers[hdrs.CONTENT_TYPE])
        while part := await parts.next():
            name, filename = part
            if name == "file" and not stored:
                stored = await _store_file(parts.content(), filename, objects, folder, grow)
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
    return ReceivedFile(**stored, fields=fields)


def too_large(reason: str = "") -> ApiError:
    """Return a 413, after which runners do not try again."""
    text = "413 Request Entity Too Large"
    return ApiError(413, {"message": f"{text} - {reason}" if reason else text})


class _Parts:
    """The parts of a body, one after the other; the content of each comes in chunks, or whole if it is
    short."""

    def __init__(self, coming: AsyncIterator[bytes], content_type: str) -> None:
        """Create the parser. Raise ValueError."""
        self.delimiter = b"\r\n" + request_data.boundary_of(content_type)
        self._coming = coming
        self._buffer = b"\r\n"  # so that the first delimiter is like the others
        self._number = 0  # the number of parts, which may have the same name

    async def next(self) -> tuple[str, str | None] | None:
        """Return the names of the next part and of its file; None behind the last part. Raise ValueError."""
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
        """Yield the content up to the next delimiter, as it arrives."""
        async for chunk in self._until(self.delimiter):
            yield chunk

    async def short(self, end: bytes, limit: int) -> bytes:
        """Return the bytes before `end`, at most `limit` bytes. Raise ValueError if there are more."""
        before = b""
        async for chunk in self._until(end):
            before += chunk
            if len(before) > limit:
                raise ValueError(limit)
        return before

    async def _end(self) -> None:
        """Read the rest of the body, so that the connection can serve the next request."""
        while len(self._buffer) <= request_data.MAX_PART_HEAD:
            chunk = await anext(self._coming, b"")
            if not chunk:
                return
            self._buffer += chunk
        raise ValueError("more data follows the last part")

    async def _until(self, end: bytes) -> AsyncIterator[bytes]:
        while (position := self._buffer.find(end)) < 0:
            certain = len(self._buffer) - len(end) + 1
            if certain > 0:
                chunk, self._buffer = self._buffer[:certain], self._buffer[certain:]
                yield chunk
            await self._more()
        chunk, self._buffer = self._buffer[:position], self._buffer[position + len(end) :]
        yield chunk

    async def _more(self) -> None:
        chunk = await anext(self._coming, b"")
        if not chunk:
            raise ValueError("the body ends too early")
        self._buffer += chunk


async def _store_file(
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
    return {"key": key, "filename": _plain_name(filename), "size": size, "sha256": digest.digest()}


def _plain_name(name: str | None) -> str:
    """Return a file name that can be shown and sent in a header."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:255] or "artifacts.zip"


MAX_DOTENV_BYTES = 5 * 1024
MAX_DOTENV_VARIABLES = 150
MAX_DOTENV_KEY = 255
_DOTENV_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.ASCII)


class InvalidDotenv(Exception):
    """A report without valid variables; the text gives the reason."""


def unpack_dotenv(content: bytes) -> bytes:
    """Return the text of an upload, which is gzip or plain."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    unpacker = zlib.decompressobj(wbits=31)
    try:
        return unpacker.decompress(content, MAX_DOTENV_BYTES + 1)
    except zlib.error as problem:
        raise InvalidDotenv("Invalid Format") from problem


def parse_dotenv(content: bytes) -> dict[str, str]:
    """Return the variables in order; a repeated key replaces the earlier one. Raise `InvalidDotenv`."""
    text = unpack_dotenv(content)
    if len(text) > MAX_DOTENV_BYTES:
        raise InvalidDotenv("Dotenv Artifact Too Big. Maximum Allowable Size: 5120")
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidDotenv("Invalid Format") from None
    variables: dict[str, str] = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _DOTENV_LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise InvalidDotenv("Invalid Format")
        if len(match[1]) > MAX_DOTENV_KEY:
            raise InvalidDotenv(
                f"Validation failed: Key is too long (maximum is {MAX_DOTENV_KEY} characters)"
            )
        variables[match[1]] = _unquoted(match[2].strip(" \t\r\f\v"))
    if len(variables) > MAX_DOTENV_VARIABLES:
        raise InvalidDotenv(f"Dotenv files cannot have more than {MAX_DOTENV_VARIABLES} variables")
    return variables


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


ARRIVING = Key[Counter[int]]("arriving_artifacts", Counter)


@attrs.define
class UploadQuota:
    """The size to which one upload may grow. During its `with` block it counts for all other uploads of this
    process.

    Uploads that other processes receive at the same time are considered when it is `settled`.
    """

    project_id: int
    limit: int
    stored_bytes: int
    _arriving: Counter[int]
    _own_bytes: int = 0

    @property
    def bytes_left(self) -> int | None:
        """The bytes that are left; None without a limit."""
        return (
            max(0, self.limit - self.stored_bytes - self._arriving[self.project_id]) if self.limit else None
        )

    def grow(self, size: int) -> None:
        """Record that this upload has, or announces, `size` bytes. Raise 413 if that exceeds the limit."""
        more = max(0, size - self._own_bytes)
        if self.bytes_left is not None and more > self.bytes_left:
            raise self._refusal()
        self._own_bytes += more
        self._arriving[self.project_id] += more

    async def check_again(self, transaction: Transaction) -> None:
        """Check the limit after the artifact has been added: other uploads wait until the transaction ends.
        Raise 413."""
        if (
            self.limit
            and await artifact_queries.stored_bytes_exactly(transaction, self.project_id) > self.limit
        ):
            raise self._refusal()

    def _refusal(self) -> ApiError:
        return too_large(f"The artifacts of a project may take {self.limit} bytes together")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._arriving -= Counter({self.project_id: self._own_bytes})


async def upload_quota(services: Services, project_id: int) -> UploadQuota:
    """Return the room that the project has left."""
    limit = services.settings.project_artifacts_limit
    stored_bytes = await artifact_queries.stored_bytes(services.database, project_id) if limit else 0
    return UploadQuota(project_id, limit, stored_bytes, services[ARRIVING])


Format = Literal["zip", "gzip", "raw"]
FILE_TYPES = frozenset({"archive", "metadata", *REPORTS})


def setup(services: Services) -> None:
    settings = services.settings
    limits = Limits(settings.artifact_members_limit, settings.artifact_unpacked_limit)
    services[ZIP_FILES] = ZipFiles(services.objects, limits)
    services[ARRIVING] = Counter()


@attrs.frozen(kw_only=True)
class Upload:
    """The parameters of a file, in the query or in the form's fields."""

    artifact_type: str = "archive"
    artifact_format: Format | None = None
    expire_in: str | None = None


async def store_artifact(request: web.Request, job: AssignedJob) -> None:
    """Make the request's file an artifact of the job, unless it already has this very file.

    Raise 400, 403 and 413, and store nothing then.
    """
    services = context.services(request)
    objects = services.objects
    folder = f"projects/{job.project_id}/jobs/{job.id}"
    limit = services.settings.artifact_limit
    with await upload_quota(services, job.project_id) as quota:

        def grow(size: int) -> None:
            if size > limit:
                raise too_large()
            quota.grow(size)

        received = await receive_file(request, objects, folder, grow)
        try:
            added = await _add(request, job, received, quota)
        except Unavailable:  # its row may exist nevertheless; if not, the sweep deletes the object
            raise
        except Exception:
            await objects.discard(with_indices([received.key]))
            raise
        if not added:
            await objects.discard(with_indices([received.key]))


async def _add(request: web.Request, job: AssignedJob, received: ReceivedFile, quota: UploadQuota) -> bool:
    """Add the artifact. Return False if the job already has this very file. Raise 400, 403 and 413."""
    services = context.services(request)
    upload = structure({**received.fields, **request.query}, Upload)
    if upload.artifact_type not in FILE_TYPES:
        raise bad_request(f"{upload.artifact_type} is no type of artifact")
    variables = await _report(services, received) if upload.artifact_type == "dotenv" else {}
    if upload.artifact_type == "archive":
        await _index(services, received)
    try:
        async with services.database.transaction() as transaction:
            added = await artifact_queries.add_artifact(
                transaction,
                job.id,
                file_type=upload.artifact_type,
                file_format=upload.artifact_format or REPORTS.get(upload.artifact_type, ("", "zip"))[1],
                filename=received.filename,
                size=received.size,
                object_key=received.key,
                sha256=received.sha256,
                expire_at=_expire_at(services, upload.expire_in),
            )
            if not added:
                raise forbidden("Job is not running")
            await quota.check_again(transaction)
            if variables:
                vault = services.vault
                sealed = {key: vault.encrypt(value) for key, value in variables.items()}
                await artifact_queries.set_report_variables(transaction, job.id, sealed)
    except Conflict:
        existing = await artifact_queries.find_artifact(services.database, job.id, upload.artifact_type)
        if existing is None or existing.sha256 != received.sha256:
            raise bad_request("another artifact of the same type already exists") from None
        return False
    return True


async def _index(services: Services, received: ReceivedFile) -> None:
    try:
        await services[ZIP_FILES].make_index(received.key)
    except TooMuchError as problem:
        raise too_large(f"The archive has more than {problem}") from None


async def _report(services: Services, received: ReceivedFile) -> dict[str, str]:
    objects = services.objects
    if received.size > MAX_DOTENV_BYTES * 2:
        raise bad_request(f"Dotenv Artifact Too Big. Maximum Allowable Size: {MAX_DOTENV_BYTES}")
    content = b"".join([chunk async for chunk in objects.read(received.key, 0, received.size)])
    try:
        return parse_dotenv(content)
    except InvalidDotenv as problem:
        raise bad_request(str(problem)) from None


def _expire_at(services: Services, expire_in: str | None) -> datetime.datetime | None:
    """Return the time at which the artifact expires: after `expire_in` as in CI files (`1 week`, `never`,
    seconds), or else after the time in the settings."""
    seconds = services.settings.artifacts_expire_in
    try:
        if expire_in:
            seconds = checks.parse_duration(expire_in)
        return services.now + datetime.timedelta(seconds=seconds) if seconds else None
    except (ValueError, OverflowError):  # not a duration, or one that ends after the year 9999
        raise bad_request("expire_in is not a duration") from None
