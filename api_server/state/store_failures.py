"""What object stores raise, as ours; and how often they have."""

from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError

from api_server.state.errors import Unavailable
from common.measures import Tally

ERRORS = Tally("forgelet_object_store_errors", "Requests to the object store that failed.")


@contextmanager
def store_failures() -> Iterator[None]:
    """Turns what stores raise into `Unavailable`, but for FileNotFoundError."""
    try:
        yield
    except FileNotFoundError as problem:
        if "NoSuchBucket" in str(problem):
            ERRORS.value += 1
            raise Unavailable("the object store") from problem
        raise
    except (BaseError, OSError) as problem:
        ERRORS.value += 1
        raise Unavailable("the object store") from problem
