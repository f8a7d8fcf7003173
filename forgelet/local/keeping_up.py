"""One process of those that `up` runs, started again when it ends before it was asked to."""

import time
from collections.abc import Callable

from forgelet.local.processes import CannotStart, Child

#: Seconds until a process is started again, after its first and second end within a minute.
PAUSES = (0.5, 1.0)
#: Seconds after which an end is forgotten.
MEMORY = 60.0


class EndsAgainAndAgain(CannotStart):
    """It has worked, and no longer does."""

    exit_code = 1


class Service:
    """`title` as people read it; `start` gives a started child; its end may take `stop_timeout` seconds."""

    def __init__(
        self,
        title: str,
        start: Callable[[], Child],
        tell: Callable[[str], None],
        *,
        stop_timeout: float = 0.0,
    ) -> None:
        self.title = title
        self.stop_timeout = stop_timeout
        self._start = start
        self._tell = tell
        self._ends: list[float] = []
        self._due = 0.0
        self.child: Child | None = None

    def start(self) -> None:
        """Raises `CannotStart`."""
        self.child = self._start()

    def keep_up(self) -> bool:
        """Whether it runs; where it has ended, it is started again after a pause. Raises `EndsAgainAndAgain` with its
        third end within a minute: then somebody has to look at it."""
        if self.child is not None and self.child.has_ended():
            self.child.stop()  # and what is left of its session
            self._note_end(f"{self.title} ended with {self.child.account_of_end()}")
        if self.child is None and time.monotonic() >= self._due:
            try:
                self.start()
            except CannotStart as problem:
                self._note_end(problem.message)
        return self.child is not None

    def _note_end(self, what: str) -> None:
        self.child = None
        now = time.monotonic()
        self._ends = [*(moment for moment in self._ends if now - moment < MEMORY), now]
        if len(self._ends) > len(PAUSES):
            raise EndsAgainAndAgain(f"{what}, for the third time within a minute")
        pause = PAUSES[len(self._ends) - 1]
        self._due = now + pause
        self._tell(f"{what}; it is started again in {pause:g} s.")
