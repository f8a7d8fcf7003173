"""What object stores raise, as ours; and how often they have."""

from collections.abc import Iterator
from contextlib import contextmanager

from api_server.state.errors import Unavailable
from common.measures import Tally

ERRORS = Tally("forgelet_object_store_errors", "Requests to the object store that failed.")


@contextmanager
def store_failures(*others: type[Exception]) -> Iterator[None]:
    """Turns what a store raises, OSError and `others`, into `Unavailable`, but for FileNotFoundError."""
    failures: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except FileNotFoundError as problem:
        if "NoSuchBucket" in str(problem):
            ERRORS.value += 1
            raise Unavailable("the object store") from problem
        raise
    except failures as problem:
        ERRORS.value += 1
        raise Unavailable("the object store") from problem
