"""What a git child prints, taken apart as it comes: never more of it in memory than the piece that is being read."""

from collections.abc import AsyncIterator

from api_server.git.errors import OutputTooLargeError

#: No path and no shown difference is longer.
MOST_BYTES = 16 * 1024 * 1024


class Pieces:
    """The output in pieces that end with a mark."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._waiting = b""
        self._position = 0

    async def until(self, mark: bytes) -> bytes | None:
        """The bytes up to the next `mark`, which is passed over, or up to the end; None behind that.

        Raises `OutputTooLargeError` where the mark does not come, and what the output raises.
        """
        searched = self._position
        while (found := self._waiting.find(mark, searched)) < 0:
            if len(self._waiting) - self._position > MOST_BYTES:
                raise OutputTooLargeError("output", None, f"more than {MOST_BYTES} bytes in one piece")
            rest = self._waiting[self._position :]
            chunk = await anext(self._chunks, None)
            if chunk is None:
                self._waiting, self._position = b"", 0
                return rest or None
            self._waiting, self._position = rest + chunk, 0
            searched = max(0, len(rest) - len(mark) + 1)
        piece = self._waiting[self._position : found]
        self._position = found + len(mark)
        return piece
