"""The shared tier: public responses in an S3-compatible store or a directory, so that a new edge starts warm.

An edge may have missed any purge, and others write here without knowing of it. So nothing from here is used before
the origin has said 304 to its entity tag; what is saved is making and sending the body again.
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs
import obstore
import orjson
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from common.ending import end
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import selection, validation
from storage_edge.tiers.bodies import BLOCK
from storage_edge.tiers.spool import Spool, UnwantedError
from storage_edge.tiers.stored_responses import StoredResponse, selection_from_key, selection_key

log = structlog.get_logger(__name__)

#: Seconds for which a store that failed is left alone, so that it does not slow every miss down.
AVOIDED_SECONDS: Final = 10.0
#: Bodies that are written at a time, and those that may wait for it; more are not shared.
UPLOADS: Final = 2
MAX_PENDING: Final = 256
UPLOAD_SECONDS: Final = 300.0
_UNREACHABLE = (BaseError, OSError, TimeoutError)
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@attrs.frozen
class SharedCopy:
    """A response in the shared tier, which the origin has not validated yet; its body is `spool`, empty so far."""

    stored: StoredResponse
    spool: Spool
    digest: str
    size: int


class SharedTier:
    """Bodies by digest and one record for each target, at most `timeout` seconds for each answer or piece.

    No failure of the store reaches a request: it counts as not having the object. `count` is told of each
    "hit", "miss", "failure" and "written".
    """

    def __init__(self, store: ObjectStore, timeout: float, count: Callable[[str], None]) -> None:
        self._store = store
        self._timeout = timeout
        self._count = count
        self._avoided_until = 0.0
        self._uploads = asyncio.Semaphore(UPLOADS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, request: EdgeRequest, spool: Callable[[int | None], Spool]) -> SharedCopy | None:
        """What is kept for a request, its body not read yet."""
        if asyncio.get_running_loop().time() < self._avoided_until:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                found = await obstore.get_async(self._store, _record_key(request.uri))
                copy = _from_record(bytes(await found.bytes_async()), request, spool)
        except FileNotFoundError:
            copy = None
        except (*_UNREACHABLE, *_UNREADABLE) as error:
            self._failed("read", error)
            return None
        if copy is None:
            self._count("miss")
        return copy

    async def fill(self, copy: SharedCopy) -> bool:
        """Reads the body into the copy's spool; False unless all of it came and has the right digest."""
        try:
            await self._read_into(copy)
        except (*_UNREACHABLE, ValueError) as error:
            self._failed("read", error)
            return False
        except UnwantedError:
            return False  # the disk has no room for it
        finally:
            if not copy.spool.finished:
                copy.spool.release()
        self._count("hit")
        return True

    async def _read_into(self, copy: SharedCopy) -> None:
        async with asyncio.timeout(self._timeout) as limit:
            found = await obstore.get_async(self._store, _body_key(copy.digest))
            if found.meta["size"] != copy.size:
                raise ValueError("The body is not the one that was written.")
            async for chunk in found.stream(min_chunk_size=BLOCK):
                await copy.spool.write(bytes(chunk))
                limit.reschedule(asyncio.get_running_loop().time() + self._timeout)
        if copy.spool.digest != copy.digest:
            raise ValueError("The body is not the one that was written.")
        copy.spool.finish()

    def offer(self, stored: StoredResponse, digest: str, file: Path) -> None:
        """Writes a public response whose body is in `file`, in the background."""
        if stored.private or stored.status != 200 or not validation.has_strong_tag(stored.headers):
            return
        if len(self._tasks) >= MAX_PENDING or asyncio.get_running_loop().time() < self._avoided_until:
            return
        task = asyncio.get_running_loop().create_task(self._write(stored, digest, file))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Waits until everything offered is written."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Gives up what is being written; an object is there wholly or not at all."""
        await end(*self._tasks)

    async def _write(self, stored: StoredResponse, digest: str, file: Path) -> None:
        """The body comes before the record that names it."""
        try:
            async with self._uploads, asyncio.timeout(UPLOAD_SECONDS):
                if not await self._has_body(digest):
                    await obstore.put_async(self._store, _body_key(digest), file)
                await obstore.put_async(self._store, _record_key(stored.target), _record(stored, digest))
        except FileNotFoundError:
            return  # evicted meanwhile
        except _UNREACHABLE as error:
            self._failed("written", error)
            return
        self._count("written")

    async def _has_body(self, digest: str) -> bool:
        try:
            await obstore.head_async(self._store, _body_key(digest))
        except FileNotFoundError:
            return False
        return True

    def _failed(self, what: str, error: Exception) -> None:
        self._count("failure")
        if not isinstance(error, _UNREADABLE):
            self._avoided_until = asyncio.get_running_loop().time() + AVOIDED_SECONDS
        log.warning(f"the shared store could not be {what}", reason=type(error).__name__)


def open_store(url: str, timeout: float) -> ObjectStore:
    """The store at `s3://bucket/prefix` (credentials as AWS tools find them in the environment) or
    `file:///directory`; raises ValueError with one sentence.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path.startswith("/"):
        return LocalStore(Path(unquote(parts.path)), mkdir=True)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError("The setting shared_store_url needs s3://bucket/prefix or file:///directory.")
    return from_url(
        url,
        client_options={
            "connect_timeout": f"{timeout:g}s",
            "timeout": f"{UPLOAD_SECONDS:g}s",
            "allow_http": True,
        },
        retry_config={"max_retries": 1},
    )


def _record_key(target: str) -> str:
    name = hashlib.sha256(target.encode()).hexdigest()
    return f"v1/responses/{name[:2]}/{name[2:]}"


def _body_key(digest: str) -> str:
    return f"v1/bodies/{digest[:2]}/{digest[2:]}"


def _record(stored: StoredResponse, digest: str) -> bytes:
    return orjson.dumps(
        {
            "target": stored.target,
            "selected": selection_key(stored.selected),
            "digest": digest,
            "size": stored.body.length,
            "response": stored.to_json(),
        }
    )


def _from_record(
    text: bytes, request: EdgeRequest, new_spool: Callable[[int | None], Spool]
) -> SharedCopy | None:
    """The opposite of `_record`, or None when the request selects another response."""
    record = orjson.loads(text)
    selected = selection_from_key(record["selected"])
    if record["target"] != request.uri or not selection.matches(selected, request.forwarded):
        return None
    spool = new_spool(record["size"])
    stored = StoredResponse.from_json(
        record["response"], target=request.uri, selected=selected, epoch=0, body=spool, stale=True
    )
    if stored.private or stored.status != 200 or not validation.has_strong_tag(stored.headers):
        return None
    return SharedCopy(stored, spool, record["digest"], record["size"])
