"""Files in zip archives in the object store: the archive's central directory, an index of it, and single members.

The index has the form of git's index of a pack. Its records are sorted by the digest of the name. Before them is a
table that says for each first byte how many records begin with this byte or a lower one. Digests are keyed, so that
nobody can choose names whose digests are close together.
"""

import asyncio
import contextlib
import hashlib
import heapq
import io
import itertools
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterable, Iterator
from itertools import accumulate
from typing import IO

import attrs
from cachetools import LRUCache

from api_server.services import Key
from api_server.state.objects import INDEX, Objects
from common.concurrency import ConcurrencyLimiter

#: Methods of compression: uncompressed bytes, and deflate. GitLab supports no others either. bzip2 and LZMA take
#: megabytes of memory for each reader, LZMA as many as the archive demands.
STORED, DEFLATED = 0, 8
_METHODS = frozenset({STORED, DEFLATED})

#: Maximum number of bytes of a name: file systems accept no longer paths. Names of 64 KiB would only make directories
#: large.
MAX_NAME_BYTES = 4096

_ENTRY = struct.Struct("<4s4x2H4x3L3H8xL")
_END = struct.Struct("<4s6xH2LH")
_END_64_LOCATOR = struct.Struct("<4s4xQ4x")
_END_64 = struct.Struct("<4s28x3Q")
_ENCRYPTED, _UTF_8 = 1, 0x800
#: Value of a number that is stored elsewhere, in 64 bits.
_ELSEWHERE = 0xFFFFFFFF


class DamagedError(Exception):
    """The bytes are no zip archive, or an incomplete one."""


class TooMuchError(Exception):
    """The archive contains more than the limits allow. The message names the limit, such as "1000 files"."""


@attrs.frozen
class Limits:
    """Limits for one archive: the number of files, and the bytes of all files when unpacked."""

    members: int
    unpacked_bytes: int


@attrs.frozen
class Member:
    """A file that can be unpacked: the offset of its local header, its packed and unpacked sizes in bytes, and its
    CRC-32."""

    offset: int
    packed: int
    size: int
    crc: int
    method: int


@attrs.frozen
class _Directory:
    """The directory's position, its size in bytes, its number of members, and the `shift` that has to be added to all
    offsets: other bytes may precede the archive."""

    start: int
    size: int
    shift: int
    members: int


def entries(file: IO[bytes], limits: Limits) -> Iterator[tuple[bytes, Member]]:
    """Yield the files in the order of the directory, as pairs of a name in UTF-8 and the file. Folders count but are
    left out, and so are files that are encrypted, packed by another method, or have an undecodable name.

    `file` is seekable. Raise `DamagedError` and `TooMuchError`, possibly after some entries.
    """
    directory = _find(file)
    _check(directory.members, limits.members, "files")
    file.seek(directory.start)
    remaining, count, unpacked = directory.size, 0, 0
    while remaining > 0:
        name, flags, member, length = _read_entry(file, directory)
        remaining -= length
        count += 1
        unpacked += member.size
        _check(count, limits.members, "files")
        _check(unpacked, limits.unpacked_bytes, "bytes of files")
        _check(len(name), MAX_NAME_BYTES, "bytes in the name of a file")
        readable = not flags & _ENCRYPTED and member.method in _METHODS and not name.endswith(b"/")
        if (
            readable
            and member.offset + member.packed <= directory.start
            and (text := _text(name, flags)) is not None
        ):
            yield text, member


def _check(count: int, limit: int, unit: str) -> None:
    if count > limit:
        raise TooMuchError(f"{limit} {unit}")


def _find(file: IO[bytes]) -> _Directory:
    end = file.seek(0, io.SEEK_END)
    tail_start = file.seek(max(0, end - _END.size - 0xFFFF))
    tail = file.read()
    at = len(tail) - _END.size
    if at < 0 or not tail.startswith(b"PK\5\6", at) or tail[-2:] != b"\0\0":  # the archive has a comment
        at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - _END.size + 4))
    if at < 0:
        raise DamagedError
    _, members, size, offset, _ = _END.unpack_from(tail, at)
    position = tail_start + at
    if (wide := _find_64(file, position)) is not None:
        position, members, size, offset = wide
    start = position - size
    if start < 0 or start < offset:
        raise DamagedError
    return _Directory(start, size, start - offset, members)


