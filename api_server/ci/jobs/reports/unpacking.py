"""The files in an uploaded report: runners send each as a member of one gzip stream, others the file itself. What it
is, its first bytes say. Pure."""

import zlib
from collections.abc import Callable, Iterator

_PIECE = 64 * 1024
_GZIP = b"\x1f\x8b"
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS

#: What goes wrong with data that is packed.
BROKEN = (zlib.error, EOFError)


def files(data: bytes, take: Callable[[int], None]) -> Iterator[Iterator[bytes]]:
    """Each file as its pieces, to be read before the next. `take` is told of each piece's size, and may raise. Raises
    one of `BROKEN`."""
    found = _gzip(data) if data.startswith(_GZIP) else iter([_raw(data)])
    for pieces in found:
        yield _taken(pieces, take)


def _taken(pieces: Iterator[bytes], take: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        take(len(piece))
        yield piece


def _raw(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


def _gzip(data: bytes) -> Iterator[Iterator[bytes]]:
    position = 0

    def member() -> Iterator[bytes]:
        nonlocal position
        unpacker = zlib.decompressobj(_WITH_GZIP_HEADER)
        while not unpacker.eof:
            packed = data[position : position + _PIECE]
            if not packed:
                raise EOFError("the stream ends in the middle of a file")
            position += len(packed)
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, _PIECE)
                packed = unpacker.unconsumed_tail
        position -= len(unpacker.unused_data)

    while position < len(data) and data[position] != 0:  # zeros fill up
        yield member()
