"""Which processes are at work in a repository: each holds a flock(2) on a file there.

A git child inherits the open file, and the kernel releases the lock when the last process that has it open ends, even
if it is killed. Leftovers of a killed process can therefore be distinguished from the files of a running one without
looking at their age. This holds between all API processes on one data directory, and between machines if the file
system passes flock on: NFSv4, CephFS, GFS2, GlusterFS and Lustre mounted with `flock` do. NFS mounted with `nolock` or
`local_lock=` does not, and then only one machine may serve. A git that somebody runs in a repository by hand takes no
lock: stop the server first.

The files are never removed: other processes may have them open already.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

from api_server.git.errors import RepositoryMissingError

#: Kinds of work: moving refs, receiving or sending objects (clones, pushes, archives), and packing the repository.
Work = Literal["moving", "transferring", "packing"]

_FOLDER = "at-work"


def open_file(repository: Path, work: Work) -> int:
    """Open the lock file of `work` without locking it; `join` does that. Raise `RepositoryMissingError`."""
    file = repository / _FOLDER / work
    with contextlib.suppress(FileNotFoundError):
        return _open(file)
    try:
        file.parent.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise RepositoryMissingError("The repository does not exist.") from None
    return _open(file)


def _open(file: Path) -> int:
    return os.open(
        file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
    )  # NFS locks only files that are open for writing


async def join(descriptor: int) -> None:
    """Take a shared lock, held until all processes have closed the descriptor. Wait for a holder of `alone`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_SH)


@contextlib.asynccontextmanager
async def at_work(repository: Path, work: Work) -> AsyncIterator[int]:
    """Hold a shared lock during the block, and yield the descriptor that children have to inherit."""
    descriptor = open_file(repository, work)
    try:
        await join(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def transferring(repository: Path) -> AsyncIterator[tuple[int, ...]]:
    """Hold the lock for "transferring" as a reader, and yield its descriptor. Yield none if the file cannot be opened,
    for instance on a full disk: readers also find their objects when these are packed meanwhile."""
    inherited: tuple[int, ...] = ()
    async with contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(OSError, RepositoryMissingError):
            inherited = (await stack.enter_async_context(at_work(repository, "transferring")),)
        yield inherited


@contextlib.contextmanager
def alone(repository: Path, work: Work) -> Iterator[int | None]:
    """Hold an exclusive lock during the block, or yield None if another process is at work. Others have to wait for
    the block."""
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
    """Return the path of an empty file that marks a repository as written to, so that upkeep need not walk all
    repositories. It exists from the first write until `upkeep.maintain` has cleaned up, and its age is that of the
    first write."""
    return repository.parent.parent / "written" / repository.name


def note_writing(repository: Path) -> None:
    """Mark the repository as written to. The caller holds a lock of `at_work`."""
    mark = written_mark(repository)
    try:
        _make(mark)
    except FileNotFoundError:
        mark.parent.mkdir(exist_ok=True)
        _make(mark)


def _make(mark: Path) -> None:
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o666))
