"""Where responses are kept: small bodies in memory, all bodies on disk."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import attrs
import cachetools

from common.ending import ended
from storage_edge.rules import selection
from storage_edge.tiers.bodies import Body, FileBody, MemoryBody, Spool
from storage_edge.tiers.disk import DiskTier
from storage_edge.tiers.purges import Ledger, Purge
from storage_edge.tiers.stored_responses import StoredResponse

P = ParamSpec("P")
T = TypeVar("T")

#: What an entry costs in memory beside its body, about.
ENTRY_OVERHEAD: Final = 4096
#: Stored answers of one target that differ by Vary.
MAX_VARIANTS: Final = 16
#: Responses that can only be used for less than this many seconds stay in memory.
DISK_LIFETIME: Final = 10.0


class Store:
    """The memory tier over the disk tier, and the purges that both obey. `clock` gives seconds since 1970."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        *,
        memory_bytes: int,
        memory_object_bytes: int,
        disk_bytes: int,
    ) -> None:
        self._disk = DiskTier(directory, disk_bytes, clock)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self._memory: cachetools.LRUCache[str, tuple[StoredResponse, ...]] = cachetools.LRUCache(
            memory_bytes, getsizeof=_weight
        )
        self._memory_object_bytes = memory_object_bytes
        self._seen: cachetools.LRUCache[str, bool] = cachetools.LRUCache(16_384)
        self._used: set[str] = set()
        self.ledger = Ledger(self._disk.epoch)
        self._on_purge: list[Callable[[Purge], None]] = []

    async def aclose(self) -> None:
        """Ends the worker thread after what it has to do."""
        await self._in_worker(self._disk.close)
        self._worker.shutdown()

    def on_purge(self, callback: Callable[[Purge], None]) -> None:
        """`callback` learns of every purge, those of other processes included."""
        self._on_purge.append(callback)

    @property
    def memory_used(self) -> int:
        """Bytes of the memory tier."""
        return int(self._memory.currsize)

    @property
    def disk_used(self) -> int:
        """Bytes of the disk tier."""
        return self._disk.size

    @property
    def evicted(self) -> int:
        """Bodies that this process has evicted from the disk tier."""
        return self._disk.evicted

    def spool(self, length: int | None) -> Spool:
        """A place for a body that arrives."""
        return Spool(self._disk.incoming, self._memory_object_bytes, length)

    def catch_up(self) -> None:
        """Obeys the purges that other processes have carried out; to be called before every lookup."""
        if self._disk.epoch != self.ledger.epoch:
            for epoch, purge in self._disk.purges_since(self.ledger.epoch):
                self._obey(epoch, purge)

    def find_in_memory(self, target: str, request: Mapping[str, str]) -> StoredResponse | None:
        """The response in memory that this request selects."""
        for stored in self._memory.get(target, ()):
            if not stored.selected or selection.matches(stored.selected, request):
                self._used.add(target)
                return stored
        return None

    async def find(self, target: str, request: Mapping[str, str]) -> StoredResponse | None:
        """The response that this request selects, from either tier. No purge has concerned it."""
        while True:
            self.catch_up()
            stored = self.find_in_memory(target, request)
            if stored is not None:
                return stored
            if not self._disk.has(target):
                return None
            epoch = self.ledger.epoch
            variants = await self._in_worker(self._disk.find, target)
            variants = [await self._warmed(stored) for stored in variants]
            self.catch_up()
            if epoch == self.ledger.epoch:
                break
        if target not in self._memory:
            self._remember(target, tuple(variants))
        return next((s for s in variants if selection.matches(s.selected, request)), None)

    async def save(self, stored: StoredResponse, spool: Spool) -> FileBody | None:
        """Keeps a response whose body has arrived, unless a purge concerned it meanwhile; its body on disk, if it
        is there.
        """
        wanted_again = stored.target in self._seen
        self._seen[stored.target] = True
        data = spool.data() if spool.in_memory else None
        on_disk: FileBody | None = None
        keep_on_disk = data is None or stored.policy.lifetime >= DISK_LIFETIME or bool(stored.conditions)
        if keep_on_disk:
            on_disk = await self._in_worker(self._disk.save, stored, spool, wanted_again=wanted_again)
        self.catch_up()
        if (keep_on_disk and on_disk is None) or self.ledger.is_concerned(stored.epoch, stored):
            return None
        body: Body | None = on_disk
        if data is not None:
            body = MemoryBody(data, None if on_disk is None else on_disk.path)
        if body is not None:
            self._replace(attrs.evolve(stored, body=body))
        return on_disk

    async def update(self, old: StoredResponse, new: StoredResponse) -> None:
        """Replaces the fields of a response whose bytes stay the same, unless it is not there any more."""
        self.catch_up()
        if self.ledger.is_concerned(new.epoch, new):
            return
        for kept in self._memory.get(old.target, ()):
            if kept.times == old.times and kept.selected == old.selected:
                break
        else:
            return
        # The body that `old` arrived in may be closed by now.
        new = attrs.evolve(new, body=kept.body)
        self._replace(new)
        await self._in_worker(self._disk.update, new)

    async def remove(self, stored: StoredResponse) -> None:
        """Drops a response that turned out to be useless."""
        kept = tuple(s for s in self._memory.get(stored.target, ()) if s.selected != stored.selected)
        self._remember(stored.target, kept)
        await self._in_worker(self._disk.remove, stored)

    async def purge(self, purge: Purge) -> int:
        """Carries out a purge here and for all processes that share the disk tier; the number of responses hit.

        When it returns, nothing that was stored, or began to be stored, before it is served any more.
        """
        hit = await self._in_worker(self._disk.purge, purge)
        self.catch_up()
        return hit

    async def flush_uses(self) -> None:
        """Tells the disk tier which responses were used, in one go."""
        used, self._used = self._used, set()
        if used:
            await self._in_worker(self._disk.touch, used)

    def _obey(self, epoch: int, purge: Purge) -> None:
        self.ledger.record(epoch, purge)
        for target, variants in list(self._memory.items()):
            concerned = [s for s in variants if purge.concerns(s)]
            if concerned:
                kept = [s for s in variants if s not in concerned]
                if purge.soft:
                    kept += [attrs.evolve(s, stale=True) for s in concerned]
                self._remember(target, tuple(kept))
        for callback in self._on_purge:
            callback(purge)

    def _replace(self, stored: StoredResponse) -> None:
        others = tuple(s for s in self._memory.get(stored.target, ()) if s.selected != stored.selected)
        self._remember(stored.target, (stored, *others)[:MAX_VARIANTS])

    def _remember(self, target: str, variants: tuple[StoredResponse, ...]) -> None:
        self._memory.pop(target, None)
        if variants and _weight(variants) <= self._memory.maxsize:
            self._memory[target] = variants

    async def _warmed(self, stored: StoredResponse) -> StoredResponse:
        """A small body goes to memory with the first use of its response."""
        body = stored.body
        if not isinstance(body, FileBody) or body.length > self._memory_object_bytes:
            return stored
        try:
            data = await self._in_worker(body.path.read_bytes)
        except OSError:
            return stored
        return attrs.evolve(stored, body=MemoryBody(data, body.path)) if len(data) == body.length else stored

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await ended(loop.run_in_executor(self._worker, lambda: function(*args, **kwargs)))


def _weight(variants: tuple[StoredResponse, ...]) -> int:
    return sum(ENTRY_OVERHEAD + _resident(stored) for stored in variants)


def _resident(stored: StoredResponse) -> int:
    return stored.body.length if isinstance(stored.body, MemoryBody) else 0
