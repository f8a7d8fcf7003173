"""What can go wrong in a repository, in words a caller can show; and with the git program, for the log."""

import contextlib
import re
from collections.abc import Iterator

import attrs
import pygit2

from api_server.state.errors import Unavailable


class RepositoryError(Exception):
    """The common ancestor: the message is one sentence for the user."""


class RepositoryMissingError(RepositoryError):
    """There is no repository under this project id."""


class RepositoryExistsError(RepositoryError):
    """A repository under this project id exists already."""


class NotFoundError(RepositoryError):
    """A branch, tag, commit or path does not exist."""


class InvalidNameError(RepositoryError):
    """Not a name that git allows for a branch or tag."""


class AmbiguousNameError(RepositoryError):
    """A branch and a tag have this name, and nothing says which of them is meant."""


class NameTakenError(RepositoryError):
    """A branch or tag of this name, or one that would be its folder, exists already."""


class BranchMovedError(RepositoryError):
    """Somebody else moved the branch since it was read; read it again and repeat."""


class RepositoryLockedError(RepositoryError, Unavailable):
    """A lock file of somebody living is in the way of a ref, and stays there: nothing has moved, try again."""

    def __init__(self) -> None:
        super().__init__("a ref that somebody else is moving")


class StorageUnavailableError(RepositoryError, Unavailable):
    """The repositories' disk takes nothing: it is full, or over its quota, or cannot be written any more."""

    def __init__(self) -> None:
        super().__init__("the repositories' disk")


class InvalidActionError(RepositoryError):
    """A file action does not fit the files of the branch."""


class InvalidPathError(InvalidActionError):
    """git would refuse a file at this path, or this content of a file that it reads itself."""


class MergeConflictError(RepositoryError):
    """Both sides changed the same places. `paths` are the files in conflict."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"Merge conflict in {', '.join(paths)}.")
        self.paths = paths


class TooManyCommitsError(RepositoryError):
    """More commits than are made at once."""


class TooManyFilesError(RepositoryError):
    """More files and folders than are merged."""


class NothingToMergeError(RepositoryError):
    """The target branch already contains the source."""


@attrs.define
class GitError(Exception):
    """git failed: `command` is the subcommand alone, because arguments may carry what must not be shown."""

    command: str
    returncode: int | None
    stderr: str

    def __str__(self) -> str:
        return (
            f"git {self.command} ended with status {self.returncode}: {self.stderr.strip() or 'no message'}"
        )


class GitLimitError(GitError):
    """git reached one of its limits: what it was given is too large, or was made to be."""


class GitTimeoutError(GitLimitError):
    """git ran longer than its time limit and was killed with all of its children."""


class OutputTooLargeError(GitLimitError):
    """git printed more than the caller was ready to keep in memory."""


class OutOfMemoryError(GitLimitError):
    """git wanted more memory than setting `git_memory_limit` gives it."""


_OUT_OF_MEMORY = re.compile("^fatal: .*(?:out of|cannot allocate) memory", re.IGNORECASE | re.MULTILINE)


def git_error(command: str, returncode: int, stderr: str) -> GitError:
    """Return the failure of a git that has ended, by what it said."""
    kind = OutOfMemoryError if _OUT_OF_MEMORY.search(stderr) else GitError
    return kind(command, returncode, stderr)


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
    """Raise `RepositoryLockedError` and `StorageUnavailableError` instead of what a block raises of that kind that
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
    """Around libgit2 where it writes objects. Raise `StorageUnavailableError` where it could not.

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
