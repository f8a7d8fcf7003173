"""Moves of refs: in spite of left lock files, all of a change or nothing, and refs that only the server writes.

git and libgit2 lock a ref by creating `<ref>.lock`, which stays if they are killed. Here, everything that moves refs
holds the lock of `at_work` for "moving" meanwhile, and so do its children. A lock file that exists while nobody holds
that lock therefore belongs to no running process, and is removed, however young it is.
"""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import structlog

from api_server.git import repositories
from api_server.git.at_work import alone, at_work, note_writing
from api_server.git.errors import (
    BranchMovedError,
    GitError,
    NameTakenError,
    NotFoundError,
    RepositoryLockedError,
    classified_errors,
)
from api_server.git.processes import run
from api_server.git.received_push import REFLOGS, Push, RefUpdate, reflog_identity
from api_server.git.ref_names import BRANCHES, INTERNAL, KEEP_AROUND, check_branch_name, is_valid_ref_name
from api_server.git.references import branch, commit_id
from api_server.git.repositories import Repository

log = structlog.stdlib.get_logger(__name__)

_Result = TypeVar("_Result")

#: Seconds to wait for a lock file whose process still runs. Most exist for milliseconds.
LOCK_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05

_PACKED = ("packed-refs.lock", "packed-refs.new")
_AT_THE_TOP = ("HEAD.lock", "config.lock", "shallow.lock", *_PACKED)


async def move_refs(repository: Path, attempt: Callable[[int], Awaitable[_Result]]) -> _Result:
    """Return what `attempt(descriptor)` returns. It moves all of its refs or none, and its children have to inherit
    the descriptor.

    It is repeated if a lock file is in its way. Raise `RepositoryLockedError` if the lock file stays,
    `StorageUnavailableError`, `RepositoryMissingError`.
    """
    return await _retry_while_locked(repository, lambda: _attempted(repository, attempt))


async def _attempted(repository: Path, attempt: Callable[[int], Awaitable[_Result]]) -> _Result:
    with classified_errors():
        async with at_work(repository, "moving") as descriptor:
            note_writing(repository)
            return await attempt(descriptor)


async def make_way(repository: Path, refs: Iterable[str]) -> None:
    """Remove left lock files of refs that git is going to move next. Wait a while for those of running processes: if
    one stays, git itself reports it."""
    paths = [*(f"{ref}.lock" for ref in refs), "HEAD.lock", *_PACKED]

    async def look() -> None:
        if await asyncio.to_thread(_any_is_there, repository, paths):
            raise RepositoryLockedError

    try:
        await _retry_while_locked(repository, look)
    except RepositoryLockedError:
        return


