"""What the database and the object store raise, whatever driver is below them."""


class Unavailable(Exception):
    """`part` (the database, the object store) does not answer or is full. What raised it has changed nothing."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is unavailable")


class Conflict(Exception):
    """A row that a unique constraint forbids; `constraint` is the constraint's or the index's name."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class NotFound(Exception):
    """A row that has to be there is not, or not any more: the one that is to be shown, or one that is referred to."""


class LockNotAvailable(Exception):
    """Somebody else holds the row for longer than `lock_timeout`, or each would wait for the other for ever."""
