"""The errors of the database and the object store, independent of the drivers below them."""

from common.config_errors import ConfigError
from common.lifecycle import Passing


class Unavailable(Passing):
    """The `part` (the database, the object store) does not answer or is full. The failed operation has
    changed nothing, except for `OutcomeUnknown`."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is unavailable")

    @property
    def cause(self) -> str:
        """The first line of the driver's message, or an empty string."""
        problem = self.__cause__
        while isinstance(problem, Unavailable):
            problem = problem.__cause__
        if problem is None:
            return ""
        return str(problem).strip().partition("\n")[0] or type(problem).__name__


class ConnectionLost(Unavailable):
    """The connection has turned out to be dead."""


class OutcomeUnknown(Unavailable):
    """The answer to a COMMIT was lost, so it may or may not have taken effect. A client that tries again
    finds out."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        self.args = (f"{part} was lost during a commit, of which it is not known whether it happened",)


class Conflict(Exception):
    """A unique constraint forbids the row; `constraint` is the name of the constraint or index."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class NotFound(Exception):
    """A row that has to exist is missing: the one to be shown, or one that another row refers to."""


class TooLong(Exception):
    """A value has more bytes than an index accepts, such as a path of many long segments."""


class LockNotAvailable(Exception):
    """Another transaction has held the row for longer than `lock_timeout`, or there is a deadlock."""


class UnsuitableDatabase(ConfigError):
    """The database cannot be used; the text says what to do."""