async def _retry_while_locked(repository: Path, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return await attempt()
        except RepositoryLockedError:
            if await asyncio.to_thread(remove_stale_locks, repository):
                continue
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


def _any_is_there(repository: Path, names: Iterable[str]) -> bool:
    return any(os.path.lexists(repository / name) for name in names)


def remove_stale_locks(repository: Path) -> bool:
    """Remove the lock files of refs that no running process holds, and return whether there were any. Blocks: call it
    in a thread."""
    with alone(repository, "moving") as descriptor:
        return descriptor is not None and remove_locks(repository)


def remove_locks(repository: Path) -> bool:
    """Remove all lock files of refs, and return whether there were any. The caller holds the lock for "moving"
    alone."""
    locks = list(_locks(repository))
    for lock in locks:
        lock.unlink(missing_ok=True)
    if locks:
        names = [str(lock.relative_to(repository)) for lock in locks[:10]]
        log.warning("removed locks that a killed git left", repository=repository.name, locks=names)
    return bool(locks)


def _locks(repository: Path) -> Iterator[Path]:
    yield from (repository / name for name in _AT_THE_TOP if os.path.lexists(repository / name))
    for part in ("refs", "logs"):  # no ref may end in .lock
        for folder, _, names in os.walk(repository / part):
            yield from (Path(folder, name) for name in names if name.endswith(".lock"))


#: Configuration with which git does not wait for lock files: `move_refs` waits, and checks whether a running process
#: holds them.
_IMPATIENT = (("core.filesRefLockTimeout", "0"), ("core.packedRefsTimeout", "0"))
#: What git prints if a ref is not where the update expects it, or if another ref is in the way.
_REFUSED = re.compile(r"exists|but expected|unable to resolve reference")


async def apply_push(repository: Path, push: Push) -> None:
    """Move each branch or tag from where `push` expects it.

    Raise `InvalidNameError` for a new name that is not allowed, `NameTakenError` for one that cannot exist beside the
    others, `BranchMovedError` if a ref has been moved by somebody else, `RepositoryLockedError` if somebody else is
    just moving one. Nothing has moved then. After other errors, such as `StorageUnavailableError`, refs may have
    moved.
    """
    creates = [update for update in push.updates if update.kind == "create"]
    for update in creates:
        check_branch_name(update.ref.split("/", 2)[2])
    try:
        await move_refs(repository, lambda descriptor: _update_refs(repository, push, descriptor))
    except GitError as problem:
        if _REFUSED.search(problem.stderr) is None:
            raise
        if creates:
            raise NameTakenError("The name conflicts with an existing one.") from problem
        raise BranchMovedError("The branch has moved; read it again and repeat.") from problem
    await asyncio.to_thread(_sync_push, repository, push)


async def _update_refs(repository: Path, push: Push, descriptor: int) -> None:
    await run(
        ["update-ref", "--stdin", "-z"],
        repository=repository,
        configuration=(*REFLOGS, *_IMPATIENT),
        extra_environment=reflog_identity(push),
        stdin="".join(map(_command, push.updates)).encode(),
        pass_fds=(descriptor,),
    )


def _sync_push(repository: Path, push: Push) -> None:
    repositories.sync_objects(repository, ())  # libgit2 has created folders there for new objects
    repositories.sync_refs(repository, [update.ref for update in push.updates])


def _command(update: RefUpdate) -> str:
    """Return a command for git-update-ref(1), in the form that its option `-z` expects."""
    if update.kind == "delete":
        return f"delete {update.ref}\0{update.old}\0"
    return f"update {update.ref}\0{update.new}\0{update.old}\0"


async def set_default_branch(repository: Repository, name: str) -> None:
    """Make HEAD name the branch. Raise `NotFoundError` if it does not exist, and the errors of `move_refs`."""
    if branch(repository, name) is None:
        raise NotFoundError(f"The branch {name!r} does not exist.")
    await _write(repository, "HEAD", lambda: repository.set_head(BRANCHES + name))


async def set_first_branch(repository: Repository, name: str, commit: str) -> None:
    """Create the first branch of a repository that nobody knows yet. No push has to be found in the reflog of this
    branch.

    Raise `InvalidNameError`, and the errors of `move_refs`.
    """
    check_branch_name(name)
    await _write(repository, BRANCHES + name, lambda: repository.references.create(BRANCHES + name, commit))
    # libgit2 has created folders there for the commit
    await asyncio.to_thread(repositories.sync_objects, Path(repository.path), ())


async def set_internal_ref(repository: Repository, ref: str, commit: str) -> None:
    """Set or move a ref that users cannot push, such as `refs/merge-requests/7/head`. Raise the errors of
    `move_refs`."""
    if not ref.startswith(INTERNAL) or not is_valid_ref_name(ref):
        raise ValueError(f"{ref!r} is not below one of {', '.join(INTERNAL)}")
    await _write(repository, ref, lambda: repository.references.create(ref, commit, force=True))


async def remove_internal_ref(repository: Repository, ref: str) -> None:
    """Remove a ref that users cannot push. Do nothing if it does not exist. Raise the errors of `move_refs`."""
    if ref in repository.references:
        await _write(repository, ref, lambda: repository.references.delete(ref))


async def keep_commit(repository: Repository, sha: str) -> None:
    """Keep the commit for as long as the repository exists, even if no branch leads to it any more.

    Raise `NotFoundError` if it does not exist, and the errors of `move_refs`.
    """
    ref = KEEP_AROUND + sha
    if ref in repository.references:
        return
    if commit_id(repository, sha) is None:
        raise NotFoundError(f"The commit {sha} does not exist.")
    await set_internal_ref(repository, ref, sha)


async def _write(repository: Repository, ref: str, write: Callable[[], object]) -> None:
    """Write a ref with libgit2, which neither waits for lock files nor takes the lock for "moving"."""
    folder = Path(repository.path)

    async def attempt(descriptor: int) -> None:
        # The thread continues if its request is cancelled. It has a descriptor of its own, and so holds the lock until
        # its end.
        await asyncio.shield(asyncio.to_thread(_write_and_close, os.dup(descriptor), write))

    await move_refs(folder, attempt)
    await asyncio.to_thread(repositories.sync_refs, folder, [ref])


def _write_and_close(descriptor: int, write: Callable[[], object]) -> None:
    try:
        write()
    finally:
        os.close(descriptor)
