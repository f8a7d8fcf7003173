"""How much there is in trees, told without walking them to their end: a dozen objects can be a tree without one."""

import asyncio

import pygit2
from pygit2.enums import FileMode

from api_server.git.repositories import Repository

#: libgit2 reads all files and folders of what it merges; trees of more are not merged here.
MOST_MERGED = 300_000


class TreeSizes:
    """Of the trees of one repository, each of which is counted once. Blocks."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._known: dict[pygit2.Oid, int] = {}

    def of(self, tree: pygit2.Oid) -> int:
        """How many files and folders it has, at all depths."""
        waiting = [tree]
        while waiting:
            one = waiting[-1]
            entries = list(self._repository[one].peel(pygit2.Tree))
            folders = [entry.id for entry in entries if entry.filemode == FileMode.TREE]
            if unknown := [folder for folder in folders if folder not in self._known]:
                waiting += unknown
            else:
                self._known[one] = len(entries) + sum(self._known[folder] for folder in folders)
                waiting.pop()
        return self._known[tree]

    def can_be_merged(self, *trees: pygit2.Oid) -> bool:
        return all(self.of(tree) <= MOST_MERGED for tree in trees)


async def can_be_merged(repository: Repository, *commits: str | None) -> bool:
    """Whether none of the commits with these full SHAs has more than can be merged."""
    trees = [repository[sha].peel(pygit2.Tree).id for sha in commits if sha is not None]
    return await asyncio.to_thread(TreeSizes(repository).can_be_merged, *trees)
