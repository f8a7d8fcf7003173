"""Bodies that have arrived in memory and are to be on disk. They are saved a moment later, together: saving at once
would take the processor just when those who asked for them get their answers.
"""

import asyncio
import contextlib
import functools
import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import attrs

from common.concurrency import ended
from storage_edge.tiers.bodies import FileBody, MemoryBody
from storage_edge.tiers.disk import DiskTier
from storage_edge.tiers.purge_log import OldLogError
from storage_edge.tiers.stored_responses import StoredResponse

#: Seconds for which a body may wait to be saved.
DELAY: Final = 0.1
#: Bytes that may wait; whoever brings more waits until they are saved.
MOST_BYTES: Final = 16 * 1024 * 1024
#: Bodies that are saved at one go, in one transaction, and their bytes; others that need the disk get their turn in
#: between, and so do other processes.
BATCH: Final = 16
BATCH_BYTES: Final = 4 * 1024 * 1024

#: Learns of a response that is on disk now: SHA-256 of its body in hexadecimal, and its file.
Saved = Callable[[StoredResponse, str, Path], None]


#: Calls a function in a thread of its own.
InWorker = Callable[[Callable[[], list[FileBody | None]]], Awaitable[list[FileBody | None]]]


@attrs.define(eq=False)
class Unsaved:
    """A response whose body is in memory, as the disk tier takes it. `wanted_again`: see `DiskTier.save`."""

    stored: StoredResponse
    body: MemoryBody
    wanted_again: bool
    saved: Saved | None = None

    in_memory = True

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self.body.length

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal, made by whoever saves."""
        return hashlib.sha256(self.body.data).hexdigest()

    def move_to(self, path: Path, directory: Path) -> None:
        """See `Arrived.move_to`."""
        unfinished = f"{directory}/{path.name}"
        try:
            with open(unfinished, "wb", buffering=0) as file:  # noqa: PTH123 - thrice as fast
                written = file.write(self.body.data)
                while written < self.size:
                    written += file.write(self.body.data[written:])
            os.replace(unfinished, path)  # noqa: PTH105 - likewise
        except OSError:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def is_saved(self, file: FileBody) -> None:
        """It is on disk from now on."""
        self.body.file = file
        if self.saved is not None:
            self.saved(self.stored, self.digest, file.path)


class WaitingRoom:
    """What is unsaved. It is saved in the order in which it came, `in_worker`: the thread of the disk tier. A purge
    that came since a response began to be stored wins; what fails there concerns nobody.
    """

    def __init__(self, disk: DiskTier, in_worker: InWorker) -> None:
        self._disk = disk
        self._in_worker = in_worker
        self._waiting: list[Unsaved] = []
        self._targets: Counter[str] = Counter()
        self._bytes = 0
        self._one_at_a_time = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether more waits than should."""
        return self._bytes > MOST_BYTES

    def add(self, unsaved: Unsaved) -> None:
        """It is saved in a moment."""
        self._waiting.append(unsaved)
        self._targets[unsaved.stored.target] += 1
        self._bytes += unsaved.size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._begin)

    async def settle(self, target: str) -> None:
        """Saves it now if anything of a target waits: what is done on disk next has to come after that."""
        if target in self._targets:
            await self.flush()

    async def flush(self) -> None:
        """Saves all of it now. A caller that is cancelled waits for the end."""
        await ended(asyncio.create_task(self._flush()))

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            while self._waiting:
                batch = self._next_batch()
                try:
                    files = await self._in_worker(functools.partial(_save, self._disk, batch))
                finally:
                    self._forget(batch)
                for unsaved, file in zip(batch, files, strict=True):
                    if file is not None:
                        unsaved.is_saved(file)

    async def aclose(self) -> None:
        """Saves what waits still."""
        if self._timer is not None:
            self._timer.cancel()
        await self.flush()

    def _next_batch(self) -> list[Unsaved]:
        batch, size = self._waiting[:1], self._waiting[0].size
        for unsaved in self._waiting[1:BATCH]:
            size += unsaved.size
            if size > BATCH_BYTES:
                break
            batch.append(unsaved)
        del self._waiting[: len(batch)]
        return batch

    def _forget(self, batch: list[Unsaved]) -> None:
        for unsaved in batch:
            self._bytes -= unsaved.size
            self._targets[unsaved.stored.target] -= 1
            if not self._targets[unsaved.stored.target]:
                del self._targets[unsaved.stored.target]

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self.flush())


def _save(disk: DiskTier, batch: list[Unsaved]) -> list[FileBody | None]:
    """Together, or else one by one: what fails with one of them is the others' no concern."""
    if len(batch) > 1:
        with contextlib.suppress(sqlite3.Error, OSError):
            files = disk.save_all([(unsaved.stored, unsaved) for unsaved in batch])
            if files is not None:
                return files
    return [_save_alone(disk, unsaved) for unsaved in batch]


def _save_alone(disk: DiskTier, unsaved: Unsaved) -> FileBody | None:
    try:
        return disk.save(unsaved.stored, unsaved, wanted_again=unsaved.wanted_again)
    except OldLogError:
        pass
    except (sqlite3.Error, OSError) as error:
        disk.failed(error.with_traceback(None))
    return None
