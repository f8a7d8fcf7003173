"""Adding to a log and reading it, wherever its bytes are."""

import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing

import attrs
import orjson
import structlog

from api_server.ci.jobs.logs import queries
from api_server.ci.jobs.logs.masking import mask
from api_server.state.database import Database
from api_server.state.objects import OBJECTS, Objects
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, VAULT, App
from common.concurrency import aside

log = structlog.get_logger(__name__)

#: Bytes that are stored as one piece at most; a statement that stores it takes some times as much memory.
CHUNK = 2**18
#: Small pieces are read together, up to about so many bytes.
_WINDOW = 2**18
#: Bytes of a piece and of secrets that are masked in the event loop.
_MASKED_AT_ONCE = 2**13


@attrs.frozen
class End:
    """What an append has to know of the log before it: its size, its CRC-32, and what is held back of it."""

    size: int
    checksum: int
    held: bytes


@attrs.frozen
class Logs:
    """The logs of all jobs."""

    database: Database
    objects: Objects
    vault: Vault

    def masked_values(self, sealed: bytes | None) -> tuple[bytes, ...]:
        """The variables that a job's log must not show, as they stand encrypted in its row."""
        if sealed is None:
            return ()
        return tuple(text.encode() for text in orjson.loads(self.vault.decrypt(sealed)))

    async def append(self, job_id: int, end: End, text: bytes, secrets: tuple[bytes, ...]) -> End | None:
        """Adds `text` to a log that ends so: its new end, durable. None where it does not end so any more, or its job
        does not run."""
        bytes_compared = len(end.held) + len(text) + sum(map(len, secrets))
        stored, held = await aside(bytes_compared > _MASKED_AT_ONCE, mask, end.held + text, secrets)
        after = End(end.size + len(text), zlib.crc32(text, end.checksum), held)
        async with self.database.transaction() as transaction:
            added = await queries.append(
                transaction,
                job_id,
                size=end.size,
                received=len(text),
                start=end.size - len(end.held),
                text=stored,
                checksum=after.checksum,
                held=self.vault.encrypt(held.decode("latin-1")) if held else None,
                held_size=len(held),
            )
        return after if added else None

    async def size(self, job_id: int) -> int:
        """Bytes received; 0 without a log."""
        found = await queries.find_log(self.database, job_id)
        return 0 if found is None else found.size

    async def read(self, job_id: int, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` (exclusive), a piece at a time. Ends early where the log is erased meanwhile."""
        position = start
        while position < end:
            chunks = await queries.read_chunks(self.database, job_id, position, _WINDOW)
            if not chunks:
                break
            for chunk in chunks:
                piece = chunk.text[position - chunk.start : end - chunk.start]
                position += len(piece)
                yield piece
        if position < end:  # they were moved, before this began or meanwhile
            found = await queries.find_log(self.database, job_id)
            if found is not None and found.object_key is not None:
                try:
                    async with aclosing(self.objects.read(found.object_key, position, end)) as pieces:
                        async for piece in pieces:
                            yield piece
                except FileNotFoundError:
                    await self._tell_if_lost(job_id, found.object_key)

    async def _tell_if_lost(self, job_id: int, key: str) -> None:
        """An object goes after its row; one that has a row still is lost."""
        log_now = await queries.find_log(self.database, job_id)
        if log_now is not None and log_now.object_key == key:
            log.error("the log of a job is gone from the object store", job_id=job_id, key=key)

    def opened(self, held: bytes | None) -> bytes:
        """The end of a log that may be the beginning of a secret, as it came."""
        return b"" if held is None else self.vault.decrypt(held).encode("latin-1")


def logs_of(app: App) -> Logs:
    return Logs(app[DATABASE], app[OBJECTS], app[VAULT])
