"""The index of a zip archive: which file is where, in a form of which a look-up reads two small pieces.

As git's index of a pack has it: the records are sorted by the digest of the name, and before them stands for each first
byte how many records begin with it or a lower one. Digests are keyed, so that nobody chooses names that crowd together.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from api_server.zip_files.directory import Member

#: Changes with the form; an index of another form is made anew.
_MAGIC = b"zip index 1\n\0\0\0\0"
_FAN = struct.Struct(">256L")
#: How many bytes to read first.
HEAD_BYTES = len(_MAGIC) + _FAN.size
#: Digest, place in the directory, offset of the local header, bytes packed and unpacked, CRC-32, method.
_RECORD = struct.Struct(">16sL3QLH")
_PIECE = 2**20


def packed(entries: Iterable[tuple[bytes, Member]], key: bytes) -> Iterator[bytes]:
    """The index of files, each after its name, in pieces. `key` is up to 64 bytes that nobody else knows."""
    groups = [bytearray() for _ in range(256)]  # an object for each record would take twice its bytes
    for place, (name, one) in enumerate(entries):
        digest = _digest(name, key)
        groups[digest[0]] += _RECORD.pack(
            digest, place, one.offset, one.packed, one.size, one.crc, one.method
        )
    piece = bytearray(_MAGIC + _FAN.pack(*accumulate(len(group) // _RECORD.size for group in groups)))
    for group in groups:
        starts = range(0, len(group), _RECORD.size)
        piece += b"".join(sorted(bytes(group[start : start + _RECORD.size]) for start in starts))
        if len(piece) > _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def place(head: bytes, name: bytes, key: bytes) -> tuple[int, int] | None:
    """Which bytes of the index have the records around this name's, by its first `HEAD_BYTES`; None for an index of
    another form."""
    if not head.startswith(_MAGIC):
        return None
    counts = (0, *_FAN.unpack_from(head, len(_MAGIC)))
    first = _digest(name, key)[0]
    return tuple(HEAD_BYTES + counts[first + more] * _RECORD.size for more in (0, 1))


def find(records: bytes, name: bytes, key: bytes) -> Member | None:
    """The file of that name among the records of its place; of several the last, as unpackers have it."""
    digest = _digest(name, key)
    numbers = range(len(records) // _RECORD.size)
    at = bisect_right(numbers, digest, key=lambda n: records[n * _RECORD.size :][:16])
    if not at:
        return None
    found, _, *rest = _RECORD.unpack_from(records, (at - 1) * _RECORD.size)
    return Member(*rest) if found == digest else None


def _digest(name: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(name, digest_size=16, key=key).digest()
