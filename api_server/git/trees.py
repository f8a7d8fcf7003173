"""What is in folders of a commit, and which paths differ between two: git tells it in a child, which is heard as far as
it is wanted."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pygit2

from api_server.git.commits import tree_of
from api_server.git.errors import NotFoundError, OutputTooLargeError
from api_server.git.pieces import Pieces
from api_server.git.processes import TIME_LIMIT_SECONDS, start
from api_server.git.repositories import Repository

#: In the order in which they are listed, with what makes git tell no more than is needed to find them.
_KINDS = {"tree": ["-d"], "blob": [], "commit": []}
_ORDER = {kind: position for position, kind in enumerate(_KINDS)}


@attrs.frozen
class Node:
    """What a folder has in it: `kind` is git's word, `mode` six octal digits, `raw_path` begins at the root."""

    raw_path: bytes
    kind: str
    mode: str
    id: str

    @property
    def path(self) -> str:
        return self.raw_path.decode(errors="replace")

    @property
    def key(self) -> bytes:
        """Where it stands among all: git sorts folders as if their names ended with a slash."""
        return self.raw_path + b"/" if self.kind == "tree" else self.raw_path


@attrs.frozen
class Folder:
    """A folder of a commit, with all below it where it is `recursive`. `open_folder` makes it."""

    repository: Path
    id: str
    prefix: bytes
    recursive: bool

    async def page(self, skip: int, limit: int, counted: int) -> tuple[Sequence[Node], bool, int | None]:
        """At most `limit` nodes after the first `skip`, folders first; whether more follow; and how many there are in
        all, None where there are more than `counted`.

        No more is read than it takes to find them and to count so far.
        """
        some = await self._first(counted + 1)
        if len(some) <= counted:
            found = sorted(some, key=lambda node: _ORDER[node.kind])
            return found[skip : skip + limit], skip + limit < len(found), len(found)
        found = []
        for kind, options in _KINDS.items():
            async with self._nodes(options) as nodes:
                async for node in nodes:
                    if node.kind != kind:
                        continue
                    if skip:
                        skip -= 1
                        continue
                    found.append(node)
                    if len(found) > limit:
                        return found[:limit], True, None
        return found, False, None

    async def after(self, key: bytes, limit: int) -> tuple[Sequence[Node], bool]:
        """At most `limit` nodes behind the `key` of one, by path; and whether more follow."""
        found = []
        async with self._nodes(["-t"]) as nodes:
            async for node in nodes:
                if node.key <= key:
                    continue
                found.append(node)
                if len(found) > limit:
                    return found[:limit], True
        return found, False

    async def _first(self, most: int) -> list[Node]:
        found = []
        async with self._nodes(["-t"]) as nodes:
            async for node in nodes:
                found.append(node)
                if len(found) == most:
                    break
        return found

    @asynccontextmanager
    async def _nodes(self, options: Sequence[str]) -> AsyncIterator[AsyncIterator[Node]]:
        arguments = ["ls-tree", "-z", *options, *(["-r"] if self.recursive else []), self.id]
        async with _records(self.repository, arguments) as records:
            yield (_node(record, self.prefix) async for record in records)


def open_folder(repository: Repository, commit: str, folder: str = "", *, recursive: bool = False) -> Folder:
    """The root without `folder`. Raises `NotFoundError` without that folder."""
    root = tree_of(repository, commit)
    tree: pygit2.Object = root
    if folder:
        try:
            tree = root[folder]
        except (KeyError, ValueError, pygit2.GitError) as problem:
            raise NotFoundError(f"The folder {folder!r} does not exist.") from problem
    if not isinstance(tree, pygit2.Tree):
        raise NotFoundError(f"{folder!r} is not a folder.")
    prefix = folder.encode() + b"/" if folder else b""
    return Folder(Path(repository.path), str(tree.id), prefix, recursive)


def _node(record: bytes, prefix: bytes) -> Node:
    about, _, path = record.partition(b"\t")
    mode, kind, sha = about.decode().split(" ")
    return Node(prefix + path, kind, mode, sha)


async def paths(repository: Repository, commit: str, most: int) -> list[str]:
    """Paths of all files. Raises `NotFoundError`, and `OutputTooLargeError` where there are more than `most`."""
    tree = str(tree_of(repository, commit).id)
    return await _names(repository, ["ls-tree", "-r", "-z", "--name-only", tree], most)


async def changed_paths(repository: Repository, old: str, new: str, most: int) -> list[str]:
    """Paths of what was added, changed or removed on the way from one commit to another. Raises like `paths`."""
    trees = [str(tree_of(repository, commit).id) for commit in (old, new)]
    return await _names(repository, ["diff-tree", "-r", "-z", "--name-only", "--no-renames", *trees], most)


async def _names(repository: Repository, arguments: Sequence[str], most: int) -> list[str]:
    found = []
    async with _records(Path(repository.path), arguments) as records:
        async for record in records:
            found.append(record.decode(errors="surrogateescape"))
            if len(found) > most:
                raise OutputTooLargeError(arguments[0], None, f"more than {most} paths")
    return found


@asynccontextmanager
async def _records(repository: Path, arguments: Sequence[str]) -> AsyncIterator[AsyncIterator[bytes]]:
    """What git prints with a NUL after each."""
    async with start(arguments, repository=repository, time_limit=TIME_LIMIT_SECONDS) as child:
        pieces = Pieces(child.checked_output())

        async def records() -> AsyncIterator[bytes]:
            while (record := await pieces.until(b"\0")) is not None:
                yield record

        yield records()
