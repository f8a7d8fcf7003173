"""Lines about what can go wrong thousands of times a second: one a second says enough."""

import time
from collections.abc import Callable, Hashable
from typing import Any

import attrs
import cachetools
from structlog.typing import FilteringBoundLogger

#: Things of which it is remembered when they were spoken of last.
_REMEMBERED = 1024


@attrs.define
class _Said:
    at: float
    left_out: int = 0


class ThrottledLog:
    """Writes to `log`, at most one line about one thing in `seconds`; the next says how many were left out.

    `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._said: cachetools.LRUCache[Hashable, _Said] = cachetools.LRUCache(_REMEMBERED)

    def warning(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """Something that we depend on does not work."""
        self._write(self._log.warning, event, about, fields)

    def error(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """Something of ours does not work; `exc_info=True` adds the traceback."""
        self._write(self._log.error, event, about, fields)

    def _write(self, write: Callable[..., Any], event: str, about: Hashable, fields: dict[str, Any]) -> None:
        now, said = self._clock(), self._said.get((event, about))
        if said is not None and now - said.at < self._seconds:
            said.left_out += 1
            return
        if said is not None and said.left_out:
            fields["left_out"] = said.left_out
        self._said[event, about] = _Said(now)
        write(event, **fields)
