"""Contents of commits: files and their bytes, folders, paths that differ, and archives."""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import pygit2
from pygit2.enums import FileMode

from api_server.git.at_work import transferring
from api_server.git.commits import tree_of
from api_server.git.errors import NotFoundError, OutputTooLargeError
from api_server.git.processes import TIME_LIMIT_SECONDS, start
from api_server.git.ref_names import FULL_SHA
from api_server.git.references import commit_id
from api_server.git.repositories import Repository, open_repository

#: Maximum number of bytes of a record. No path and no difference that is shown is longer.
MAX_RECORD_BYTES = 16 * 1024 * 1024


class MarkedOutput:
    """The output of a child, read in records that end with a mark."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._waiting = b""
        self._position = 0

    async def until(self, mark: bytes) -> bytes | None:
        """Return the bytes up to the next `mark`, which is skipped, or up to the end of the output. Return None after
        the end.

        Raise `OutputTooLargeError` if no mark comes within `MAX_RECORD_BYTES`, and the errors of the output.
        """
        searched = self._position
        while (end := self._waiting.find(mark, searched)) < 0:
            if len(self._waiting) - self._position > MAX_RECORD_BYTES:
                raise OutputTooLargeError("output", None, f"more than {MAX_RECORD_BYTES} bytes in one record")
            rest = self._waiting[self._position :]
            chunk = await anext(self._chunks, None)
            if chunk is None:
                self._waiting, self._position = b"", 0
                return rest or None
            self._waiting, self._position = rest + chunk, 0
            searched = max(0, len(rest) - len(mark) + 1)
        record = self._waiting[self._position : end]
        self._position = end + len(mark)
        return record


#: Files up to this size are better read at once in this process, larger ones streamed by a child.
IN_MEMORY_BYTES = 256 * 1024
#: With this, git does not load large files into memory either, unless they are stored as a difference to others.
_STREAMED = (("core.bigFileThreshold", "1m"),)

EntryKind = Literal["file", "executable", "symlink", "folder", "submodule"]
_ENTRY_KINDS: dict[int, EntryKind] = {
    FileMode.BLOB: "file",
    FileMode.BLOB_EXECUTABLE: "executable",
    FileMode.LINK: "symlink",
    FileMode.TREE: "folder",
    FileMode.COMMIT: "submodule",
}


@attrs.frozen
class Entry:
    """An entry of a commit's tree. `size` is in bytes, and None for folders and submodules."""

    path: str
    kind: EntryKind
    id: str
    size: int | None

    @property
    def is_blob(self) -> bool:
        return self.kind in ("file", "executable", "symlink")


def find_entry(repository: Repository, commit: str, path: str) -> Entry | None:
    """Return the entry at `path` ("a/b", without leading or trailing slash) of the commit with this full SHA, or
    None."""
    if path.endswith("/") or "\0" in path:  # libgit2 would read "a" in "a/" and "a\0b"
        return None
    try:
        git_object = tree_of(repository, commit)[path]
    except (KeyError, ValueError, pygit2.GitError):
        return None
    kind = _ENTRY_KINDS.get(git_object.filemode, "file")  # old tools wrote modes such as 100664
    size = None
    if kind not in ("folder", "submodule"):
        _, size = repository.odb.read_header(git_object.id)
    return Entry(path, kind, str(git_object.id), size)


def read_blob(repository: Repository, entry: Entry) -> bytes:
    """Return a blob's bytes, all in memory. This is meant for files up to `IN_MEMORY_BYTES`."""
    return repository[entry.id].peel(pygit2.Blob).data


def sizes(repository: Repository, ids: Iterable[str]) -> dict[str, int]:
    """Return the sizes of blobs in bytes, by their ids. Blocks: call it in a thread."""
    return {id_: repository.odb.read_header(pygit2.Oid(hex=id_))[1] for id_ in ids}


@asynccontextmanager
async def stream_blob(repository: Repository, entry: Entry) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield a blob's bytes in chunks, from a child: `async with stream_blob(...) as chunks: async for ...`.

    The iteration raises `GitError` if git fails, so it never ends normally with fewer than `entry.size` bytes.
    """
    command = ["cat-file", "blob", entry.id]
    async with start(command, repository=Path(repository.path), configuration=_STREAMED) as child:
        yield child.checked_output()


#: Kinds of nodes in the order in which they are listed, with options that make git print no more than is needed to
#: find them.
_KINDS = {b"tree": ["-d"], b"blob": [], b"commit": []}
_ORDER = {kind: position for position, kind in enumerate(_KINDS)}


@attrs.frozen
class Node:
    """An entry of a folder. `kind` is git's word, `mode` six octal digits. `raw_path` begins at the root."""

    raw_path: bytes
    kind: str
    mode: str
    id: str

    @property
    def path(self) -> str:
        return self.raw_path.decode(errors="replace")

    @property
    def key(self) -> bytes:
        """The key by which git sorts: folders are sorted as if their names ended with a slash."""
        return self.raw_path + b"/" if self.kind == "tree" else self.raw_path


