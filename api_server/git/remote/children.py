"""git children that talk to one remote repository: its access, one time limit for all, errors in words."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

from api_server.git.errors import GitError, GitTimeoutError, OutputTooLargeError
from api_server.git.processes import Child, start
from api_server.git.remote.access import Access, Remote
from api_server.git.remote.errors import RemoteError, RemoteTimeoutError, remote_error
from api_server.git.remote.redaction import sanitize


class RemoteGit:
    """What `git` needs to reach `remote`; `time_limit` is in seconds from now, for all that is started."""

    def __init__(self, remote: Remote, access: Access, time_limit: float) -> None:
        self.access = access
        self._remote = remote
        self._deadline = asyncio.get_running_loop().time() + time_limit

    def start(
        self, arguments: Sequence[str], *, repository: Path | None = None, with_stdin: bool = False
    ) -> AbstractAsyncContextManager[Child]:
        """A git child for the length of a block; it gives way to what users wait for."""
        return start(
            arguments,
            repository=repository,
            extra_environment=self.access.environment,
            configuration=self.access.configuration,
            with_stdin=with_stdin,
            time_limit=max(0.0, self._deadline - asyncio.get_running_loop().time()),
            background=True,
        )

    def clean(self, text: str) -> str:
        """What git or the target said, without credentials and control characters."""
        printable = "".join(character for character in text if character.isprintable() or character == "\n")
        return sanitize(printable, user=self._remote.user, password=self._remote.password).strip()

    @contextmanager
    def errors_as(self, failure: str) -> Iterator[None]:
        """Turns errors of git into `RemoteError`; its sentence begins with `failure`."""
        try:
            yield
        except GitTimeoutError as problem:
            raise RemoteTimeoutError(f"{failure}: the target took too long.") from problem
        except OutputTooLargeError as problem:
            raise RemoteError(f"{failure}: the target has too many refs.") from problem
        except GitError as problem:
            raise remote_error(failure, self.clean(problem.stderr)) from None
