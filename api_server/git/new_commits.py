"""Commits that the server itself makes: of changed files, and of merges."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Literal

import attrs
import pygit2
from pygit2.enums import FileMode

from api_server.git.commit_text import Person
from api_server.git.commits import is_ancestor
from api_server.git.errors import (
    InvalidActionError,
    InvalidPathError,
    MergeConflictError,
    NotFoundError,
    NothingToMergeError,
)
from api_server.git.failures import storing, told_apart
from api_server.git.file_names import check_path, read_by_git
from api_server.git.fsck import check_content
from api_server.git.references import commit_id
from api_server.git.repositories import Repository


@attrs.frozen
class FileAction:
    """One change of one file; a move comes from `previous_path` and keeps the bytes if `content` is None.
    `last_commit_id` is the newest commit that changed it, as far as who wants the change knows."""

    action: Literal["create", "update", "delete", "move"]
    path: str
    content: bytes | None = None
    previous_path: str | None = None
    executable: bool | None = None
    last_commit_id: str | None = None


#: The most that one of the files may have that git reads for itself: they are checked in memory.
READ_BY_GIT_BYTES = 2**20
#: Folders of all paths of one commit together: each may become an object, which is a file.
MOST_FOLDERS = 20_000


@attrs.frozen
class NewCommit:
    message: str
    author: Person
    committer: Person


async def commit_files(
    repository: Repository, actions: Sequence[FileAction], commit: NewCommit, parent: str | None
) -> str:
    """The SHA of a new commit that applies `actions` to the files of `parent` (None: there are none yet).

    No ref leads to it until one is moved there. Raises `InvalidActionError`, `InvalidPathError`,
    `StorageUnavailableError`.
    """
    with told_apart():
        return await _committed(repository, actions, commit, parent)


async def _committed(
    repository: Repository, actions: Sequence[FileAction], commit: NewCommit, parent: str | None
) -> str:
    files = await asyncio.to_thread(_changed, repository, actions, parent)
    for name, blob in files.read_by_git():
        _, size = repository.odb.read_header(blob)
        if size > READ_BY_GIT_BYTES:
            raise InvalidPathError(f"{name} may have {READ_BY_GIT_BYTES} bytes at most")
        await check_content(name, repository[blob].peel(pygit2.Blob).data)
    parents = [] if parent is None else [parent]
    with storing():
        return await asyncio.to_thread(
            lambda: create_commit(repository, commit, files.index.write_tree(repository), parents)
        )


async def merge(repository: Repository, source: str, target: str, commit: NewCommit) -> str:
    """The SHA of a new commit that merges the commit `source` into the commit `target`, always one with two parents.

    No ref leads to it until one is moved there. Raises `MergeConflictError`, `NothingToMergeError`, `NotFoundError`,
    `StorageUnavailableError`.
    """
    return await _joined(repository, source, target, commit, [target, source])


async def squash(repository: Repository, source: str, target: str, commit: NewCommit) -> str:
    """The SHA of a new commit on top of `target` that brings all that merging `source` would bring. Otherwise as
    `merge`."""
    return await _joined(repository, source, target, commit, [target])


async def _joined(
    repository: Repository, source: str, target: str, commit: NewCommit, parents: Sequence[str]
) -> str:
    if commit_id(repository, source) is None or commit_id(repository, target) is None:
        raise NotFoundError("A commit of the merge does not exist.")
    if await is_ancestor(repository, source, target):
        raise NothingToMergeError("The target branch already contains the source.")
    with storing():
        return await asyncio.to_thread(_merge, repository, source, target, commit, parents)


async def merge_conflicts(repository: Repository, source: str, target: str) -> list[str]:
    """The paths in which merging two commits would conflict; empty when it would not.

    libgit2 stores the files that it merges. Raises `StorageUnavailableError`.
    """
    with storing():
        index = await asyncio.to_thread(_merged_index, repository, source, target)
    return conflicts(index)


def _changed(repository: Repository, actions: Sequence[FileAction], parent: str | None) -> "_Files":
    if sum(action.path.count("/") for action in actions) > MOST_FOLDERS:
        raise InvalidActionError(f"The files are in too many folders; {MOST_FOLDERS} are allowed in all.")
    files = _Files(repository, parent)
    for action in actions:
        files.apply(action)
    return files


def _merge(
    repository: Repository, source: str, target: str, commit: NewCommit, parents: Sequence[str]
) -> str:
    index = _merged_index(repository, source, target)
    if paths := conflicts(index):
        raise MergeConflictError(paths)
    return create_commit(repository, commit, index.write_tree(repository), parents)


def _merged_index(repository: Repository, source: str, target: str) -> pygit2.Index:
    return repository.merge_commits(pygit2.Oid(hex=target), pygit2.Oid(hex=source))


def conflicts(index: pygit2.Index) -> list[str]:
    """The paths in which a merge conflicts."""
    sides = [side for conflict in index.conflicts or () for side in conflict if side is not None]
    return sorted({side.path for side in sides})


def create_commit(repository: Repository, commit: NewCommit, tree: pygit2.Oid, parents: Sequence[str]) -> str:
    """The SHA of a new commit, to which no ref leads yet. Blocks; callers are `storing`."""
    author, committer = commit.author.signature(), commit.committer.signature()
    message = commit.message.replace("\0", "")
    return str(repository.create_commit(None, author, committer, message, tree, list(parents)))


class _Files:
    """The files of a commit while actions change them, in memory."""

    def __init__(self, repository: Repository, commit: str | None) -> None:
        self.repository = repository
        self.index = pygit2.Index()
        if commit is not None:
            self.index.read_tree(repository[commit].peel(pygit2.Tree))
        self.modes: dict[str, int] = {entry.path: int(entry.mode) for entry in self.index}
        #: In order, so that what is in a folder stands together: counting each path's folders would take time, and
        #: memory, that grow with the square of its length.
        self.paths = sorted(self.modes)
        self.changed: set[str] = set()

    def apply(self, action: FileAction) -> None:
        if action.action == "create":
            self._put(action.path, self._blob(action), FileMode.BLOB, action.executable)
        elif action.action == "update":
            mode = self._existing(action.path)
            self._remove(action.path)
            self._put(action.path, self._blob(action), mode, action.executable)
        elif action.action == "delete":
            self._existing(action.path)
            self._remove(action.path)
        else:
            self._move(action)

    def read_by_git(self) -> list[tuple[str, pygit2.Oid]]:
        """The changed files that git reads for itself: what each may be taken for, and its content."""
        named = [(read_by_git(path.rpartition("/")[2]), path) for path in sorted(self.changed)]
        return [(name, self.index[path].id) for name, path in named if name]

    def _move(self, action: FileAction) -> None:
        source = action.previous_path or ""
        mode = self._existing(source)
        content = self.index[source].id if action.content is None else self._blob(action)
        self._remove(source)
        self._put(action.path, content, mode, action.executable)

    def _blob(self, action: FileAction) -> pygit2.Oid:
        if action.content is None:
            raise InvalidActionError(f"The action {action.action!r} of {action.path!r} needs content.")
        with storing():
            return self.repository.create_blob(action.content)

    def _existing(self, path: str) -> int:
        if (mode := self.modes.get(path)) is None:
            raise InvalidActionError(f"A file named {path!r} does not exist.")
        return mode

    def _put(self, path: str, content: pygit2.Oid, mode: int, executable: bool | None) -> None:
        if executable is not None:
            mode = FileMode.BLOB_EXECUTABLE if executable else FileMode.BLOB
        check_path(path, mode)
        if path in self.modes or self._is_folder(path):
            raise InvalidActionError(f"A file or folder named {path!r} already exists.")
        if (
            blocking := next((folder for folder in _folders(path) if folder in self.modes), None)
        ) is not None:
            raise InvalidActionError(f"{blocking!r} is a file, so {path!r} cannot be in it.")
        self.index.add(pygit2.IndexEntry(path, content, FileMode(mode)))
        self.modes[path] = mode
        insort(self.paths, path)
        self.changed.add(path)

    def _remove(self, path: str) -> None:
        self.index.remove(path)
        del self.modes[path]
        del self.paths[bisect_left(self.paths, path)]
        self.changed.discard(path)

    def _is_folder(self, path: str) -> bool:
        first = bisect_left(self.paths, f"{path}/")
        return first < len(self.paths) and self.paths[first].startswith(f"{path}/")


def _folders(path: str) -> Iterator[str]:
    return (path[:end] for end, character in enumerate(path) if character == "/")