def _find_64(file: IO[bytes], end: int) -> tuple[int, int, int, int] | None:
    """Return the position of the record for large archives, the number of members, and the size and offset of the
    directory, or None if there is no such record."""
    if end < _END_64_LOCATOR.size + _END_64.size:
        return None
    file.seek(end - _END_64_LOCATOR.size)
    locator, _ = _END_64_LOCATOR.unpack(file.read(_END_64_LOCATOR.size))
    if locator != b"PK\6\7":
        return None
    position = file.seek(end - _END_64_LOCATOR.size - _END_64.size)
    signature, members, size, offset = _END_64.unpack(file.read(_END_64.size))
    return (position, members, size, offset) if signature == b"PK\6\6" else None


def _read_entry(file: IO[bytes], directory: _Directory) -> tuple[bytes, int, Member, int]:
    """Return the next entry: its raw name, its flags, the file, and the entry's size in bytes."""
    head = file.read(_ENTRY.size)
    if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
        raise DamagedError
    _, flags, method, crc, packed, size, name_size, extra_size, comment_size, offset = _ENTRY.unpack(head)
    rest = file.read(name_size + extra_size + comment_size)
    if len(rest) < name_size + extra_size + comment_size:
        raise DamagedError
    if _ELSEWHERE in (packed, size, offset):
        size, packed, offset = _wide(rest[name_size : name_size + extra_size], size, packed, offset)
    member = Member(offset + directory.shift, packed, size, crc, method)
    return rest[:name_size], flags, member, len(head) + len(rest)


def _wide(extra: bytes, *numbers: int) -> tuple[int, ...]:
    """Return the numbers, with those that are stored elsewhere taken from the extra field of type 1 (section 4.5.3 of
    the ZIP specification)."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            try:
                wide_numbers = struct.iter_unpack("<Q", extra[position + 4 : position + 4 + length // 8 * 8])
                return tuple(next(wide_numbers)[0] if number == _ELSEWHERE else number for number in numbers)
            except RuntimeError:  # there are fewer (StopIteration within a generator)
                raise DamagedError from None
        position += 4 + length
    raise DamagedError


def _text(name: bytes, flags: int) -> bytes | None:
    try:
        return name.decode("utf-8" if flags & _UTF_8 else "cp437").encode()
    except UnicodeDecodeError:
        return None


#: This changes with the format. An index of another format is created anew.
_MAGIC = b"zip index 1\n\0\0\0\0"
_FAN = struct.Struct(">256L")
#: Number of bytes to read first.
HEAD_BYTES = len(_MAGIC) + _FAN.size
#: Digest, position in the directory, offset of the local header, packed and unpacked sizes in bytes, CRC-32, method.
_RECORD = struct.Struct(">16sL3QLH")
_INDEX_CHUNK = 2**20


def packed_index(entries: Iterable[tuple[bytes, Member]], key: bytes) -> Iterator[bytes]:
    """Yield the index of the files in pieces. `entries` are pairs of name and file. `key` is a secret of up to 64
    bytes."""
    groups = [bytearray() for _ in range(256)]  # an object for each record would take twice its bytes
    for position, (name, member) in enumerate(entries):
        digest = _digest(name, key)
        groups[digest[0]] += _RECORD.pack(
            digest, position, member.offset, member.packed, member.size, member.crc, member.method
        )
    chunk = bytearray(_MAGIC + _FAN.pack(*accumulate(len(group) // _RECORD.size for group in groups)))
    for group in groups:
        starts = range(0, len(group), _RECORD.size)
        chunk += b"".join(sorted(bytes(group[start : start + _RECORD.size]) for start in starts))
        if len(chunk) > _INDEX_CHUNK:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


def record_span(head: bytes, name: bytes, key: bytes) -> tuple[int, int] | None:
    """Return the first byte and the end of the part of the index that contains this name's record, if there is one.
    `head` are the first `HEAD_BYTES` of the index. Return None for an index of another format."""
    if not head.startswith(_MAGIC):
        return None
    counts = (0, *_FAN.unpack_from(head, len(_MAGIC)))
    first = _digest(name, key)[0]
    return tuple(HEAD_BYTES + counts[first + offset] * _RECORD.size for offset in (0, 1))


def find_member(records: bytes, name: bytes, key: bytes) -> Member | None:
    """Return the file of this name from the records of its span, or None. Of several, the last one counts, as in
    unpackers."""
    digest = _digest(name, key)
    numbers = range(len(records) // _RECORD.size)
    position = bisect_right(numbers, digest, key=lambda n: records[n * _RECORD.size :][:16])
    if not position:
        return None
    best_digest, _, *rest = _RECORD.unpack_from(records, (position - 1) * _RECORD.size)
    return Member(*rest) if best_digest == digest else None


def _digest(name: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(name, digest_size=16, key=key).digest()


#: Maximum number of bytes that are unpacked at a time, even if the packed bytes would yield more.
_CHUNK = 256 * 1024
_LOCAL_HEADER = struct.Struct("<4s22x2H")
#: Maximum number of directories that are read at a time, and the seconds that others wait for their turn.
_CONCURRENT = 2
_TIMEOUT = 60.0
#: Bytes of the names that are cached so that folders need not be read again: of all archives, of one archive, and how
#: much memory a name takes beyond its own bytes.
_NAMES_KEPT = 64 * 2**20
_NAMES_OF_ONE = 48 * 2**20
_OF_A_NAME = 56
_SORTED_AT_ONCE = 5_000


def with_indices(keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys of objects, each followed by the key that its index would have if the object is an archive."""
    for key in keys:
        yield key
        yield _index_key(key)


