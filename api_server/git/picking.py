"""What one commit has changed, done again on another branch, or undone there."""

import asyncio

import pygit2

from api_server.git.commit_text import Person, read_text
from api_server.git.errors import MergeConflictError, NothingToMergeError
from api_server.git.failures import storing
from api_server.git.new_commits import NewCommit, conflicts, create_commit
from api_server.git.repositories import Repository


async def cherry_picked(repository: Repository, picked: str, onto: str) -> str:
    """The id of the tree that the commit `onto` becomes with what `picked` has changed against its first parent.

    Raises `MergeConflictError`, `NothingToMergeError` where that is there already, `StorageUnavailableError`.
    """
    with storing():
        return await asyncio.to_thread(_cherry_picked, repository, picked, onto)


async def reverted(repository: Repository, undone: str, onto: str) -> str:
    """Likewise without what `undone` has changed."""
    with storing():
        return await asyncio.to_thread(_reverted, repository, undone, onto)


async def commit_tree(repository: Repository, tree: str, commit: NewCommit, parent: str) -> str:
    """The SHA of a new commit, to which no ref leads yet. Raises `StorageUnavailableError`."""
    with storing():
        return await asyncio.to_thread(create_commit, repository, commit, pygit2.Oid(hex=tree), [parent])


def author_of(repository: Repository, sha: str) -> Person:
    """Who has written a commit, and when."""
    return read_text(repository, sha).author


def _cherry_picked(repository: Repository, picked: str, onto: str) -> str:
    commit = _commit(repository, picked)
    return _applied(repository, _tree_before(repository, commit), commit.tree_id, onto)


def _reverted(repository: Repository, undone: str, onto: str) -> str:
    commit = _commit(repository, undone)
    return _applied(repository, commit.tree_id, _tree_before(repository, commit), onto)


def _applied(repository: Repository, old: pygit2.Oid, new: pygit2.Oid, onto: str) -> str:
    """The difference between two trees, on top of a commit."""
    tree = _commit(repository, onto).tree_id
    index = repository.merge_trees(old, tree, new)
    if paths := conflicts(index):
        raise MergeConflictError(paths)
    applied = index.write_tree(repository)
    if applied == tree:
        raise NothingToMergeError("The branch already contains the change.")
    return str(applied)


def _tree_before(repository: Repository, commit: pygit2.Commit) -> pygit2.Oid:
    """What a first commit has changed is all of its files."""
    if commit.parent_ids:
        return _commit(repository, str(commit.parent_ids[0])).tree_id
    return repository.TreeBuilder().write()


def _commit(repository: Repository, sha: str) -> pygit2.Commit:
    return repository[sha].peel(pygit2.Commit)
