"""The store of responses: small bodies in memory, all bodies on disk."""

import asyncio
import functools
import heapq
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

import attrs
import cachetools

from common.concurrency import ended
from common.lifecycle import Degraded
from storage_edge.rules import selection
from storage_edge.storage import files as checking
from storage_edge.storage import index
from storage_edge.storage.bodies import BodyGoneError, FileBody, MemoryBody
from storage_edge.storage.disk import DiskTier, OnSaved, Unsaved, WaitingRoom
from storage_edge.storage.files import TIMEOUT, ArrivingFile
from storage_edge.storage.memory import MemoryTier
from storage_edge.storage.purges import Ledger, OldLogError, Purge
from storage_edge.storage.spool import Spool
from storage_edge.storage.stored_responses import StoredResponse, selection_key

#: The most responses that are examined for one page.
MAX_EXAMINED: Final = 1000
#: Greater than every possible target.
_LAST: Final = "\U0010ffff"

#: In the order of an index, so that the cost of a page depends on its length alone.
PAGE: Final = (
    "SELECT target, selected, size, stale, response, coalesce(hits.count, 0)"
    " FROM responses JOIN bodies USING (digest) LEFT JOIN hits USING (target)"
    " WHERE (target, selected) > (:target, :selected) AND target < :end"
    " ORDER BY target, selected LIMIT :limit"
)


@attrs.frozen
class Entry:
    """One stored response. `selected` distinguishes variants of one target. `age_then` was its age in seconds at
    `stored_at`, in seconds since 1970."""

    target: str
    selected: str
    status: int
    bytes: int
    stored_at: float
    age_then: float
    lifetime: float
    stale: bool
    private: bool
    hits: int
    tier: Literal["memory", "disk"] = "disk"

    @property
    def position(self) -> tuple[str, str]:
        """The response's position in the order of all."""
        return self.target, self.selected

    def age(self, now: float) -> float:
        """Return the seconds since the origin made or validated it."""
        return self.age_then + max(0.0, now - self.stored_at)

    @property
    def fresh_until(self) -> float | None:
        """Return seconds since 1970, or None if each use is validated or a purge made it stale."""
        if self.private or self.stale:
            return None
        return self.stored_at + self.lifetime - self.age_then


def index_page(index: sqlite3.Connection, prefix: str, after: tuple[str, str], limit: int) -> list[Entry]:
    """Return the next rows of the index. Purges that are still pending on it are not considered."""
    target, selected = max(after, (prefix, ""))  # one bound, because an index can use only one
    arguments = {"target": target, "selected": selected, "end": prefix + _LAST, "limit": limit}
    return [_of_row(*row) for row in index.execute(PAGE, arguments).fetchall()]


def first_targets(targets: Iterable[str], prefix: str, after: tuple[str, str], limit: int) -> list[str]:
    """Return the targets of the next responses, from that of `after` on; one more than needed, because `after` may
    have no more."""
    return heapq.nsmallest(
        limit + 1, (target for target in targets if target >= after[0] and target.startswith(prefix))
    )


def listed_in_memory(memory: MemoryTier, targets: Iterable[str], after: tuple[str, str]) -> list[Entry]:
    """Return the responses of these targets in memory that come after `after`."""
    responses = (_of_response(stored) for target in targets for stored in memory.get(target))
    return [response for response in responses if response.position > after]


def merge_listed(
    on_disk: Iterable[Entry], in_memory: Iterable[Entry], used: Mapping[str, int], limit: int
) -> list[Entry]:
    """Merge both lists. A response in both counts once. `used` has the uses that the index does not know yet."""
    by_position = {response.position: response for response in on_disk}
    for response in in_memory:
        entry = by_position.get(response.position)
        by_position[response.position] = attrs.evolve(response, hits=0 if entry is None else entry.hits)
    return [
        attrs.evolve(by_position[position], hits=by_position[position].hits + used.get(position[0], 0))
        for position in sorted(by_position)[:limit]
    ]


def _of_row(target: str, selected: str, size: int, stale: int, response: str, hits: int) -> Entry:
    try:
        data = json.loads(response)
        times, policy, status, private = data["times"], data["policy"], data["status"], data["private"]
        received, lifetime = float(times["received"]), float(policy["lifetime"])
        age = max(0.0, received - times["date"], times["age"] + received - times["requested"])
    except (KeyError, TypeError, ValueError):  # it is damaged and will be removed when it is requested
        status, private, received, lifetime, age, stale = 0, False, 0.0, 0.0, 0.0, 1
    return Entry(target, selected, status, size, received, age, lifetime, bool(stale), bool(private), hits)