@attrs.frozen
class Folder:
    """The direct content of a folder of an archive: names of folders, and the sizes in bytes of files by name."""

    folders: list[str]
    files: dict[str, int]
    #: Whether the folder contains more than these.
    is_cut: bool


@attrs.define
class Names:
    """The sorted names and the sizes of all files of an archive, in which folders are looked up."""

    _names: list[bytes] = attrs.field(factory=list)
    _sizes: "array[int]" = attrs.field(factory=lambda: array("Q"))
    #: Bytes of memory that they take.
    memory: int = 1
    #: Whether there are more names than can be cached.
    _is_cut: bool = False

    def read(self, entries: Iterable[tuple[bytes, Member]]) -> None:
        """Add the files, in any order, as far as there is room. Raise the errors of reading them."""
        for name, member in entries:
            self.memory += len(name) + _OF_A_NAME
            if self.memory > _NAMES_OF_ONE:
                self._is_cut = True
                break
            self._names.append(name)
            self._sizes.append(member.size)

    def sort(self) -> None:
        """Sort the names, a few thousand at a time, because everything else has to wait while Python sorts a list."""
        name_of, count = self._names.__getitem__, len(self._names)
        parts = (
            range(start, min(start + _SORTED_AT_ONCE, count)) for start in range(0, count, _SORTED_AT_ONCE)
        )
        order = list(heapq.merge(*(sorted(part, key=name_of) for part in parts), key=name_of))
        self._names = [self._names[index] for index in order]
        self._sizes = array("Q", (self._sizes[index] for index in order))

    def folder(self, path: bytes, limit: int) -> Folder:
        """Return the direct content of the folder at `path`, at most `limit` entries. Of several files with the same
        name, the last one counts, as in unpackers. Each entry takes one lookup, however much it contains."""
        folders: list[str] = []
        files: dict[str, int] = {}
        index = bisect_left(self._names, path)
        while index < len(self._names) and self._names[index].startswith(path):
            if len(folders) + len(files) == limit:
                return Folder(sorted(folders), dict(sorted(files.items())), is_cut=True)
            first, slash, _ = self._names[index][len(path) :].partition(b"/")
            if slash:
                folders.append(first.decode())
                index = bisect_left(self._names, path + first + b"0", index)  # the character after a slash
            else:
                index = bisect_right(self._names, path + first, index)
                files[first.decode()] = self._sizes[index - 1]
        return Folder(sorted(folders), dict(sorted(files.items())), self._is_cut)


