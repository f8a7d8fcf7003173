"""The batch request of the LFS API: which objects a client wants to bring or to fetch; pure."""

from typing import Any, Literal

import attrs
import orjson

from api_server.git.lfs_pointers import OID, Pointer

#: Objects that one request may name; git-lfs names 100.
MAX_OBJECTS = 1000


class Refusal(Exception):
    """A request of the LFS API that is refused; `status` is the answer's, the text for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@attrs.frozen
class Batch:
    """A readable request; `objects` are as they were sent, in that order."""

    operation: Literal["download", "upload"]
    objects: tuple[Pointer, ...]


def read_batch(body: bytes) -> Batch:
    """The request in `body`, as the LFS batch API describes it. Raises Refusal."""
    sent = _parsed(body)
    if not isinstance(sent, dict):
        raise Refusal(422, "The body is not a batch request.")
    operation, transfers = sent.get("operation"), sent.get("transfers")
    if operation not in ("download", "upload"):
        raise Refusal(422, "operation has to be download or upload.")
    if transfers and (not isinstance(transfers, list) or "basic" not in transfers):
        raise Refusal(422, "The only transfer adapter here is basic.")
    if sent.get("hash_algo", "sha256") != "sha256":
        raise Refusal(409, "The only hash_algo here is sha256.")
    objects = sent.get("objects")
    if not isinstance(objects, list):
        raise Refusal(422, "objects has to be a list.")
    if len(objects) > MAX_OBJECTS:
        raise Refusal(413, f"A batch names {MAX_OBJECTS} objects at most.")
    return Batch(operation, tuple(map(_pointer, objects)))


def read_pointer(body: bytes) -> Pointer:
    """The one object in `body`. Raises Refusal."""
    return _pointer(_parsed(body))


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal(400, "The body is not JSON.") from None


def _pointer(sent: Any) -> Pointer:
    oid, size = (sent.get("oid"), sent.get("size")) if isinstance(sent, dict) else (None, None)
    if not isinstance(oid, str) or not OID.fullmatch(oid):
        raise Refusal(422, "oid has to be a SHA-256 in lower-case hexadecimal digits.")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Refusal(422, "size has to be a number of bytes.")
    return Pointer(oid, size)