@attrs.frozen
class Folder:
    """A folder of a commit, with all that is below it if `recursive`. `open_folder` creates it."""

    repository: Path
    id: str
    prefix: bytes
    recursive: bool

    async def page(self, skip: int, limit: int, counted: int) -> tuple[Sequence[Node], bool, int | None]:
        """Return at most `limit` nodes after the first `skip`, folders first; whether more follow; and the number of
        all nodes, or None if there are more than `counted`.

        No more is read than is necessary to find the nodes and to count that far.
        """
        some = await self._first(counted + 1)
        if len(some) <= counted:
            some.sort(key=lambda record: _ORDER[_kind(record)])
            return self._as_nodes(some[skip : skip + limit]), skip + limit < len(some), len(some)
        collected: list[bytes] = []
        for kind, options in _KINDS.items():
            async with self._chunks(options) as chunks:
                async for records in chunks:
                    of_kind = [record for record in records if _kind(record) == kind]
                    collected += of_kind[skip:]
                    skip = max(0, skip - len(of_kind))
                    if len(collected) > limit:
                        return self._as_nodes(collected[:limit]), True, None
        return self._as_nodes(collected), False, None

    async def after(self, key: bytes, limit: int) -> tuple[Sequence[Node], bool]:
        """Return at most `limit` nodes whose `key` is greater than this one, sorted by it; and whether more follow."""
        collected: list[bytes] = []
        async with self._chunks(["-t"]) as chunks:
            async for records in chunks:
                if not records or _key(records[-1], self.prefix) <= key:  # none of these is greater
                    continue
                collected += [record for record in records if _key(record, self.prefix) > key]
                if len(collected) > limit:
                    return self._as_nodes(collected[:limit]), True
        return self._as_nodes(collected), False

    async def _first(self, limit: int) -> list[bytes]:
        collected: list[bytes] = []
        async with self._chunks(["-t"]) as chunks:
            async for records in chunks:
                collected += records
                if len(collected) >= limit:
                    break
        return collected[:limit]

    def _chunks(self, options: Sequence[str]) -> AbstractAsyncContextManager[AsyncIterator[list[bytes]]]:
        """Return git's records of the folder's entries: creating a `Node` of each would cost ten times what git
        does."""
        arguments = ["ls-tree", "-z", *options, *(["-r"] if self.recursive else []), self.id]
        return _records(self.repository, arguments)

    def _as_nodes(self, records: Iterable[bytes]) -> list[Node]:
        return [_node(record, self.prefix) for record in records]


def open_folder(repository: Repository, commit: str, folder: str = "", *, recursive: bool = False) -> Folder:
    """Return a folder of a commit ("" is the root). Raise `NotFoundError` if there is no such folder."""
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


def _kind(record: bytes) -> bytes:
    return record.split(b" ", 2)[1]


def _key(record: bytes, prefix: bytes) -> bytes:
    """Return the key by which git sorts: folders are sorted as if their names ended with a slash."""
    path = prefix + record.partition(b"\t")[2]
    return path + b"/" if _kind(record) == b"tree" else path


async def paths(repository: Repository, commit: str, limit: int) -> list[str]:
    """Return the paths of all files. Raise `NotFoundError`; `OutputTooLargeError` if there are more than `limit`."""
    tree = str(tree_of(repository, commit).id)
    return await _names(repository, ["ls-tree", "-r", "-z", "--name-only", tree], limit)


async def changed_paths(repository: Repository, old: str, new: str, limit: int) -> list[str]:
    """Return the paths that were added, changed or removed between two commits. Raise the errors of `paths`."""
    trees = [str(tree_of(repository, commit).id) for commit in (old, new)]
    return await _names(repository, ["diff-tree", "-r", "-z", "--name-only", "--no-renames", *trees], limit)


async def _names(repository: Repository, arguments: Sequence[str], limit: int) -> list[str]:
    collected: list[str] = []
    async with _records(Path(repository.path), arguments) as chunks:
        async for records in chunks:
            collected += [record.decode(errors="surrogateescape") for record in records]
            if len(collected) > limit:
                raise OutputTooLargeError(arguments[0], None, f"more than {limit} paths")
    return collected


@asynccontextmanager
async def _records(repository: Path, arguments: Sequence[str]) -> AsyncIterator[AsyncIterator[list[bytes]]]:
    """Yield lists of the records that git prints, each with a NUL after it, as they arrive."""
    async with start(arguments, repository=repository, time_limit=TIME_LIMIT_SECONDS) as child:

        async def records() -> AsyncIterator[list[bytes]]:
            rest = b""
            async for chunk in child.checked_output():
                *complete, rest = (rest + chunk).split(b"\0")
                if len(rest) > MAX_RECORD_BYTES:
                    raise OutputTooLargeError(
                        arguments[0], None, f"more than {MAX_RECORD_BYTES} bytes in one record"
                    )
                yield complete

        yield records()


