"""Moving refs in spite of the lock files that killed processes have left, and removing those.

git and libgit2 lock a ref by making `<ref>.lock`, and killed they leave it. Here whoever moves refs is `at_work` on
"moving" meanwhile, with its children. So a lock that is found while nobody is at it belongs to nobody living, and goes,
however young it is.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import structlog

from api_server.git.at_work import alone, at_work, note_writing
from api_server.git.errors import RepositoryLockedError
from api_server.git.failures import told_apart

log = structlog.stdlib.get_logger(__name__)

_Result = TypeVar("_Result")

#: How long a lock is waited for whose holder lives; most are held for milliseconds.
PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.05

_PACKED = ("packed-refs.lock", "packed-refs.new")
_AT_THE_TOP = ("HEAD.lock", "config.lock", "shallow.lock", *_PACKED)


async def move_refs(repository: Path, attempt: Callable[[int], Awaitable[_Result]]) -> _Result:
    """What `attempt(descriptor)` returns, which moves refs, all or none; its children are to inherit the descriptor.

    It is repeated where a lock file was in its way. Raises `RepositoryLockedError` where that stays,
    `StorageUnavailableError`, `RepositoryMissingError`.
    """
    return await _in_spite_of_locks(repository, lambda: _attempted(repository, attempt))


async def _attempted(repository: Path, attempt: Callable[[int], Awaitable[_Result]]) -> _Result:
    with told_apart():
        async with at_work(repository, "moving") as descriptor:
            note_writing(repository)
            return await attempt(descriptor)


async def make_way(repository: Path, refs: Iterable[str]) -> None:
    """For git that moves these refs next: removes what is left in its way. A lock that is held is git's to tell of."""
    wanted = [*(f"{ref}.lock" for ref in refs), "HEAD.lock", *_PACKED]

    async def look() -> None:
        if await asyncio.to_thread(_any_is_there, repository, wanted):
            raise RepositoryLockedError

    try:
        await _in_spite_of_locks(repository, look)
    except RepositoryLockedError:
        return


async def _in_spite_of_locks(repository: Path, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
    given_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await attempt()
        except RepositoryLockedError:
            if await asyncio.to_thread(remove_left_locks, repository):
                continue
            if time.monotonic() >= given_up:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


def _any_is_there(repository: Path, names: Iterable[str]) -> bool:
    return any(os.path.lexists(repository / name) for name in names)


def remove_left_locks(repository: Path) -> bool:
    """Removes the lock files of refs that nobody living can hold; whether there was one. Blocks."""
    with alone(repository, "moving") as descriptor:
        return descriptor is not None and remove_locks(repository)


def remove_locks(repository: Path) -> bool:
    """Removes all of them; to be called by whoever alone moves refs."""
    found = list(_locks(repository))
    for lock in found:
        lock.unlink(missing_ok=True)
    if found:
        names = [str(lock.relative_to(repository)) for lock in found[:10]]
        log.warning("removed locks that a killed git left", repository=repository.name, locks=names)
    return bool(found)


def _locks(repository: Path) -> Iterator[Path]:
    yield from (repository / name for name in _AT_THE_TOP if os.path.lexists(repository / name))
    for part in ("refs", "logs"):  # no ref may end in .lock
        for folder, _, names in os.walk(repository / part):
            yield from (Path(folder, name) for name in names if name.endswith(".lock"))
