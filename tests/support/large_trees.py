"""Repositories that are small on disk but large to walk."""

import subprocess
from pathlib import Path

import attrs

from tests.support.git_client import Git


@attrs.frozen
class Plumbing:
    """Creates git objects that cannot be checked out."""

    git: Git

    def blob(self, content: bytes = b"x\n") -> str:
        return self._run(content, "hash-object", "-w", "--stdin")

    def tree(self, entries: dict[str, tuple[str, str]]) -> str:
        """Create a tree; `entries` are pairs of mode and id by name."""
        modes = {"040000": "tree", "160000": "commit"}
        lines = [f"{mode} {modes.get(mode, 'blob')} {sha}\t{name}\n" for name, (mode, sha) in entries.items()]
        return self._run("".join(lines).encode(), "mktree", "--missing")

    def commit(self, tree: str, *parents: str) -> str:
        arguments = [word for parent in parents for word in ("-p", parent)]
        return self._run(b"Made\n", "commit-tree", tree, *arguments)

    def _run(self, data: bytes, *arguments: str) -> str:
        who = ["-c", "user.name=Alice", "-c", "user.email=alice@example.org"]
        made = subprocess.run(
            ["git", "-C", str(self.git.folder), *who, *arguments], input=data, capture_output=True, check=True
        )
        return made.stdout.decode().strip()


async def plumbing(folder: Path) -> Plumbing:
    git = Git(folder)
    await git.init()
    return Plumbing(git)


def bomb(made: Plumbing, levels: int = 10) -> str:
    """Create a tree of a dozen objects in which 10 folders have 10 folders each, and so on: 10 ** `levels` files."""
    blob = made.blob()
    tree = made.tree({str(n): ("100644", blob) for n in range(10)})
    for _ in range(levels - 1):
        tree = made.tree({str(n): ("040000", tree) for n in range(10)})
    return tree
