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
#: What pygit2 says where libgit2 could not write an object, for which it has no words: those of the look whether the
#: object was there already, or none at all.
_NO_WORDS = re.compile(r"^no error$|failed to find pack entry")


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
        if _NO_WORDS.search(words):
            raise StorageUnavailableError from OSError("an object could not be written")
        if _NO_STORAGE.search(words):
            raise StorageUnavailableError from problem
        raise
