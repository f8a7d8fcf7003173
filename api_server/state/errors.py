"""What the database and the object store raise, whatever driver is below them."""

from common.config_errors import ConfigError
from common.lifecycle import Passing


class Unavailable(Passing):
    """`part` (the database, the object store) does not answer or is full. What raised it has changed nothing, but for
    `OutcomeUnknown`."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is unavailable")

    @property
    def cause(self) -> str:
        """What the driver has said, in one line."""
        problem = self.__cause__
        while isinstance(problem, Unavailable):
            problem = problem.__cause__
        if problem is None:
            return ""
        return str(problem).strip().partition("\n")[0] or type(problem).__name__


class ConnectionLost(Unavailable):
    """The connection has turned out to be dead."""


class OutcomeUnknown(Unavailable):
    """The answer to a COMMIT was lost: it has happened, or not. A client that tries again finds out."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        self.args = (f"{part} was lost during a commit, of which it is not known whether it happened",)


class Conflict(Exception):
    """A row that a unique constraint forbids; `constraint` is the constraint's or the index's name."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class NotFound(Exception):
    """A row that has to be there is not, or not any more: the one that is to be shown, or one that is referred to."""


class TooLong(Exception):
    """A value has more bytes than an index takes: a path of many long segments."""


class TooLarge(Exception):
    """A page of a list has more bytes than are read at once; one of fewer rows may fit."""


class LockNotAvailable(Exception):
    """Somebody else holds the row for longer than `lock_timeout`, or each would wait for the other for ever."""


class UnsuitableDatabase(ConfigError):
    """A database that cannot be used; the text says what to do."""
