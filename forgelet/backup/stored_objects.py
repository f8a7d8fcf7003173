"""Stored objects in a backup: those that a row names, with the indices beside archives, and the kept heads of the audit
trail. Each is written once and never changed, so that it may be copied long after the backup's moment."""

import asyncio
import io
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import attrs

from api_server.audit.chain import HEADS_FOLDER
from api_server.state.objects import INDEX, Objects
from forgelet.backup import form
from forgelet.backup.form import PIECE, Source, Writer

_IN_MEMORY = 32 * 2**20
#: Objects that are asked for at a time where each costs a request, and up to which size they are held in memory.
_AT_ONCE = 16
_SMALL = 256 * 1024
_HEAD = re.compile(rf"{HEADS_FOLDER}/(\d{{19}})-[0-9a-f]{{64}}")


class Keys:
    """The keys that rows name, in memory or where they are many in a temporary file."""

    def __init__(self) -> None:
        self._lines: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self.count = 0

    def add(self, keys: Iterable[tuple[str, bool]]) -> None:
        for key, may_have_index in keys:
            self._lines.write(f"{key}\n".encode())
            if may_have_index:
                self._lines.write(f"{key}{INDEX}\n".encode())
            self.count += 1

    def each(self) -> Iterator[str]:
        self._lines.seek(0)
        for line in self._lines:
            yield line.decode().rstrip("\n")

    def close(self) -> None:
        self._lines.close()


@attrs.define
class Tally:
    """What was copied: objects without indices; and keys that rows name of objects which are not there."""

    count: int = 0
    bytes: int = 0
    missing: list[str] = attrs.field(factory=list)


class Copier:
    """Copies objects into a backup, one after the other; from S3 small ones are fetched several at a time."""

    def __init__(self, objects: Objects, writer: Writer, runner: asyncio.Runner) -> None:
        self._objects = objects
        self._writer = writer
        self._runner = runner
        self.tally = Tally()

    def copy(self, keys: Iterable[str]) -> Iterator[str]:
        """Gives each key when it is done. Raises `Unavailable`, and OSError."""
        if self._objects.folder is not None:
            for key in keys:
                self._copy_file(self._objects.folder / key, key)
                yield key
            return
        wanted = iter(keys)
        while batch := list(islice(wanted, _AT_ONCE)):
            for key, found in zip(batch, self._runner.run(self._fetch(batch)), strict=True):
                self._copy_fetched(key, found)
                yield key

    def heads(self, last: int) -> list[str]:
        """Keys of the heads of the audit trail that were kept up to its position `last`."""
        return sorted(key for key in self._runner.run(self._listed()) if _position(key) <= last)

    async def _listed(self) -> list[str]:
        return [key async for key in self._objects.keys(HEADS_FOLDER) if _HEAD.fullmatch(key)]

    def _copy_file(self, file: Path, key: str) -> None:
        try:
            opened = file.open("rb")
        except FileNotFoundError:
            self._is_missing(key)
            return
        with opened:
            size = file.stat().st_size
            self._write(key, size, opened)

    async def _fetch(self, keys: list[str]) -> list[tuple[int, bytes | None] | None]:
        return await asyncio.gather(*map(self._fetch_small, keys))

    async def _fetch_small(self, key: str) -> tuple[int, bytes | None] | None:
        """The size of an object and, of a small one, its content; None where there is no such object."""
        try:
            size = await self._objects.size(key)
        except FileNotFoundError:
            return None
        if size > _SMALL:
            return size, None
        return size, b"".join([piece async for piece in self._objects.read(key, 0, size)])

    def _copy_fetched(self, key: str, found: tuple[int, bytes | None] | None) -> None:
        if found is None:
            self._is_missing(key)
            return
        size, content = found
        stream = self._objects.read(key, 0, size) if content is None else None
        source = io.BytesIO(content or b"") if stream is None else _Stream(stream, self._runner)
        self._write(key, size, source)

    def _write(self, key: str, size: int, source: Source) -> None:
        self._writer.copy(f"{form.OBJECTS}/{key}", size, source)
        self.tally.count += not key.endswith(INDEX)
        self.tally.bytes += size

    def _is_missing(self, key: str) -> None:
        if not key.endswith(INDEX):  # which is made anew when it is wanted
            self.tally.missing.append(key)


def _position(key: str) -> int:
    match = _HEAD.fullmatch(key)
    return int(match[1]) if match is not None else 0


class _Stream:
    """Pieces that come by and by, as a file."""

    def __init__(self, pieces: AsyncIterator[bytes], runner: asyncio.Runner) -> None:
        self._pieces = pieces
        self._runner = runner
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        wanted = PIECE if size < 0 else size
        while len(self._left) < wanted and (piece := self._runner.run(self._next())):
            self._left += piece
        given, self._left = self._left[:wanted], self._left[wanted:]
        return given

    async def _next(self) -> bytes:
        return await anext(self._pieces, b"")


async def pieces_of(source: Source) -> AsyncIterator[bytes]:
    """The opposite: a file as what the store takes."""
    while piece := source.read(PIECE):
        yield piece
