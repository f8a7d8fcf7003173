"""The shared store: public responses in an S3-compatible store or a directory, with which a new edge starts.

An edge may have missed any purge, and others may write outdated responses here. So nothing from here is used before the
origin has answered 304 to its entity tag; this saves the origin from generating and sending the body again. A failing
store is not used until a trial in the background succeeds (`StoreHealth`).
"""

import asyncio
import hashlib
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs
import obstore
import orjson
import structlog
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import LocalStore, ObjectStore, from_url

from common.concurrency import end
from common.lifecycle import Degraded
from common.logs import ThrottledLog
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import selection
from storage_edge.storage.bodies import BLOCK
from storage_edge.storage.spool import Spool, UnwantedError
from storage_edge.storage.stored_responses import StoredResponse, selection_from_key, selection_key

log = structlog.get_logger(__name__)

READ: Final = "read"
WRITE: Final = "written"
#: S3's code for a missing bucket, which is different from a missing object.
NO_BUCKET: Final = "NoSuchBucket"
UNREACHABLE: Final = (BaseError, OSError, TimeoutError)
_TRIAL_KEY: Final = "v1/trial"
_TRIAL: Final = b"An edge tries here whether it can use this store.\n"


class StoreHealth:
    """Whether a store works. A trial object is written and read at the start, and every `pause` seconds while
    something does not work; each may take `timeout` seconds."""

    def __init__(self, store: ObjectStore, timeout: float, pause: float) -> None:
        self._store = store
        self._timeout = timeout
        self._pause = pause
        self._log = ThrottledLog(log)
        self._problems: dict[str, str] = {}
        self._doubts = asyncio.Event()

    @property
    def problem(self) -> str:
        """The operation that does not work, and the reason; empty if everything works."""
        return ", ".join(f"it cannot be {use}: {why}" for use, why in sorted(self._problems.items()))

    @property
    def may_be_read(self) -> bool:
        """Whether a request may read. A store that cannot be written may still be read, but not the other way round."""
        return READ not in self._problems

    @property
    def may_be_written(self) -> bool:
        """Whether something may be written."""
        return not self._problems

    async def check(self) -> None:
        """Check readiness. Raise `Degraded` while something does not work."""
        if self._problems:
            raise Degraded(
                f"The shared store is left alone ({self.problem}); cold objects are fetched whole."
            )

    def failed(self, use: str, error: Exception) -> None:
        """Do not use the store until a trial succeeds."""
        reason = self._problems[use] = reason_of(error)
        self._doubts.set()
        self._log.warning(f"the shared store cannot be {use}", about=reason, reason=reason)

    def doubt(self) -> None:
        """Note that something may be wrong, which the next trial finds out."""
        self._doubts.set()

    async def watch(self) -> None:
        """Run the trials. Never return."""
        while True:
            await self._try(WRITE, self._write())
            await self._try(READ, self._read())
            await self._doubts.wait()
            await asyncio.sleep(self._pause)
            self._doubts.clear()

    async def _try(self, use: str, trial: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await trial
        except (*UNREACHABLE, ValueError) as error:
            self.failed(use, error)
            return
        if self._problems.pop(use, None) is not None:
            log.info(f"the shared store can be {use} again")

    async def _write(self) -> None:
        await obstore.put_async(self._store, _TRIAL_KEY, _TRIAL)

    async def _read(self) -> None:
        try:
            answer = await obstore.get_async(self._store, _TRIAL_KEY)
        except FileNotFoundError as error:
            if reason_of(error) == NO_BUCKET:
                raise
            return  # the store cannot be written, but it can be read
        if bytes(await answer.bytes_async()) != _TRIAL:
            raise ValueError("Something else than the store has answered.")


def reason_of(error: Exception) -> str:
    """Return S3's code for the error, or its type, because S3's messages may contain parts of credentials."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code[1] if code else type(error).__name__


#: Maximum number of bodies that are written at once, and of those that wait. Further ones are not shared.
UPLOADS: Final = 2
MAX_PENDING: Final = 256
UPLOAD_SECONDS: Final = 300.0
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@attrs.frozen
class SharedCopy:
    """A response in the shared store that the origin has not validated yet. Its body will be read into `spool`, which
    is empty."""

    stored: StoredResponse
    spool: Spool
    digest: str
    size: int
    #: Seconds that are left for reading it.
    seconds_left: float = 0.0


class SharedTier:
    """Bodies by digest and one record for each target URI. An object may take `timeout` seconds.

    No failure of the store affects a request: the object then counts as missing, and by `health` the store is not used
    for a while. After a body that took too long, none of that size is requested for `pause` seconds. `count` is called
    with "hit", "miss", "failure" or "written" each time.
    """

    def __init__(
        self, store: ObjectStore, timeout: float, pause: float, count: Callable[[str], None]
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._pause = pause
        self._count = count
        self._log = ThrottledLog(log)
        self.health = StoreHealth(store, timeout, pause)
        self._limit, self._limit_until = math.inf, 0.0
        self._uploads = asyncio.Semaphore(UPLOADS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, request: EdgeRequest, spool: Callable[[int | None], Spool]) -> SharedCopy | None:
        """Return the stored response for a request. Its body is not read yet."""
        if not self.health.may_be_read:
            return None
        copy, clock = None, asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await obstore.get_async(self._store, _record_key(request.uri))
                copy = _from_record(bytes(await answer.bytes_async()), request, spool)
        except FileNotFoundError as error:
            if reason_of(error) == NO_BUCKET:
                self._failed(READ, error)
                return None
        except PermissionDeniedError:
            # S3 answers like this for a missing object if listing is not allowed. If there is another cause, a trial
            # finds it out.
            self.health.doubt()
        except _UNREADABLE as error:
            self._damaged(error)
            return None
        except UNREACHABLE as error:
            self._failed(READ, error)
            return None
        if copy is None:
            self._count("miss")
            return None
        if copy.size > self._limit and start < self._limit_until:
            copy.spool.release()
            return None
        return attrs.evolve(copy, seconds_left=self._timeout - (clock() - start))

    async def fill(self, copy: SharedCopy) -> bool:
        """Read the body into the copy's spool. Return False unless all of it arrived in time with the right digest."""
        try:
            await self._read_into(copy)
        except FileNotFoundError:
            self._count("miss")  # a rule of the bucket has deleted it before its record
            return False
        except ValueError as error:
            self._damaged(error)
            return False
        except UNREACHABLE as error:
            if copy.spool.size:
                self._came_late(copy)
            else:
                self._failed(READ, error)
            return False
        except UnwantedError:
            return False  # the disk has no room for it
        finally:
            if not copy.spool.finished:
                copy.spool.release()
        self._count("hit")
        return True

    async def _read_into(self, copy: SharedCopy) -> None:
        async with asyncio.timeout(copy.seconds_left):
            answer = await obstore.get_async(self._store, _body_key(copy.digest))
            if answer.meta["size"] != copy.size:
                raise ValueError("The body differs from the one that was written.")
            async for chunk in answer.stream(min_chunk_size=BLOCK):
                await copy.spool.write(bytes(chunk))
        if copy.spool.digest != copy.digest:
            raise ValueError("The body differs from the one that was written.")
        copy.spool.finish()

    def offer(self, stored: StoredResponse, digest: str, file: Path) -> None:
        """Write a public response whose body is in `file`, in the background."""
        if stored.private or stored.status != 200 or not selection.has_strong_tag(stored.headers):
            return
        if len(self._tasks) >= MAX_PENDING or not self.health.may_be_written:
            return
        task = asyncio.get_running_loop().create_task(self._write(stored, digest, file))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait until all offered responses are written."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel unfinished writes. An object is stored completely or not at all."""
        await end(*self._tasks)

    async def _write(self, stored: StoredResponse, digest: str, file: Path) -> None:
        """Write the body before the record that names it."""
        try:
            async with self._uploads, asyncio.timeout(UPLOAD_SECONDS):
                if not await self._has_body(digest):
                    await obstore.put_async(self._store, _body_key(digest), file)
                await obstore.put_async(self._store, _record_key(stored.target), _record(stored, digest))
        except UNREACHABLE as error:
            was_evicted = isinstance(error, FileNotFoundError) and not await asyncio.to_thread(file.exists)
            if not was_evicted:
                self._failed(WRITE, error)
            return
        self._count("written")

    async def _has_body(self, digest: str) -> bool:
        try:
            await obstore.head_async(self._store, _body_key(digest))
        except FileNotFoundError:
            return False
        return True

    def _failed(self, use: str, error: Exception) -> None:
        self._count("failure")
        self.health.failed(use, error)

    def _damaged(self, error: Exception) -> None:
        """Note that one object is damaged, or that its body no longer exists."""
        self._count("failure")
        reason = type(error).__name__
        self._log.warning("an object of the shared store cannot be used", about=reason, reason=reason)

    def _came_late(self, copy: SharedCopy) -> None:
        """Note that the body is too large for the time limit. For a while no body of that size is requested."""
        self._count("failure")
        self._limit, self._limit_until = copy.spool.size, asyncio.get_running_loop().time() + self._pause
        self._log.warning("the shared store is too slow", size=copy.size, came=copy.spool.size)


def open_store(url: str, timeout: float) -> ObjectStore:
    """Return the store at `s3://bucket/prefix` (with credentials from the environment, as for AWS tools) or
    `file:///directory`. Raise `ValueError` with one sentence."""
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
    """Decode a record. Return None if the request selects another response."""
    record = orjson.loads(text)
    selected = selection_from_key(record["selected"])
    if record["target"] != request.uri or not selection.matches(selected, request.forwarded):
        return None
    spool = new_spool(record["size"])
    stored = StoredResponse.from_json(
        record["response"], target=request.uri, selected=selected, epoch=0, body=spool, stale=True
    )
    if stored.private or stored.status != 200 or not selection.has_strong_tag(stored.headers):
        return None
    return SharedCopy(stored, spool, record["digest"], record["size"])
