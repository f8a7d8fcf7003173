"""Errors of repositories, with messages for users, and errors of the git program, with messages for the log."""

import contextlib
import re
from collections.abc import Iterator

import attrs
import pygit2

from api_server.state.errors import Unavailable


class RepositoryError(Exception):
    """The base class of errors in repositories. The message is one sentence for the user."""


class RepositoryMissingError(RepositoryError):
    """There is no repository under this project id."""


class RepositoryExistsError(RepositoryError):
    """A repository under this project id exists already."""


class NotFoundError(RepositoryError):
    """A branch, tag, commit or path does not exist."""


class InvalidNameError(RepositoryError):
    """The name is not allowed for a branch or tag."""


class AmbiguousNameError(RepositoryError):
    """A branch and a tag have this name, and it is not clear which one is meant."""


class NameTakenError(RepositoryError):
    """A branch or tag of this name exists already, or one whose name conflicts with it, as `a` does with `a/b`."""


class BranchMovedError(RepositoryError):
    """The branch was moved after it had been read. The caller has to read it again and repeat."""


class RepositoryLockedError(RepositoryError, Unavailable):
    """A process that still runs has locked a ref. Nothing has moved, and the caller may try again."""

    def __init__(self) -> None:
        super().__init__("a ref that somebody else is moving")


class StorageUnavailableError(RepositoryError, Unavailable):
    """The disk of the repositories accepts no data: it is full, over its quota or no longer writable."""

    def __init__(self) -> None:
        super().__init__("the repositories' disk")


class InvalidActionError(RepositoryError):
    """A file action does not fit the files of the branch."""


class InvalidPathError(InvalidActionError):
    """git would refuse a file at this path, or this content of a file that git itself interprets (`.gitmodules`)."""


class MergeConflictError(RepositoryError):
    """Both sides changed the same places. `paths` lists the files in conflict."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"Merge conflict in {', '.join(paths)}.")
        self.paths = paths


class TooManyCommitsError(RepositoryError):
    """A rebase would create more commits than are allowed at once."""


class TooManyFilesError(RepositoryError):
    """A merge or rebase would read more files and folders than are allowed."""


class NothingToMergeError(RepositoryError):
    """The target branch already contains the source."""


@attrs.define
class GitError(Exception):
    """git failed. `command` is the subcommand alone, because arguments may contain secrets."""

    command: str
    returncode: int | None
    stderr: str

    def __str__(self) -> str:
        return (
            f"git {self.command} ended with status {self.returncode}: {self.stderr.strip() or 'no message'}"
        )


class GitLimitError(GitError):
    """git reached one of its limits: its input is too large, perhaps on purpose."""


class GitTimeoutError(GitLimitError):
    """git ran longer than its time limit and was killed with all of its children."""


class OutputTooLargeError(GitLimitError):
    """git printed more than the caller is ready to keep in memory."""


class OutOfMemoryError(GitLimitError):
    """git needed more memory than the setting `git_memory_limit` allows."""


_OUT_OF_MEMORY = re.compile("^fatal: .*(?:out of|cannot allocate) memory", re.IGNORECASE | re.MULTILINE)


def git_error(command: str, returncode: int, stderr: str) -> GitError:
    """Return the error for a git that has failed, of the class that its message indicates."""
    kind = OutOfMemoryError if _OUT_OF_MEMORY.search(stderr) else GitError
    return kind(command, returncode, stderr)


#: What git and libgit2 print if a lock file is in the way. `packed-refs.new` is one too.
_LOCKED = re.compile(
    r"Unable to create '[^\n]*\.lock': File exists"
    r"|unable to create file [^\n]*packed-refs\.new: File exists"
    r"|failed to lock file"
)
#: What git, libgit2 and the system print if data cannot be written. git sometimes gives no reason.
_NO_STORAGE = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Read-only file system|Input/output error"
    r"|(?:couldn't|could not|cannot|unable to|failed to) (?:write|close|append)"
)


@contextlib.contextmanager
def classified_errors() -> Iterator[None]:
    """Raise `RepositoryLockedError` or `StorageUnavailableError` instead of an error in the block that has this cause.
    Other errors stay as they are."""
    try:
        yield
    except (GitError, pygit2.GitError, OSError) as problem:
        message = problem.stderr if isinstance(problem, GitError) else str(problem)
        if _LOCKED.search(message):
            raise RepositoryLockedError from problem
        if _NO_STORAGE.search(message):
            raise StorageUnavailableError from problem
        raise


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """Raise `StorageUnavailableError` if libgit2 cannot write an object in the block.

    libgit2 has neither a message nor an error class for that: pygit2 raises an error with the message of an earlier
    failure in this thread, or with none. If an object is missing that a new one refers to, pygit2's `NotFoundError` is
    raised as it is.
    """
    try:
        yield
    except pygit2.errors.NotFoundError:
        raise
    except (pygit2.GitError, OSError, ValueError) as problem:
        cause = OSError(f"an object could not be written; what libgit2 said last is: {problem}")
        raise StorageUnavailableError from cause
