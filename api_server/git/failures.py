"""Failures of git and libgit2 that are nobody's mistake, told from the words that both have for them."""

import contextlib
import re
from collections.abc import Iterator

import pygit2

from api_server.git.errors import GitError, RepositoryLockedError, StorageUnavailableError

#: A lock file is in the way; `packed-refs.new` is one too. Of git, and of libgit2.
_LOCKED = re.compile(
    r"Unable to create '[^\n]*\.lock': File exists"
    r"|unable to create file [^\n]*packed-refs\.new: File exists"
    r"|failed to lock file"
)
#: git has no reason for some of what it could not write.
_NO_STORAGE = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Read-only file system|Input/output error"
    r"|(?:couldn't|could not|cannot|unable to|failed to) (?:write|close|append)"
)


@contextlib.contextmanager
def told_apart() -> Iterator[None]:
    """Raises `RepositoryLockedError` and `StorageUnavailableError` instead of what a block raises of that kind that
    writes."""
    try:
        yield
    except (GitError, pygit2.GitError, OSError) as problem:
        words = problem.stderr if isinstance(problem, GitError) else str(problem)
        if _LOCKED.search(words):
            raise RepositoryLockedError from problem
        if _NO_STORAGE.search(words):
            raise StorageUnavailableError from problem
        raise


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """Around libgit2 where it writes objects. Raises `StorageUnavailableError` where it could not.

    It has no words and no class of error for that: pygit2 raises with those of what went wrong in this thread before,
    or none at all. An object that a new one is to lead to and that is not there is told by its code, and goes through.
    """
    try:
        yield
    except pygit2.errors.NotFoundError:
        raise
    except (pygit2.GitError, OSError, ValueError) as problem:
        cause = OSError(f"an object could not be written; what libgit2 said last is: {problem}")
        raise StorageUnavailableError from cause
