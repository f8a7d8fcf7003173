"""Requests and answers of the LFS API, and the bytes of LFS objects, which belong to rows of a project."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import attrs
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.code import lfs_queries
from api_server.code.quotas import QuotaExceeded
from api_server.git.lfs_pointers import OID, Pointer
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.errors import Unavailable
from api_server.web import request_data
from api_server.web.answers import send_stored
from api_server.web.errors import BodyRefused, retry_later_headers
from common.concurrency import TooBusy

#: Maximum number of objects in one request; git-lfs names 100.
MAX_OBJECTS = 1000
#: Maximum number of bytes of a request: that many objects take half of it.
MAX_REQUEST = 256 * 1024


class Refusal(Exception):
    """A refused request of the LFS API. `status` is that of the response, and the message is for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@attrs.frozen
class Batch:
    """A valid request of the batch API. `objects` are in the order in which they were sent."""

    operation: Literal["download", "upload"]
    objects: tuple[Pointer, ...]


def read_batch(body: bytes | bytearray) -> Batch:
    """Parse a request of the LFS batch API. Raise `Refusal`."""
    document = _parsed(body)
    if not isinstance(document, dict):
        raise Refusal(422, "The body is not a batch request.")
    operation, transfers = document.get("operation"), document.get("transfers")
    if operation not in ("download", "upload"):
        raise Refusal(422, "operation has to be download or upload.")
    if transfers and (not isinstance(transfers, list) or "basic" not in transfers):
        raise Refusal(422, "The only transfer adapter here is basic.")
    if document.get("hash_algo", "sha256") != "sha256":
        raise Refusal(409, "The only hash_algo here is sha256.")
    objects = document.get("objects")
    if not isinstance(objects, list):
        raise Refusal(422, "objects has to be a list.")
    if len(objects) > MAX_OBJECTS:
        raise Refusal(413, f"A batch names {MAX_OBJECTS} objects at most.")
    return Batch(operation, tuple(map(_pointer, objects)))


def read_pointer(body: bytes | bytearray) -> Pointer:
    """Parse a body that names one object. Raise `Refusal`."""
    return _pointer(_parsed(body))


def _parsed(body: bytes | bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal(400, "The body is not JSON.") from None


def _pointer(entry: Any) -> Pointer:
    oid, size = (entry.get("oid"), entry.get("size")) if isinstance(entry, dict) else (None, None)
    if not isinstance(oid, str) or not OID.fullmatch(oid):
        raise Refusal(422, "oid has to be a SHA-256 in lower-case hexadecimal digits.")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Refusal(422, "size has to be a number of bytes.")
    return Pointer(oid, size)


MEDIA_TYPE = "application/vnd.git-lfs+json"
_TOLD = ("WWW-Authenticate", "Content-Range")


def lfs_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type=MEDIA_TYPE, headers=headers)


def lfs_errors(handler: Handler) -> Handler:
    """Return a handler that reports the errors of `handler` as the LFS API does: `{"message": "..."}`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as problem:
            return lfs_json({"message": str(problem)}, problem.status)
        except QuotaExceeded as problem:
            return lfs_json({"message": str(problem)}, 507)  # Insufficient Storage, as in the LFS API
        except BodyRefused as problem:
            return lfs_json({"message": str(problem)}, problem.status, problem.headers)
        except (Unavailable, TooBusy) as problem:
            if request.writer.output_size:  # the object has been sent in part
                raise ConnectionResetError from problem
            return lfs_json({"message": "503 Service Unavailable"}, 503, retry_later_headers(problem))
        except web.HTTPClientError as refusal:
            headers = {name: refusal.headers[name] for name in _TOLD if name in refusal.headers}
            if challenge := headers.get("WWW-Authenticate"):
                headers["LFS-Authenticate"] = challenge
            return lfs_json({"message": (refusal.text or "").strip()}, refusal.status, headers)

    return answer


def with_actions(pointer: Pointer, **actions: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of a batch answer. Without actions, the client has nothing to do."""
    answer: dict[str, Any] = {"oid": pointer.oid, "size": pointer.size}
    return answer | ({"authenticated": True, "actions": actions} if actions else {})


def with_error(pointer: Pointer, code: int, text: str) -> dict[str, Any]:
    """Return an object of a batch answer that cannot be transferred."""
    return {"oid": pointer.oid, "size": pointer.size, "error": {"code": code, "message": text}}


class Links:
    """URLs of one project's objects, for the client that has asked.

    Clients send the fields of `header` to these URLs and nothing else, so they get their own credentials back.
    """

    def __init__(self, request: web.Request, repository_url: str) -> None:
        self._base = f"{repository_url}/info/lfs"
        credentials = request.headers.get("Authorization")
        self._header = {"Authorization": credentials} if credentials else {}

    def download(self, pointer: Pointer) -> dict[str, Any]:
        return self._link(f"objects/{pointer.oid}")

    def upload(self, pointer: Pointer) -> dict[str, Any]:
        return self._link(
            f"objects/{pointer.oid}/{pointer.size}", **{"Content-Type": "application/octet-stream"}
        )

    def verify(self) -> dict[str, Any]:
        return self._link("verify")

    def _link(self, path: str, **header: str) -> dict[str, Any]:
        return {"href": f"{self._base}/{path}", "header": self._header | header}


MISSING = "The object does not exist."


async def send_object(
    request: web.Request, services: Services, project: Project, oid: str
) -> web.StreamResponse:
    """Answer with the object, or with the part of it that `Range` requests. Raise 404."""
    lfs_object = await lfs_queries.find_object(services.database, project.id, oid)
    if lfs_object is None:
        raise web.HTTPNotFound(text=MISSING)
    headers = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
    objects = services.objects
    try:
        return await send_stored(request, objects, lfs_object.object_key, lfs_object.size, oid, headers)
    except FileNotFoundError:  # deleted since the row was read
        raise web.HTTPNotFound(text=MISSING) from None


async def store_object(
    request: web.Request, services: Services, project: Project, announced: Pointer
) -> None:
    """Store the request's body as the announced object. Raise 422 if it is another one.

    If it is unknown whether the row was written, the object stays: the sweep removes objects that no row names.
    """
    objects = services.objects
    key = f"projects/{project.id}/lfs/{secrets.token_hex(16)}"
    await objects.put(key, _checked(request, announced))
    async with services.database.transaction() as transaction:
        added = await lfs_queries.add_object(
            transaction, project.id, announced.oid, size=announced.size, object_key=key
        )
    if not added:  # another request has stored it, or the project no longer exists
        await objects.discard([key])


async def _checked(request: web.Request, announced: Pointer) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raise 422 if it differs from the announcement, so that nothing is stored."""
    digest, size = hashlib.sha256(), 0
    async for chunk in request_data.chunks(request):
        size += len(chunk)
        if size > announced.size:
            break
        digest.update(chunk)
        yield chunk
    if (digest.hexdigest(), size) != (announced.oid, announced.size):
        raise Refusal(422, "The content is not what its oid and size say.")
