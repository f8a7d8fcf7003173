"""Adding to a log and reading it, wherever its bytes are."""

import zlib
from collections.abc import AsyncIterator

import attrs

from api_server.areas.jobs.logs import queries
from api_server.areas.jobs.logs.masking import mask
from api_server.platform.keys import OBJECTS
from api_server.state.database import Database, Row
from api_server.state.objects import Objects
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, VAULT, App

#: Bytes that are stored as one piece at most; a statement that stores it takes some times as much memory.
CHUNK = 2**18
#: Small pieces are read together, up to about so many bytes.
_WINDOW = 2**18


@attrs.frozen
class Logs:
    """The logs of all jobs."""

    database: Database
    objects: Objects
    vault: Vault

    async def append(self, job_id: int, start: int, text: bytes, secrets: tuple[bytes, ...]) -> int | None:
        """Adds `text` at offset `start`: the log's new size, durable, or None where the log's size is not `start` or
        its job does not run any more."""
        log = await queries.find_log(self.database, job_id)
        size, checksum = (log.size, log.checksum) if log is not None else (0, 0)
        if size != start or (log is not None and log.closed):
            return None
        before = self.held(log)
        stored, held = mask(before + text, secrets)
        async with self.database.transaction() as transaction:
            added = await queries.append(
                transaction,
                job_id,
                size=size,
                received=len(text),
                start=size - len(before),
                text=stored,
                checksum=zlib.crc32(text, checksum),
                held=self.vault.encrypt(held.decode("latin-1")) if held else None,
                held_size=len(held),
            )
        return size + len(text) if added else None

    async def size(self, job_id: int) -> int:
        """Bytes received; 0 without a log."""
        log = await queries.find_log(self.database, job_id)
        return 0 if log is None else int(log.size)

    async def read(self, job_id: int, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` (exclusive), a piece at a time. Ends early where the log is erased meanwhile."""
        position = start
        while position < end:
            chunks = await queries.read_chunks(self.database, job_id, position, _WINDOW)
            if not chunks:
                break
            for chunk in chunks:
                piece = bytes(chunk.bytes)[position - chunk.start : end - chunk.start]
                position += len(piece)
                yield piece
        if position < end:  # they were moved, before this began or meanwhile
            log = await queries.find_log(self.database, job_id)
            if log is not None and log.object_key is not None:
                async for piece in self.objects.read(log.object_key, position, end):
                    yield piece

    def held(self, log: Row | None) -> bytes:
        """The end of a log that may be the beginning of a secret, as it came."""
        if log is None or log.held is None:
            return b""
        return self.vault.decrypt(log.held).encode("latin-1")


def logs_of(app: App) -> Logs:
    return Logs(app[DATABASE], app[OBJECTS], app[VAULT])