def _of_response(stored: StoredResponse) -> Entry:
    received = stored.times.received
    return Entry(
        target=stored.target,
        selected=selection_key(stored.selected),
        status=stored.status,
        bytes=stored.body.length or 0,
        stored_at=received,
        age_then=stored.times.current_age(received),
        lifetime=stored.policy.lifetime,
        stale=stored.stale,
        private=stored.private,
        hits=0,
        tier="memory",
    )


P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")

#: Responses that can be used for fewer seconds stay in memory.
DISK_LIFETIME: Final = 10.0


class Store:
    """The memory tier above the disk tier, and the purges that apply to both. `clock` returns seconds since 1970."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        *,
        memory_bytes: int,
        memory_object_bytes: int,
        disk_bytes: int,
    ) -> None:
        self.disk = DiskTier(directory, disk_bytes, clock)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        #: The thread that makes purges durable, which does not wait for the work of the other thread.
        self._syncer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="purges")
        self.memory = MemoryTier(memory_bytes)
        self._memory_object_bytes = memory_object_bytes
        #: Responses in memory that will be on disk in a moment.
        self.unsaved = WaitingRoom(self.disk, self._in_worker)
        self._requested: cachetools.LRUCache[str, bool] = cachetools.LRUCache(16_384)
        #: The number of uses of each target since the last report to the disk tier.
        self._used: dict[str, int] = {}
        self.ledger = Ledger(self.disk.purges.epoch(0))
        self._on_purge: list[Callable[[Purge], None]] = []

    async def aclose(self) -> None:
        """Save the unsaved responses, and end the worker thread after its work."""
        await self.unsaved.aclose()
        await self._in_worker(self.disk.close)
        self._worker.shutdown()
        self._syncer.shutdown()

    def on_purge(self, callback: Callable[[Purge], None]) -> None:
        """Call `callback` with every purge, including those of other processes."""
        self._on_purge.append(callback)

    def resize(self, *, memory_bytes: int, memory_object_bytes: int, disk_bytes: int) -> None:
        """Change the budgets. The disk tier applies a smaller one with the next arriving body."""
        self.memory.resize(memory_bytes)
        self._memory_object_bytes = memory_object_bytes
        self.disk.budget = disk_bytes

    def used(self, target: str) -> None:
        """Record that a stored response has answered a request."""
        self._used[target] = self._used.get(target, 0) + 1  # faster than a Counter

    async def check(self) -> None:
        """Check readiness. Raise `Degraded` while the disk tier cannot be used."""
        if self.disk.problem:
            raise Degraded(
                f"The disk tier cannot be used ({self.disk.problem}); objects are passed on, or kept in memory."
            )

    def spool(self, target: str, length: int | None, *, unread_seconds: float = math.inf) -> Spool:
        """Return a place for an arriving body, which ends when nobody has read it for `unread_seconds`."""
        wanted_again = target in self._requested
        self._requested[target] = True
        space = _DiskSpace(self, displace=wanted_again)
        return Spool(space, self._memory_object_bytes, length, unread_seconds=unread_seconds)

    async def set_aside(self, file: ArrivingFile, minimum: int, preferred: int, *, displace: bool) -> bool:
        """Reserve space on disk for an arriving body; see `DiskTier.set_aside`."""
        return await self._on_disk(False, self.disk.set_aside, file, minimum, preferred, displace=displace)

    def disk_failed(self, error: OSError) -> None:
        """Note that an arriving body could not be written."""
        self.disk.failed(error)

    def catch_up(self) -> int:
        """Apply the purges of other processes, as before every lookup. Return how many responses they have hit in
        memory."""
        epoch = self.ledger.epoch
        if self.disk.purges.epoch(epoch) == epoch:
            return 0
        return sum(self._obey(number, purge) for number, purge in self.disk.purges.since(epoch))

    async def find(self, target: str, request: Mapping[str, str]) -> StoredResponse | None:
        """Return the response that this request selects, from either tier. No purge concerns it."""
        while True:
            self.catch_up()
            stored = self.memory.find(target, request)
            if stored is not None:
                return stored
            await self.unsaved.settle(target)
            if not self.disk.has(target):
                return None
            epoch = self.ledger.epoch
            variants: list[StoredResponse] = await self._on_disk([], self.disk.find, target)
            variants = [await self._warmed(stored) for stored in variants]
            self.catch_up()
            if epoch == self.ledger.epoch or not variants:
                break
        if target not in self.memory:
            self.memory.put(target, tuple(variants))
        return next((s for s in variants if selection.matches(s.selected, request)), None)

    async def save(self, stored: StoredResponse, spool: Spool, on_saved: OnSaved | None = None) -> None:
        """Store a response whose body has arrived, unless a purge has concerned it in the meantime, or it may not
        displace the present one. `on_saved` is called when it is on disk, a moment later for a body in memory."""
        if not await self._may_displace(stored):
            return
        self._used.pop(stored.target, None)  # those uses were of another response
        if not spool.in_memory:
            await self._save_file(stored, spool, on_saved)
            return
        self.catch_up()
        if self.ledger.is_concerned(stored.epoch, stored):
            return
        body = MemoryBody(spool.data())
        self.memory.replace(attrs.evolve(stored, body=body))
        if _may_be_on_disk(stored):
            self.unsaved.add(Unsaved(stored, body, spool.space.displace, on_saved))
            if self.unsaved.is_full:
                await self.unsaved.flush()
        else:
            await self.unsaved.settle(stored.target)
            if self.disk.has(stored.target):
                await self._on_disk(None, self.disk.remove, stored)

    async def _may_displace(self, stored: StoredResponse) -> bool:
        """Return whether nothing has been stored in the meantime that must be kept (see `storing.may_displace`)."""
        if 200 <= stored.status < 300:
            return True
        selecting = {name: value for name, value in stored.selected if value is not None}
        present = await self.find(stored.target, selecting)
        return present is None or present.may_be_displaced_by(stored.status)

    async def _save_file(self, stored: StoredResponse, spool: Spool, on_saved: OnSaved | None) -> None:
        if not spool.is_kept:
            return
        await self.unsaved.settle(stored.target)  # so that older responses are saved first
        body: FileBody | None = await self._on_disk(
            None, self.disk.save, stored, spool, wanted_again=spool.space.displace
        )
        self.catch_up()
        if body is None or self.ledger.is_concerned(stored.epoch, stored):
            return
        self.memory.replace(attrs.evolve(stored, body=body))
        if on_saved is not None:
            on_saved(stored, spool.digest, body.path)

    async def update(self, old: StoredResponse, new: StoredResponse) -> None:
        """Replace the fields of a response whose bytes stay the same, unless it was removed in the meantime.

        A cancelled caller waits for the end, because a response that has become private must not stay public on
        disk.
        """
        await ended(asyncio.create_task(self._update(old, new)))

    async def _update(self, old: StoredResponse, new: StoredResponse) -> None:
        self.catch_up()
        if self.ledger.is_concerned(new.epoch, new):
            return
        copies = [s for s in self.memory.get(old.target) if s.is_same(old)]
        if not copies:
            return
        new = attrs.evolve(new, body=copies[0].body)  # the body in which `old` arrived may be closed now
        self.memory.replace(new)
        await self.unsaved.settle(new.target)
        is_written = await self._on_disk(False, self.disk.update, new)
        if new.private and not old.private and not is_written:
            # The disk still says that it is public.
            await self._announce(Purge(urls=frozenset({new.target})))

    async def remove(self, stored: StoredResponse) -> None:
        """Remove a response that cannot be used."""
        self.memory.drop(stored)
        await self.unsaved.settle(stored.target)
        await self._on_disk(None, self.disk.remove, stored)

    async def purge(self, purge: Purge) -> int:
        """Carry out a purge here and for all processes that share the disk tier. Return how many responses it hit on
        disk, or in memory if those are more.

        When it returns, nothing that was stored, or began to be stored, before it is served any more, not even after
        a crash. That takes no space on the disk: the index may be updated later, and is not used until then. What
        cannot be recorded at all becomes a purge of everything. Raise `OSError` if the purge may not survive a crash
        of the machine.
        """
        before = self.ledger.epoch
        in_memory = await self._announce(purge)
        await self._in(self._syncer, self.disk.purges.sync)
        return max(in_memory, await self._on_disk(0, self.disk.carry_out_purges, before))

    async def _announce(self, purge: Purge) -> int:
        """Announce a purge to all processes and apply it. Return how many responses it hit in memory. Raise
        `OSError`."""
        purges, loop = self.disk.purges, asyncio.get_running_loop()
        deadline = loop.time() + TIMEOUT
        try:
            while not purges.add(purge, self.ledger.epoch):
                if loop.time() > deadline:
                    raise TimeoutError("another process keeps the purge log locked")
                await asyncio.sleep(0.001)
        except OSError as error:
            self.disk.failed(error)
            purges.discard()
        hit = self.catch_up()
        await asyncio.sleep(purges.unknown_for)
        return hit

    async def tend(self) -> None:
        """Repair the disk tier if possible, and report to it which responses were used."""
        self.catch_up()
        await self._on_disk(None, self.disk.tend)
        used, self._used = self._used, {}
        if used:
            elsewhere = await self._on_disk(list(used), self.disk.touch, used)
            self._used.update({target: used[target] for target in elsewhere if target in self.memory})

    async def check_bodies(self, bytes_per_second: int, pause: float = 1.0) -> None:
        """Check all files of the disk tier once for changed bytes, and find those without a row. `pause` is in
        seconds, and made 256 times."""
        files = self.disk.files
        for part in files.parts():
            await self._on_disk(None, self.disk.sweep, part)
            for digest in await self._on_disk(
                [], self.disk.ask, functools.partial(index.bodies, prefix=part)
            ):
                if await checking.read_digest(files.path(digest), bytes_per_second) != digest:
                    await self._on_disk(None, self.disk.check, digest)
            await asyncio.sleep(pause)

    async def stored(self, prefix: str, after: tuple[str, str], limit: int) -> list[Entry]:
        """Return at most `limit` responses whose targets begin with `prefix`, after `after` (target and selection),
        in order. While the disk tier cannot be used, those in memory are returned."""
        page = functools.partial(index_page, prefix=prefix, after=after, limit=limit)
        on_disk: list[Entry] = await self._on_disk([], self.disk.ask, page)
        # In a thread, because there may be hundreds of thousands.
        targets = await asyncio.to_thread(first_targets, self.memory.targets(), prefix, after, limit)
        return merge_listed(on_disk, listed_in_memory(self.memory, targets, after), self._used, limit)

    def _obey(self, epoch: int, purge: Purge) -> int:
        self.ledger.record(epoch, purge)
        hit = self.memory.obey(purge)
        for callback in self._on_purge:
            callback(purge)
        return hit

    async def _warmed(self, stored: StoredResponse) -> StoredResponse:
        """Return the response with its small body in memory, after its first use."""
        body = stored.body
        if not isinstance(body, FileBody) or body.length > self._memory_object_bytes:
            return stored
        try:
            return attrs.evolve(stored, body=MemoryBody(await self._in_worker(body.read_all), body))
        except (OSError, BodyGoneError):
            return stored

    async def _on_disk(
        self, otherwise: D, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | D:
        """Return the result of a method of the disk tier, or `otherwise` if it fails, which affects no client."""
        try:
            return await self._in_worker(function, *args, **kwargs)
        except OldLogError:  # the next request finds the new log
            return otherwise
        except (sqlite3.Error, OSError) as error:
            failure = error.with_traceback(None)
        await self._in_worker(self.disk.failed, failure)
        return otherwise

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in(self._worker, function, *args, **kwargs)

    async def _in(
        self, threads: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        work = functools.partial(function, *args, **kwargs)
        return await ended(asyncio.get_running_loop().run_in_executor(threads, work))


@attrs.frozen
class _DiskSpace:
    """The provider of space for a body that outgrows memory."""

    store: Store
    displace: bool

    async def set_aside(self, file: ArrivingFile, minimum: int, preferred: int) -> bool:
        return await self.store.set_aside(file, minimum, preferred, displace=self.displace)

    def failed(self, error: OSError) -> None:
        self.store.disk_failed(error)


def _may_be_on_disk(stored: StoredResponse) -> bool:
    """Return whether a response can be used for long, or validated. Refusals without keys stay in memory: every
    purge concerns them (`Purge.concerns`), which the index cannot express."""
    is_useful = stored.policy.lifetime >= DISK_LIFETIME or bool(stored.conditions)
    return is_useful and (stored.status == 200 or bool(stored.surrogate_keys))
