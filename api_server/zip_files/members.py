"""Files of the zip archives in the object store, each archive with its index beside it."""

import asyncio
import contextlib
import itertools
import struct
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

import attrs
from aiohttp import web

from api_server.state.objects import INDEX, Objects
from api_server.zip_files import directory, index
from api_server.zip_files.directory import STORED, DamagedError, Limits, Member, TooMuchError
from common.concurrency import ConcurrencyLimiter

#: Bytes that are unpacked at a time, however many the packed ones would make.
_PIECE = 256 * 1024
_LOCAL_HEADER = struct.Struct("<4s22x2H")
#: Directories that are read at a time, and how long others wait for their turn, in seconds.
_AT_A_TIME = 2
_PATIENCE = 60.0


def with_indices(keys: Iterable[str]) -> Iterator[str]:
    """The keys of objects, each followed by that of its index if it is an archive that has one."""
    for key in keys:
        yield key
        yield _index_key(key)


@attrs.frozen
class Folder:
    """What stands directly in a folder of an archive: folders by name, files by name with their bytes."""

    folders: list[str]
    files: dict[str, int]
    #: There is more than that.
    is_cut: bool


class ZipFiles:
    """Looks files up in archives of the object store."""

    def __init__(self, objects: Objects, limits: Limits) -> None:
        self._objects = objects
        self._limits = limits
        self._turns = ConcurrencyLimiter(_AT_A_TIME, _AT_A_TIME, patience=_PATIENCE)

    async def make_index(self, key: str) -> None:
        """Reads the archive's directory and keeps its index; an archive that is damaged has an empty one.

        Raises `TooMuchError` beyond the limits, and `TooBusy`; nothing is kept then.
        """
        async with self._turns.place():
            await self._objects.put(_index_key(key), _async(await asyncio.to_thread(self._read, key)))

    def _read(self, key: str) -> Iterator[bytes]:
        with self._objects.open(key) as file:
            try:
                pieces = index.packed(directory.entries(file, self._limits), _secret(key))
                return itertools.chain([next(pieces)], pieces)
            except DamagedError:
                return index.packed((), _secret(key))

    async def find(self, key: str, path: str) -> Member | None:
        """The file at `path` in the archive; none in one that holds more than the limits allow.

        Raises FileNotFoundError where the archive is gone, and `TooBusy`.
        """
        name = path.encode()
        place = await self._place(key, name)
        if place is None:  # stored before there were indices
            try:
                await self.make_index(key)
            except TooMuchError:
                await self._objects.put(_index_key(key), _async(index.packed((), _secret(key))))
            place = await self._place(key, name)
        if place is None:
            raise FileNotFoundError(key)
        return index.find(await self._bytes(_index_key(key), *place), name, _secret(key))

    async def folder(self, key: str, path: str, most: int) -> Folder:
        """What stands directly in the folder at `path` ("" is the archive's root, others end with a slash), at most so
        much: nothing where the archive is damaged, or holds more than the limits allow.

        Raises FileNotFoundError where the archive is gone, and `TooBusy`.
        """
        async with self._turns.place():
            return await asyncio.to_thread(self._folder, key, path.encode(), most)

    def _folder(self, key: str, path: bytes, most: int) -> Folder:
        folders: set[str] = set()
        files: dict[str, int] = {}
        with self._objects.open(key) as file, contextlib.suppress(DamagedError, TooMuchError):
            for name, member in directory.entries(file, self._limits):
                if not name.startswith(path):
                    continue
                first, slash, _ = name[len(path) :].decode().partition("/")
                if slash:
                    folders.add(first)
                else:
                    files[first] = member.size
                if len(folders) + len(files) > most:
                    return Folder(sorted(folders), dict(sorted(files.items())), is_cut=True)
        return Folder(sorted(folders), dict(sorted(files.items())), is_cut=False)

    async def _place(self, key: str, name: bytes) -> tuple[int, int] | None:
        try:
            head = await self._bytes(_index_key(key), 0, index.HEAD_BYTES)
        except FileNotFoundError:
            return None
        return index.place(head, name, _secret(key))

    async def _bytes(self, key: str, start: int, end: int) -> bytes:
        return b"".join([piece async for piece in self._objects.read(key, start, end)])

    async def unpack(self, key: str, archive_bytes: int, member: Member) -> AsyncGenerator[bytes, None]:
        """The file's bytes, of an archive of so many. Raises `DamagedError`, perhaps after some: they are as many as
        were declared, with the CRC that was, or the iteration fails. Raises FileNotFoundError where the archive is
        gone."""
        header = await self._bytes(key, member.offset, member.offset + _LOCAL_HEADER.size)
        signature, *lengths = _LOCAL_HEADER.unpack(header) if len(header) == _LOCAL_HEADER.size else (b"",)
        if signature != b"PK\3\4":
            raise DamagedError
        start = member.offset + _LOCAL_HEADER.size + sum(lengths)
        if start + member.packed > archive_bytes:
            raise DamagedError
        size = crc = 0
        async with contextlib.aclosing(self._objects.read(key, start, start + member.packed)) as chunks:
            async for piece in _unpacked(chunks, member.method):
                size += len(piece)
                if size > member.size:
                    raise DamagedError
                crc = zlib.crc32(piece, crc)
                yield piece
        if (size, crc) != (member.size, member.crc):
            raise DamagedError


ZIP_FILES = web.AppKey("zip_files", ZipFiles)


async def _unpacked(chunks: AsyncIterator[bytes], method: int) -> AsyncIterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    async for chunk in chunks:
        if method == STORED:
            yield chunk
            continue
        packed = chunk
        try:
            while not inflater.eof and (
                piece := await asyncio.to_thread(inflater.decompress, packed, _PIECE)
            ):
                yield piece
                packed = inflater.unconsumed_tail
        except zlib.error as problem:
            raise DamagedError from problem


def _secret(key: str) -> bytes:
    """Of an object's key, which nobody outside is told, the random end."""
    return key.encode()[-64:]


def _index_key(key: str) -> str:
    return f"{key}{INDEX}"


async def _async(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