class ZipFiles:
    """Access to files in archives of the object store."""

    def __init__(self, objects: Objects, limits: Limits) -> None:
        self._objects = objects
        self._limits = limits
        self._reading_slots = ConcurrencyLimiter(_CONCURRENT, _CONCURRENT, timeout=_TIMEOUT)
        self._index_slots = ConcurrencyLimiter(_CONCURRENT, 1, timeout=_TIMEOUT)
        self._names: LRUCache[str, Names] = LRUCache(_NAMES_KEPT, getsizeof=lambda names: names.memory)

    async def make_index(self, key: str) -> None:
        """Read the archive's directory and store its index. A damaged archive gets an empty one.

        Raise `TooMuchError` beyond the limits, and `TooBusy`. Nothing is stored then.
        """
        async with self._reading_slots.slot():
            await self._objects.put(_index_key(key), _async(await asyncio.to_thread(self._read, key)))

    def _read(self, key: str) -> Iterator[bytes]:
        with self._objects.open(key) as file:
            try:
                chunks = packed_index(entries(file, self._limits), _secret(key))
                return itertools.chain([next(chunks)], chunks)
            except DamagedError:
                return packed_index((), _secret(key))

    async def find(self, key: str, path: str) -> Member | None:
        """Return the file at `path` in the archive, or None. An archive that contains more than the limits allow has
        no files.

        Raise `FileNotFoundError` if the archive no longer exists, and `TooBusy`.
        """
        name = path.encode()
        span = await self._span(key, name)
        if span is None:  # the archive was stored before there were indices
            try:
                await self.make_index(key)
            except TooMuchError:
                await self._objects.put(_index_key(key), _async(packed_index((), _secret(key))))
            span = await self._span(key, name)
        if span is None:
            raise FileNotFoundError(key)
        return find_member(await self._bytes(_index_key(key), *span), name, _secret(key))

    async def folder(self, key: str, path: str, limit: int, *callers: Hashable) -> Folder:
        """Return the direct content of the folder at `path` ("" is the archive's root, other paths end with a slash),
        at most `limit` entries. It is empty or incomplete if the archive is damaged or contains more than the limits
        allow.

        The names in an archive are cached for a while. For the same `callers`, one archive is read at a time. Raise
        `FileNotFoundError` if the archive no longer exists, and `TooBusy`.
        """
        if (names := self._names.get(key)) is None:
            async with self._index_slots.slot(*callers):
                if (names := self._names.get(key)) is None:  # no other request has read them meanwhile
                    names = self._names[key] = await asyncio.to_thread(self._read_names, key)
        return names.folder(path.encode(), limit)

    def _read_names(self, key: str) -> Names:
        names = Names()
        with self._objects.open(key) as file, contextlib.suppress(DamagedError, TooMuchError):
            names.read(entries(file, self._limits))
        names.sort()
        return names

    async def _span(self, key: str, name: bytes) -> tuple[int, int] | None:
        try:
            head = await self._bytes(_index_key(key), 0, HEAD_BYTES)
        except FileNotFoundError:
            return None
        return record_span(head, name, _secret(key))

    async def _bytes(self, key: str, start: int, end: int) -> bytes:
        return b"".join([chunk async for chunk in self._objects.read(key, start, end)])

    async def unpack(self, key: str, archive_bytes: int, member: Member) -> AsyncGenerator[bytes, None]:
        """Yield the file's bytes. The archive has `archive_bytes` bytes.

        Raise `DamagedError`, possibly after some bytes, unless their number and CRC are as declared. Raise
        `FileNotFoundError` if the archive no longer exists.
        """
        header = await self._bytes(key, member.offset, member.offset + _LOCAL_HEADER.size)
        signature, *lengths = _LOCAL_HEADER.unpack(header) if len(header) == _LOCAL_HEADER.size else (b"",)
        if signature != b"PK\3\4":
            raise DamagedError
        start = member.offset + _LOCAL_HEADER.size + sum(lengths)
        if start + member.packed > archive_bytes:
            raise DamagedError
        size = crc = 0
        async with contextlib.aclosing(self._objects.read(key, start, start + member.packed)) as chunks:
            async for chunk in _unpacked(chunks, member.method):
                size += len(chunk)
                if size > member.size:
                    raise DamagedError
                crc = zlib.crc32(chunk, crc)
                yield chunk
        if (size, crc) != (member.size, member.crc):
            raise DamagedError


ZIP_FILES = Key[ZipFiles]("zip_files")


async def _unpacked(chunks: AsyncIterator[bytes], method: int) -> AsyncIterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    async for chunk in chunks:
        if method == STORED:
            yield chunk
            continue
        packed = chunk
        try:
            while not inflater.eof and (
                piece := await asyncio.to_thread(inflater.decompress, packed, _CHUNK)
            ):
                yield piece
                packed = inflater.unconsumed_tail
        except zlib.error as problem:
            raise DamagedError from problem


def _secret(key: str) -> bytes:
    """Return the random end of an object's key, which is not known outside."""
    return key.encode()[-64:]


def _index_key(key: str) -> str:
    return f"{key}{INDEX}"


async def _async(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
