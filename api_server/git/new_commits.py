"""Commits that the server itself makes: of changed files, and of merges."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import attrs
import pygit2
from pygit2.enums import FileMode

from api_server.git.commits import is_ancestor
from api_server.git.errors import (
    InvalidActionError,
    MergeConflictError,
    NotFoundError,
    NothingToMergeError,
)
from api_server.git.references import commit_id
from api_server.git.repositories import Repository


@attrs.frozen
class FileAction:
    """One change of one file; a move comes from `previous_path` and keeps the bytes if `content` is None."""

    action: Literal["create", "update", "delete", "move"]
    path: str
    content: bytes | None = None
    previous_path: str | None = None
    executable: bool | None = None


@attrs.frozen
class Person:
    """Author or committer. `time` is in seconds since 1970, `offset` in minutes east of Greenwich."""

    name: str
    email: str
    time: int
    offset: int = 0

    def signature(self) -> pygit2.Signature:
        # git takes no angle brackets, line ends or empty names
        name = "".join(c for c in self.name if c not in "<>\n\0").strip() or "unknown"
        email = "".join(c for c in self.email if c not in "<>\n\0").strip()
        return pygit2.Signature(name, email or "unknown", self.time, self.offset, "utf-8")


@attrs.frozen
class NewCommit:
    message: str
    author: Person
    committer: Person


async def commit_files(
    repository: Repository, actions: Sequence[FileAction], commit: NewCommit, parent: str | None
) -> str:
    """The SHA of a new commit that applies `actions` to the files of `parent` (None: there are none yet).

    No ref leads to it until one is moved there. Raises `InvalidActionError`.
    """
    return await asyncio.to_thread(_commit_files, repository, actions, commit, parent)


async def merge(repository: Repository, source: str, target: str, commit: NewCommit) -> str:
    """The SHA of a new commit that merges the commit `source` into the commit `target`, always one with two parents.

    No ref leads to it until one is moved there. Raises `MergeConflictError`, `NothingToMergeError`, `NotFoundError`.
    """
    if commit_id(repository, source) is None or commit_id(repository, target) is None:
        raise NotFoundError("A commit of the merge does not exist.")
    if await is_ancestor(repository, source, target):
        raise NothingToMergeError("The target branch already contains the source.")
    return await asyncio.to_thread(_merge, repository, source, target, commit)


async def merge_conflicts(repository: Repository, source: str, target: str) -> list[str]:
    """The paths in which merging two commits would conflict; empty when it would not."""
    return await asyncio.to_thread(lambda: _conflicts(_merged_index(repository, source, target)))


def _commit_files(
    repository: Repository, actions: Sequence[FileAction], commit: NewCommit, parent: str | None
) -> str:
    files = _Files(repository, parent)
    for action in actions:
        files.apply(action)
    tree = files.index.write_tree(repository)
    return _create_commit(repository, commit, tree, [] if parent is None else [parent])


def _merge(repository: Repository, source: str, target: str, commit: NewCommit) -> str:
    index = _merged_index(repository, source, target)
    if paths := _conflicts(index):
        raise MergeConflictError(paths)
    return _create_commit(repository, commit, index.write_tree(repository), [target, source])


def _merged_index(repository: Repository, source: str, target: str) -> pygit2.Index:
    return repository.merge_commits(pygit2.Oid(hex=target), pygit2.Oid(hex=source))


def _conflicts(index: pygit2.Index) -> list[str]:
    sides = [side for conflict in index.conflicts or () for side in conflict if side is not None]
    return sorted({side.path for side in sides})


def _create_commit(
    repository: Repository, commit: NewCommit, tree: pygit2.Oid, parents: Sequence[str]
) -> str:
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
        self.folders: dict[str, int] = {}
        for path in self.modes:
            self._count_folders(path, 1)

    def apply(self, action: FileAction) -> None:
        _check_path(action.path)
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

    def _move(self, action: FileAction) -> None:
        source = action.previous_path or ""
        mode = self._existing(source)
        content = self.index[source].id if action.content is None else self._blob(action)
        self._remove(source)
        self._put(action.path, content, mode, action.executable)

    def _blob(self, action: FileAction) -> pygit2.Oid:
        if action.content is None:
            raise InvalidActionError(f"The action {action.action!r} of {action.path!r} needs content.")
        return self.repository.create_blob(action.content)

    def _existing(self, path: str) -> int:
        if (mode := self.modes.get(path)) is None:
            raise InvalidActionError(f"A file named {path!r} does not exist.")
        return mode

    def _put(self, path: str, content: pygit2.Oid, mode: int, executable: bool | None) -> None:
        if path in self.modes or path in self.folders:
            raise InvalidActionError(f"A file or folder named {path!r} already exists.")
        if blocking := [folder for folder in _folders(path) if folder in self.modes]:
            raise InvalidActionError(f"{blocking[0]!r} is a file, so {path!r} cannot be in it.")
        if executable is not None:
            mode = FileMode.BLOB_EXECUTABLE if executable else FileMode.BLOB
        self.index.add(pygit2.IndexEntry(path, content, FileMode(mode)))
        self.modes[path] = mode
        self._count_folders(path, 1)

    def _remove(self, path: str) -> None:
        self.index.remove(path)
        del self.modes[path]
        self._count_folders(path, -1)

    def _count_folders(self, path: str, step: int) -> None:
        for folder in _folders(path):
            self.folders[folder] = self.folders.get(folder, 0) + step
            if not self.folders[folder]:
                del self.folders[folder]


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _check_path(path: str) -> None:
    """Raises `InvalidActionError` for paths that git, or a check-out on some system, would refuse."""
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    if bad or "\0" in path or "\\" in path or len(path.encode(errors="replace")) > 4096:
        raise InvalidActionError(f"{path!r} is not a valid path for a file.")
