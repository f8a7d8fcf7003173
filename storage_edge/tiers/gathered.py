"""Bytes that come piece by piece and stay in memory."""

import bisect
from typing import Final

#: Pieces below so many bytes are put together: a piece is an object, however small it is.
SMALL: Final = 16 * 1024


class Gathered:
    """All pieces that have come, readable by offset. Larger ones are neither copied nor moved, so that what comes by
    little leaves no holes in memory that are too small for the next body.
    """

    def __init__(self) -> None:
        #: Never changed, but for its last one: in a thread, take it before you look.
        self.pieces: list[bytes] = []
        self._ends: list[int] = []

    def add(self, piece: bytes) -> None:
        """More has come, at least one byte."""
        if self.pieces and len(self.pieces[-1]) + len(piece) <= SMALL:
            self.pieces[-1] += piece
            self._ends[-1] += len(piece)
        else:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
            self.pieces.append(piece)

    def read(self, offset: int, size: int) -> memoryview:
        """At least one and at most `size` bytes of what has come, from `offset`, where there is one."""
        number = bisect.bisect_right(self._ends, offset)
        piece = self.pieces[number]
        begin = offset - (self._ends[number] - len(piece))
        return memoryview(piece)[begin : begin + size]

    def whole(self) -> bytes:
        """All of it, put together once."""
        if len(self.pieces) != 1:
            whole = b"".join(self.pieces)
            self.pieces, self._ends = [whole], [len(whole)]
        return self.pieces[0]
