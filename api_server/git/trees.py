"""All files of a commit, and those that differ between two commits. Both walk whole trees: call them in a thread."""

import pygit2

from api_server.git.errors import NotFoundError
from api_server.git.repositories import Repository


def paths(repository: Repository, commit: str) -> list[str]:
    """Paths of all files. Raises `NotFoundError`."""
    index = pygit2.Index()
    index.read_tree(_tree(repository, commit))
    return [entry.path for entry in index]


def changed_paths(repository: Repository, old: str, new: str) -> set[str]:
    """Paths of what was added, changed or removed on the way from one commit to another. Raises `NotFoundError`."""
    difference = _tree(repository, old).diff_to_tree(_tree(repository, new))
    return {side.path for delta in difference.deltas for side in (delta.old_file, delta.new_file)}


def _tree(repository: Repository, commit: str) -> pygit2.Tree:
    try:
        return repository[commit].peel(pygit2.Tree)
    except (KeyError, ValueError, pygit2.GitError) as problem:
        raise NotFoundError(f"The commit {commit} does not exist.") from problem