#: Maximum number of files and folders in a tree that is merged: libgit2 reads all of them.
MAX_MERGED = 300_000


class TreeSizes:
    """The numbers of files and folders in the trees of one repository. Each tree is counted once. Blocks: use it in a
    thread."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._known: dict[pygit2.Oid, int] = {}

    def of(self, tree: pygit2.Oid) -> int:
        """Return the number of files and folders in the tree, at all depths."""
        waiting = [tree]
        while waiting:
            oid = waiting[-1]
            entries = list(self._repository[oid].peel(pygit2.Tree))
            folders = [entry.id for entry in entries if entry.filemode == FileMode.TREE]
            if unknown := [folder for folder in folders if folder not in self._known]:
                waiting += unknown
            else:
                self._known[oid] = len(entries) + sum(self._known[folder] for folder in folders)
                waiting.pop()
        return self._known[tree]

    def can_be_merged(self, *trees: pygit2.Oid) -> bool:
        return all(self.of(tree) <= MAX_MERGED for tree in trees)


async def can_be_merged(repository: Repository, *commits: str | None) -> bool:
    """Return whether none of the commits with these full SHAs has more files and folders than can be merged."""
    trees = [repository[sha].peel(pygit2.Tree).id for sha in commits if sha is not None]
    return await asyncio.to_thread(TreeSizes(repository).can_be_merged, *trees)


ArchiveFormat = Literal["zip", "tar", "tar.gz", "tar.bz2"]
ARCHIVE_SECONDS = 3600.0
#: Fixed, because the bytes of archives depend on it. It fixes the level of git's own zip compression as well.
_COMPRESSION_LEVEL = 6
#: Filters of git's tar. They are in Python because the programs gzip and bzip2 may be missing, and write a name or a
#: time into the header. They run in children, because threads that compress take the processors from the event loop.
_FILTER = """
import bz2, sys, zlib
packer = {packer}
while chunk := sys.stdin.buffer.read(131072):
    sys.stdout.buffer.write(packer.compress(chunk))
sys.stdout.buffer.write(packer.flush())
"""
_PACKERS: dict[ArchiveFormat, str] = {
    "tar.gz": f"zlib.compressobj({_COMPRESSION_LEVEL}, zlib.DEFLATED, 16 + zlib.MAX_WBITS)",
    "tar.bz2": "bz2.BZ2Compressor(9)",
}
_CONFIGURATION = (
    ("core.compression", str(_COMPRESSION_LEVEL)),
    ("tar.umask", "0002"),
    *(
        (f"tar.{name}.command", shlex.join([sys.executable, "-I", "-S", "-c", _FILTER.format(packer=packer)]))
        for name, packer in _PACKERS.items()
    ),
)


@attrs.frozen
class Archive:
    """An archive to create. `commit` is a full SHA, `prefix` the top folder, `path` a file or folder or "" for
    everything.

    Equal archives have equal bytes, as long as git and the compression libraries stay the same and no file asks for
    the names of refs by the attribute export-subst.
    """

    commit: str
    format: ArchiveFormat
    prefix: str
    path: str = ""


@asynccontextmanager
async def stream_archive(
    repository: Path, archive: Archive, *, time_limit: float = ARCHIVE_SECONDS
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the archive's bytes: `async with stream_archive(...) as chunks: async for chunk in chunks`.

    Raise `NotFoundError` before the first byte if the commit or path does not exist. The iteration raises `GitError`
    if git fails later, so it never ends normally with an incomplete archive. LFS pointers are packed as they are.
    """
    _check_archive(repository, archive)
    paths = ["--", archive.path] if archive.path else []
    arguments = [
        "archive",
        f"--format={archive.format}",
        f"--prefix={archive.prefix}/",
        archive.commit,
        *paths,
    ]
    async with (
        transferring(repository) as inherited,
        start(
            arguments,
            repository=repository,
            configuration=_CONFIGURATION,
            time_limit=time_limit,
            pass_fds=inherited,
            background=True,
        ) as child,
    ):
        yield child.checked_output()


def _check_archive(repository: Path, archive: Archive) -> None:
    parts = archive.prefix.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in archive.prefix:
        raise ValueError(f"{archive.prefix!r} is not a folder's name")
    opened = open_repository(repository)
    if not FULL_SHA.fullmatch(archive.commit) or commit_id(opened, archive.commit) is None:
        raise NotFoundError(f"The commit {archive.commit} does not exist.")
    if archive.path and find_entry(opened, archive.commit, archive.path) is None:
        raise NotFoundError(f"The path {archive.path!r} does not exist in {archive.commit}.")
