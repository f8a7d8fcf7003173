"""How far a backup has come: one line on a terminal, written over and over."""

import sys
import time
from types import TracebackType

_EVERY_SECONDS = 0.2


class Telling:
    """Tells on standard error, where that is a terminal; in a block, at whose end the line is gone."""

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty()
        self._last = 0.0
        self._width = 0

    def __enter__(self) -> "Telling":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._show("")

    def tell(self, what: str, done: int, of: int) -> None:
        """What is being done, and how many of how many are."""
        if self._is_due():
            self._show(f"{what}: {done:,} of {of:,} ({100 * done // of} %)" if of else what)

    def tell_bytes(self, what: str, done: int) -> None:
        """Likewise, and how many bytes of it."""
        if self._is_due():
            self._show(f"{what}: {done / 2**20:,.1f} MiB")

    def _is_due(self) -> bool:
        now = time.monotonic()
        if not self._is_seen or now - self._last < _EVERY_SECONDS:
            return False
        self._last = now
        return True

    def _show(self, text: str) -> None:
        if self._is_seen:
            sys.stderr.write(f"\r{text.ljust(self._width)}\r")
            sys.stderr.flush()
            self._width = len(text)
