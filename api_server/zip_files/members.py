"""Files of the zip archives in the object store, each archive with its index beside it."""

import asyncio
import contextlib
import heapq
import itertools
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterable, Iterator

import attrs
from aiohttp import web
from cachetools import LRUCache

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
#: Bytes of names of archives that are kept so that folders need not be read again, in all and of one archive; and what
#: a name takes besides its own.
_NAMES_KEPT = 64 * 2**20
_NAMES_OF_ONE = 48 * 2**20
_OF_A_NAME = 56
_SORTED_AT_ONCE = 5_000


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


@attrs.define
class Names:
    """The names of all files of an archive in order, and their bytes, as folders are looked up in them."""

    _names: list[bytes] = attrs.field(factory=list)
    _sizes: "array[int]" = attrs.field(factory=lambda: array("Q"))
    #: Bytes that they take.
    memory: int = 1
    #: There are more than can be kept.
    _is_cut: bool = False

    def read(self, entries: Iterable[tuple[bytes, Member]]) -> None:
        """Take the files in, in any order, as far as there is room. Raises what reading them does."""
        for name, member in entries:
            self.memory += len(name) + _OF_A_NAME
            if self.memory > _NAMES_OF_ONE:
                self._is_cut = True
                break
            self._names.append(name)
            self._sizes.append(member.size)

    def sort(self) -> None:
        """Put them in order, a few thousand at a time, since nothing else goes on while Python sorts a list."""
        name_of, count = self._names.__getitem__, len(self._names)
        parts = (
            range(start, min(start + _SORTED_AT_ONCE, count)) for start in range(0, count, _SORTED_AT_ONCE)
        )
        order = list(heapq.merge(*(sorted(part, key=name_of) for part in parts), key=name_of))
        self._names = [self._names[at] for at in order]
        self._sizes = array("Q", (self._sizes[at] for at in order))

    def folder(self, path: bytes, most: int) -> Folder:
        """What stands directly in the folder at `path`, at most so much, of several files of one name the last, as
        unpackers have it. Each of them takes one look, however much is in it."""
        folders: list[str] = []
        files: dict[str, int] = {}
        at = bisect_left(self._names, path)
        while at < len(self._names) and self._names[at].startswith(path):
            if len(folders) + len(files) == most:
                return Folder(sorted(folders), dict(sorted(files.items())), is_cut=True)
            first, slash, _ = self._names[at][len(path) :].partition(b"/")
            if slash:
                folders.append(first.decode())
                at = bisect_left(self._names, path + first + b"0", at)  # the character after a slash
            else:
                at = bisect_right(self._names, path + first, at)
                files[first.decode()] = self._sizes[at - 1]
        return Folder(sorted(folders), dict(sorted(files.items())), self._is_cut)


class ZipFiles:
    """Looks files up in archives of the object store."""

    def __init__(self, objects: Objects, limits: Limits) -> None:
        self._objects = objects
        self._limits = limits
        self._turns = ConcurrencyLimiter(_AT_A_TIME, _AT_A_TIME, patience=_PATIENCE)
        self._looks = ConcurrencyLimiter(_AT_A_TIME, 1, patience=_PATIENCE)
        self._names: LRUCache[str, Names] = LRUCache(_NAMES_KEPT, getsizeof=lambda names: names.memory)

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

    async def folder(self, key: str, path: str, most: int, *callers: Hashable) -> Folder:
        """What stands directly in the folder at `path` ("" is the archive's root, others end with a slash), at most so
        much: nothing where the archive is damaged, or holds more than the limits allow.

        The names in an archive are kept for a while; for the same `callers` one archive is read at a time. Raises
        FileNotFoundError where the archive is gone, and `TooBusy`.
        """
        if (names := self._names.get(key)) is None:
            async with self._looks.place(*callers):
                if (names := self._names.get(key)) is None:  # nobody else has read them meanwhile
                    names = self._names[key] = await asyncio.to_thread(self._read_names, key)
        return names.folder(path.encode(), most)

    def _read_names(self, key: str) -> Names:
        names = Names()
        with self._objects.open(key) as file, contextlib.suppress(DamagedError, TooMuchError):
            names.read(directory.entries(file, self._limits))
        names.sort()
        return names

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
