"""Refs that only the server writes: HEAD, a first branch, the heads of merge requests, those that keep commits."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from api_server.git import durable
from api_server.git.errors import NotFoundError
from api_server.git.ref_locks import move_refs
from api_server.git.ref_names import BRANCHES, INTERNAL, KEEP_AROUND, check_branch_name, is_valid_ref_name
from api_server.git.references import branch, commit_id
from api_server.git.repositories import Repository


async def set_default_branch(repository: Repository, name: str) -> None:
    """Raises `NotFoundError` when there is no such branch, and as `move_refs`."""
    if branch(repository, name) is None:
        raise NotFoundError(f"The branch {name!r} does not exist.")
    await _write(repository, "HEAD", lambda: repository.set_head(BRANCHES + name))


async def set_first_branch(repository: Repository, name: str, commit: str) -> None:
    """Makes the first branch of a repository that nobody knows yet, so that no push has to be found in its reflog.

    Raises `InvalidNameError`, and as `move_refs`.
    """
    check_branch_name(name)
    await _write(repository, BRANCHES + name, lambda: repository.references.create(BRANCHES + name, commit))
    # libgit2 has made new folders there for the commit
    await asyncio.to_thread(durable.sync_objects, Path(repository.path), ())


async def set_internal_ref(repository: Repository, ref: str, commit: str) -> None:
    """Sets or moves a ref that users cannot push, such as `refs/merge-requests/7/head`. Raises as `move_refs`."""
    if not ref.startswith(INTERNAL) or not is_valid_ref_name(ref):
        raise ValueError(f"{ref!r} is not below one of {', '.join(INTERNAL)}")
    await _write(repository, ref, lambda: repository.references.create(ref, commit, force=True))


async def remove_internal_ref(repository: Repository, ref: str) -> None:
    """Does nothing where it is not there. Raises as `move_refs`."""
    if ref in repository.references:
        await _write(repository, ref, lambda: repository.references.delete(ref))


async def keep_commit(repository: Repository, sha: str) -> None:
    """Keeps the commit for as long as the repository exists, whatever becomes of the branches that lead to it.

    Raises `NotFoundError` where it is not there, and as `move_refs`.
    """
    ref = KEEP_AROUND + sha
    if ref in repository.references:
        return
    if commit_id(repository, sha) is None:
        raise NotFoundError(f"The commit {sha} does not exist.")
    await set_internal_ref(repository, ref, sha)


async def _write(repository: Repository, ref: str, write: Callable[[], object]) -> None:
    """libgit2 waits for no lock, and knows nothing of those who are at work."""
    folder = Path(repository.path)

    async def attempt(descriptor: int) -> None:
        # A thread goes on when its request is cancelled, and is at work for so long.
        await asyncio.shield(asyncio.to_thread(_held, os.dup(descriptor), write))

    await move_refs(folder, attempt)
    await asyncio.to_thread(durable.sync_refs, folder, [ref])


def _held(descriptor: int, write: Callable[[], object]) -> None:
    try:
        write()
    finally:
        os.close(descriptor)
