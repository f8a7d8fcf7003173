"""Commits made once more on top of another one, as `git rebase` does it, without files anywhere."""

import asyncio
from pathlib import Path

import pygit2

from api_server.git.commit_text import Person, read_text
from api_server.git.commits import merge_base
from api_server.git.errors import MergeConflictError, TooManyCommitsError, TooManyFilesError
from api_server.git.failures import storing
from api_server.git.new_commits import NewCommit, conflicts, create_commit
from api_server.git.processes import run
from api_server.git.repositories import Repository
from api_server.git.tree_sizes import MOST_MERGED, TreeSizes, can_be_merged

#: More commits are not made anew at once.
MOST_REBASED = 1000


async def rebase(repository: Repository, head: str, onto: str, committer: Person) -> str:
    """The SHA of the last of new commits on top of the commit `onto`, one for each that `head` has and `onto` has not.

    Merges are left out, and so is what `onto` has already in another commit. Authors, dates and messages stay. No ref
    leads there until one is moved. Raises `MergeConflictError`, `TooManyCommitsError`, `TooManyFilesError`,
    `StorageUnavailableError`.
    """
    if not await can_be_merged(repository, head, onto, await merge_base(repository, head, onto)):
        raise _too_many_files()
    # What stands on the right of the three dots, but for what stands on their left as well under another SHA.
    wanted = ["--cherry-pick", "--right-only", "--no-merges", "--topo-order", f"{onto}...{head}", "--"]
    told = await run(
        ["rev-list", f"--max-count={MOST_REBASED + 1}", *wanted], repository=Path(repository.path)
    )
    shas = told.stdout.decode().split()
    if len(shas) > MOST_REBASED:
        raise TooManyCommitsError(f"More than {MOST_REBASED} commits are not rebased.")
    last, sizes = onto, TreeSizes(repository)
    with storing():
        for sha in reversed(shas):  # a thread for each: others get their turn, and who is cancelled has ended
            last = await asyncio.to_thread(_again, repository, sizes, sha, last, committer)
    return last


def _again(repository: Repository, sizes: TreeSizes, sha: str, parent: str, committer: Person) -> str:
    """The same change on top of `parent`; `parent` itself where nothing of it is left."""
    commit = repository[sha].peel(pygit2.Commit)
    base = commit.parents[0].tree.id if commit.parents else repository.TreeBuilder().write()
    onto = repository[parent].peel(pygit2.Tree)
    if not sizes.can_be_merged(base, onto.id, commit.tree.id):
        raise _too_many_files()
    index = repository.merge_trees(base, onto.id, commit.tree.id)
    if paths := conflicts(index):
        raise MergeConflictError(paths)
    tree = index.write_tree(repository)
    if tree == onto.id and commit.tree.id != base:
        return parent
    text = read_text(repository, sha)
    return create_commit(repository, NewCommit(text.message, text.author, committer), tree, [parent])


def _too_many_files() -> TooManyFilesError:
    return TooManyFilesError(f"Commits with more than {MOST_MERGED} files and folders are not rebased.")
