"""Files of a commit: what stands at a path, and its bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import pygit2
from pygit2.enums import FileMode

from api_server.git.commits import tree_of
from api_server.git.processes import start
from api_server.git.repositories import Repository

#: Files up to this size are better read in process and at once, larger ones streamed by a child.
IN_MEMORY_BYTES = 256 * 1024
#: So that git need not have large files in memory either, where they are not kept as a difference to others.
_STREAMED = (("core.bigFileThreshold", "1m"),)

EntryKind = Literal["file", "executable", "symlink", "folder", "submodule"]
_KINDS: dict[int, EntryKind] = {
    FileMode.BLOB: "file",
    FileMode.BLOB_EXECUTABLE: "executable",
    FileMode.LINK: "symlink",
    FileMode.TREE: "folder",
    FileMode.COMMIT: "submodule",
}


@attrs.frozen
class Entry:
    """What a tree has at a path. `size` is in bytes, None for folders and submodules."""

    path: str
    kind: EntryKind
    id: str
    size: int | None

    @property
    def is_blob(self) -> bool:
        return self.kind in ("file", "executable", "symlink")


def find(repository: Repository, commit: str, path: str) -> Entry | None:
    """The entry at `path` ("a/b", without leading or trailing slash) of the commit with this full SHA."""
    if path.endswith("/") or "\0" in path:  # libgit2 would read "a" in "a/" and "a\0b"
        return None
    try:
        found = tree_of(repository, commit)[path]
    except (KeyError, ValueError, pygit2.GitError):
        return None
    kind = _KINDS.get(found.filemode, "file")  # old tools wrote modes such as 100664
    size = None
    if kind not in ("folder", "submodule"):
        _, size = repository.odb.read_header(found.id)
    return Entry(path, kind, str(found.id), size)


def read(repository: Repository, entry: Entry) -> bytes:
    """A blob's bytes, all in memory: meant for files up to `IN_MEMORY_BYTES`."""
    return repository[entry.id].peel(pygit2.Blob).data


@asynccontextmanager
async def stream(repository: Repository, entry: Entry) -> AsyncIterator[AsyncIterator[bytes]]:
    """A blob's bytes in chunks, from a child: `async with stream(...) as chunks: async for ...`.

    The iteration raises `GitError` when git fails, so it never ends cleanly short of `entry.size`.
    """
    command = ["cat-file", "blob", entry.id]
    async with start(command, repository=Path(repository.path), configuration=_STREAMED) as child:
        yield child.checked_output()
