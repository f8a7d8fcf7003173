"""All files of a commit, and those that differ between two commits. Both walk whole trees: call them in a thread."""

from collections.abc import Iterator

import attrs
import pygit2
from pygit2.enums import FileMode

from api_server.git.commits import tree_of
from api_server.git.errors import NotFoundError
from api_server.git.repositories import Repository


def paths(repository: Repository, commit: str) -> list[str]:
    """Paths of all files. Raises `NotFoundError`."""
    index = pygit2.Index()
    index.read_tree(tree_of(repository, commit))
    return [entry.path for entry in index]


@attrs.frozen
class Node:
    """What a folder has in it: `kind` is git's word, `mode` six octal digits."""

    path: str
    kind: str
    mode: str
    id: str


def below(repository: Repository, commit: str, folder: str = "", *, recursive: bool = False) -> list[Node]:
    """What is in a folder (the root without one): folders first. Raises `NotFoundError` without that folder."""
    root = tree_of(repository, commit)
    tree: pygit2.Object = root
    if folder:
        try:
            tree = root[folder]
        except (KeyError, ValueError, pygit2.GitError) as problem:
            raise NotFoundError(f"The folder {folder!r} does not exist.") from problem
    if not isinstance(tree, pygit2.Tree):
        raise NotFoundError(f"{folder!r} is not a folder.")
    found = list(_nodes(repository, tree, f"{folder}/" if folder else "", recursive=recursive))
    return sorted(found, key=lambda node: _ORDER[node.kind])


_ORDER = {"tree": 0, "blob": 1, "commit": 2}


def _nodes(repository: Repository, tree: pygit2.Tree, prefix: str, *, recursive: bool) -> Iterator[Node]:
    for child in tree:
        path = prefix + (child.raw_name or b"").decode(errors="replace")
        kind = {FileMode.TREE: "tree", FileMode.COMMIT: "commit"}.get(child.filemode, "blob")
        yield Node(path, kind, f"{int(child.filemode):06o}", str(child.id))
        if recursive and kind == "tree":
            yield from _nodes(repository, repository[child.id].peel(pygit2.Tree), f"{path}/", recursive=True)


def changed_paths(repository: Repository, old: str, new: str) -> set[str]:
    """Paths of what was added, changed or removed on the way from one commit to another. Raises `NotFoundError`."""
    difference = tree_of(repository, old).diff_to_tree(tree_of(repository, new))
    return {side.path for delta in difference.deltas for side in (delta.old_file, delta.new_file)}
