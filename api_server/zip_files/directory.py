"""The central directory of a zip archive (PKWARE's APPNOTE, 4.3): what is in it, one entry at a time."""

import io
import struct
from collections.abc import Iterator
from typing import IO

import attrs

#: Methods of compression: bytes as they are, and deflate. GitLab reads no others either; bzip2 and LZMA take megabytes
#: of memory for each reader, LZMA as many as an archive says.
STORED, DEFLATED = 0, 8
_METHODS = frozenset({STORED, DEFLATED})

#: What a file system takes as a path; a name of 64 KiB would only make directories large.
MOST_NAME_BYTES = 4096

_ENTRY = struct.Struct("<4s4x2H4x3L3H8xL")
_END = struct.Struct("<4s6xH2LH")
_END_64_LOCATOR = struct.Struct("<4s4xQ4x")
_END_64 = struct.Struct("<4s28x3Q")
_ENCRYPTED, _UTF_8 = 1, 0x800
#: In the place of a number that stands elsewhere, in 64 bits.
_ELSEWHERE = 0xFFFFFFFF


class DamagedError(Exception):
    """What is read is no zip archive, or not a whole one."""


class TooMuchError(Exception):
    """The archive holds more than the limits allow: more than what the text says."""


@attrs.frozen
class Limits:
    """What one archive may hold: files, and bytes of them all when they are unpacked."""

    members: int
    unpacked_bytes: int


@attrs.frozen
class Member:
    """A file that can be unpacked: where its local header is, its bytes packed and unpacked, its CRC-32."""

    offset: int
    packed: int
    size: int
    crc: int
    method: int


@attrs.frozen
class _Directory:
    """Where the directory begins, its bytes, and how far all offsets are off: bytes may stand before the archive."""

    start: int
    size: int
    shift: int
    members: int


def entries(file: IO[bytes], limits: Limits) -> Iterator[tuple[bytes, Member]]:
    """The files in the order of the directory, each after its name in UTF-8. Folders, and what is encrypted, packed by
    another method or named by no text, are counted and passed over.

    `file` is seekable. Raises `DamagedError` and `TooMuchError`, perhaps after some entries.
    """
    found = _find(file)
    _check(found.members, limits.members, "files")
    file.seek(found.start)
    left, count, unpacked = found.size, 0, 0
    while left > 0:
        name, flags, member, length = _read_entry(file, found)
        left -= length
        count += 1
        unpacked += member.size
        _check(count, limits.members, "files")
        _check(unpacked, limits.unpacked_bytes, "bytes of files")
        _check(len(name), MOST_NAME_BYTES, "bytes in the name of a file")
        readable = not flags & _ENCRYPTED and member.method in _METHODS and not name.endswith(b"/")
        if (
            readable
            and member.offset + member.packed <= found.start
            and (text := _text(name, flags)) is not None
        ):
            yield text, member


def _check(found: int, most: int, what: str) -> None:
    if found > most:
        raise TooMuchError(f"{most} {what}")


def _find(file: IO[bytes]) -> _Directory:
    end = file.seek(0, io.SEEK_END)
    tail_start = file.seek(max(0, end - _END.size - 0xFFFF))
    tail = file.read()
    at = len(tail) - _END.size
    if at < 0 or not tail.startswith(b"PK\5\6", at) or tail[-2:] != b"\0\0":  # it has a comment
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
    """Where the record for large archives stands, with the number of members, size and offset of the directory."""
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
    """The next one: its name as it stands there, its flags, the file, and how many bytes the entry took."""
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
    """The numbers; those that stand elsewhere from the extra field of type 1 (4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            try:
                given = struct.iter_unpack("<Q", extra[at + 4 : at + 4 + length // 8 * 8])
                return tuple(next(given)[0] if number == _ELSEWHERE else number for number in numbers)
            except RuntimeError:  # there are fewer (StopIteration within a generator)
                raise DamagedError from None
        at += 4 + length
    raise DamagedError


def _text(name: bytes, flags: int) -> bytes | None:
    try:
        return name.decode("utf-8" if flags & _UTF_8 else "cp437").encode()
    except UnicodeDecodeError:
        return None
