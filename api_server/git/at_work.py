"""Which processes are at work in a repository, known by all of them and never wrong: files that they hold flock(2) on.

A git child inherits the open file, and the kernel lets go of it when the last process has ended that has it, however
that ends. So what is left of somebody killed needs no age to be told from what somebody living uses. This holds between
all API processes on one data directory, on several machines as well where the file system takes flock from one to the
other: NFSv4, CephFS, GFS2, GlusterFS and Lustre mounted with `flock` do; NFS mounted with `nolock` or `local_lock=`
does not, and there only one machine may serve. A git that somebody runs there by hand is not known: stop the server.

The files stay: taken away, they would not be the ones that others have open already.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

from api_server.git.errors import RepositoryMissingError

#: What somebody does: moves refs, receives or sends objects (clones, pushes, archives), or packs the repository.
Work = Literal["moving", "transferring", "packing"]

_FOLDER = "at-work"


def open_file(repository: Path, work: Work) -> int:
    """A descriptor that says nothing until `join` is called with it. Raises `RepositoryMissingError`."""
    file = repository / _FOLDER / work
    with contextlib.suppress(FileNotFoundError):
        return _open(file)
    try:
        file.parent.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise RepositoryMissingError("The repository does not exist.") from None
    return _open(file)


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # NFS locks what can be written only


async def join(descriptor: int) -> None:
    """Is at work, beside others, until all that have the descriptor have closed it. Waits for who is `alone`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_SH)


@contextlib.asynccontextmanager
async def at_work(repository: Path, work: Work) -> AsyncIterator[int]:
    """Is at work for the length of the block; children are to inherit the descriptor."""
    descriptor = open_file(repository, work)
    try:
        await join(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def transferring(repository: Path) -> AsyncIterator[tuple[int, ...]]:
    """At work on that, as a reader: without a descriptor where none can be made, as on a full disk. It can be done
    without: readers find what they read wherever it is packed meanwhile."""
    inherited: tuple[int, ...] = ()
    async with contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(OSError, RepositoryMissingError):
            inherited = (await stack.enter_async_context(at_work(repository, "transferring")),)
        yield inherited


@contextlib.contextmanager
def alone(repository: Path, work: Work) -> Iterator[int | None]:
    """Nobody else is at it for the length of the block; None where somebody is. Others wait: be quick."""
    descriptor = open_file(repository, work)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)


def written_mark(repository: Path) -> Path:
    """An empty file that is there from before anything is written to the repository until `upkeep.look_after` has
    looked at what was left: nobody has to walk all repositories for that. Its age says since when."""
    return repository.parent.parent / "written" / repository.name


def note_writing(repository: Path) -> None:
    """To be called by whoever is at work already."""
    mark = written_mark(repository)
    try:
        _make(mark)
    except FileNotFoundError:
        mark.parent.mkdir(exist_ok=True)
        _make(mark)


def _make(mark: Path) -> None:
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o666))
