"""Commits and tags that the server itself creates: from changed files, and by merging, cherry-picking, reverting and
rebasing."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import attrs
import pygit2
from pygit2.enums import FileMode, ObjectType

from api_server.git.commits import Person, is_ancestor, merge_base, read_text
from api_server.git.errors import (
    InvalidActionError,
    InvalidPathError,
    MergeConflictError,
    NotFoundError,
    NothingToMergeError,
    TooManyCommitsError,
    TooManyFilesError,
    classified_errors,
    storing,
)
from api_server.git.object_checks import check_content, check_path, read_by_git
from api_server.git.processes import run
from api_server.git.ref_names import check_branch_name
from api_server.git.references import commit_id
from api_server.git.repositories import Repository
from api_server.git.trees import MAX_MERGED, TreeSizes, can_be_merged


@attrs.frozen
class FileAction:
    """A change of one file. A move takes the file from `previous_path`, and keeps its content if `content` is None.
    `last_commit_id` is the newest commit that changed the file, as far as the caller knows."""

    action: Literal["create", "update", "delete", "move"]
    path: str
    content: bytes | None = None
    previous_path: str | None = None
    executable: bool | None = None
    last_commit_id: str | None = None


#: Maximum size in bytes of a file that git itself interprets, such as `.gitmodules`: it is checked in memory.
READ_BY_GIT_BYTES = 2**20
#: Maximum number of folders in all paths of one commit together: each may become an object, which is a file.
MAX_FOLDERS = 20_000


@attrs.frozen
class NewCommit:
    message: str
    author: Person
    committer: Person


async def commit_files(
    repository: Repository, actions: Sequence[FileAction], commit: NewCommit, parent: str | None
) -> str:
    """Return the SHA of a new commit that applies `actions` to the files of the commit `parent`. If that is None,
    there are no files yet.

    No ref points to the new commit yet. Raise `InvalidActionError`, `InvalidPathError`, `StorageUnavailableError`.
    """
    with classified_errors():
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
    """Return the SHA of a new commit that merges the commit `source` into the commit `target`. It has two parents even
    if a fast-forward is possible.

    No ref points to the new commit yet. Raise `MergeConflictError`, `NothingToMergeError`, `NotFoundError`,
    `StorageUnavailableError`.
    """
    return await _merged_commit(repository, source, target, commit, [target, source])


async def squash(repository: Repository, source: str, target: str, commit: NewCommit) -> str:
    """Return the SHA of a new commit on top of `target` that contains all changes that merging `source` would bring.
    No ref points to it yet. Raise the errors of `merge`."""
    return await _merged_commit(repository, source, target, commit, [target])


async def _merged_commit(
    repository: Repository, source: str, target: str, commit: NewCommit, parents: Sequence[str]
) -> str:
    if commit_id(repository, source) is None or commit_id(repository, target) is None:
        raise NotFoundError("A commit of the merge does not exist.")
    if await is_ancestor(repository, source, target):
        raise NothingToMergeError("The target branch already contains the source.")
    with storing():
        return await asyncio.to_thread(_merge, repository, source, target, commit, parents)


async def merge_conflicts(repository: Repository, source: str, target: str) -> list[str]:
    """Return the paths in which merging two commits would conflict, or an empty list if it would not.

    libgit2 stores the files that it merges. Raise `StorageUnavailableError`.
    """
    with storing():
        index = await asyncio.to_thread(_merged_index, repository, source, target)
    return conflicts(index)


def _changed(repository: Repository, actions: Sequence[FileAction], parent: str | None) -> "_Files":
    if sum(action.path.count("/") for action in actions) > MAX_FOLDERS:
        raise InvalidActionError(f"The files are in too many folders; {MAX_FOLDERS} are allowed in all.")
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
    """Return the paths in which a merge conflicts, sorted."""
    sides = [side for conflict in index.conflicts or () for side in conflict if side is not None]
    return sorted({side.path for side in sides})


def create_commit(repository: Repository, commit: NewCommit, tree: pygit2.Oid, parents: Sequence[str]) -> str:
    """Return the SHA of a new commit, to which no ref points yet. Blocks: call it in a thread, within `storing`."""
    author, committer = commit.author.signature(), commit.committer.signature()
    message = commit.message.replace("\0", "")
    return str(repository.create_commit(None, author, committer, message, tree, list(parents)))


class _Files:
    """The files of a commit, in memory, while actions are applied to them."""

    def __init__(self, repository: Repository, commit: str | None) -> None:
        self.repository = repository
        self.index = pygit2.Index()
        if commit is not None:
            self.index.read_tree(repository[commit].peel(pygit2.Tree))
        self.modes: dict[str, int] = {entry.path: int(entry.mode) for entry in self.index}
        #: Sorted, so that the files of a folder are neighbours: counting the folders of each path would take time and
        #: memory that grow with the square of its length.
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
        """Return the changed files that git itself interprets: the name for which each may be taken, and the id of its
        content."""
        pairs = [(read_by_git(path.rpartition("/")[2]), path) for path in sorted(self.changed)]
        return [(name, self.index[path].id) for name, path in pairs if name]

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


def new_tag_target(
    repository: Repository, name: str, commit: str, message: str | None, tagger: Person
) -> str:
    """Return the id to which a new tag is to point: the commit's, or that of a new tag object if there is a message.

    Raise `InvalidNameError`, `StorageUnavailableError`.
    """
    check_branch_name(name)
    if not message:
        return commit
    signature = tagger.signature()
    hours, minutes = divmod(abs(tagger.offset), 60)
    zone = f"{'-' if tagger.offset < 0 else '+'}{hours:02}{minutes:02}"
    text = message.replace("\0", "").rstrip("\n")
    tagged_by = f"{signature.name} <{signature.email}> {signature.time} {zone}"
    head = f"object {commit}\ntype commit\ntag {name}\ntagger {tagged_by}\n"
    with storing():
        return str(repository.write(ObjectType.TAG, f"{head}\n{text}\n".encode()))


async def cherry_picked(repository: Repository, picked: str, onto: str) -> str:
    """Return the id of the tree of the commit `onto` with the changes that `picked` has made to its first parent.

    Raise `MergeConflictError`, `StorageUnavailableError`, and `NothingToMergeError` if the changes are there already.
    """
    with storing():
        return await asyncio.to_thread(_cherry_picked, repository, picked, onto)


async def reverted(repository: Repository, undone: str, onto: str) -> str:
    """Return the id of the tree of the commit `onto` without the changes that `undone` has made to its first parent.
    Raise the errors of `cherry_picked`."""
    with storing():
        return await asyncio.to_thread(_reverted, repository, undone, onto)


async def commit_tree(repository: Repository, tree: str, commit: NewCommit, parent: str) -> str:
    """Return the SHA of a new commit with this tree, to which no ref points yet. Raise `StorageUnavailableError`."""
    with storing():
        return await asyncio.to_thread(create_commit, repository, commit, pygit2.Oid(hex=tree), [parent])


def author_of(repository: Repository, sha: str) -> Person:
    """Return the author of a commit, with the author date."""
    return read_text(repository, sha).author


def _cherry_picked(repository: Repository, picked: str, onto: str) -> str:
    commit = _commit(repository, picked)
    return _applied(repository, _tree_before(repository, commit), commit.tree_id, onto)


def _reverted(repository: Repository, undone: str, onto: str) -> str:
    commit = _commit(repository, undone)
    return _applied(repository, commit.tree_id, _tree_before(repository, commit), onto)


def _applied(repository: Repository, old: pygit2.Oid, new: pygit2.Oid, onto: str) -> str:
    """Return the id of the tree of the commit `onto` after applying the difference between the trees `old` and
    `new`."""
    tree = _commit(repository, onto).tree_id
    index = repository.merge_trees(old, tree, new)
    if paths := conflicts(index):
        raise MergeConflictError(paths)
    applied = index.write_tree(repository)
    if applied == tree:
        raise NothingToMergeError("The branch already contains the change.")
    return str(applied)


def _tree_before(repository: Repository, commit: pygit2.Commit) -> pygit2.Oid:
    """Return the tree of the first parent, or the empty tree for a root commit."""
    if commit.parent_ids:
        return _commit(repository, str(commit.parent_ids[0])).tree_id
    return repository.TreeBuilder().write()


def _commit(repository: Repository, sha: str) -> pygit2.Commit:
    return repository[sha].peel(pygit2.Commit)


#: Maximum number of commits that are rebased at once.
MAX_REBASED = 1000


async def rebase(repository: Repository, head: str, onto: str, committer: Person) -> str:
    """Rebase the commits that `head` has and `onto` lacks onto the commit `onto`. Return the SHA of the last new
    commit.

    Merge commits are left out, and so are commits whose change is already in `onto` under another SHA. Authors, author
    dates and messages stay. No ref points to the new commits yet. Raise `MergeConflictError`, `TooManyCommitsError`,
    `TooManyFilesError`, `StorageUnavailableError`.
    """
    if not await can_be_merged(repository, head, onto, await merge_base(repository, head, onto)):
        raise _too_many_files()
    # Commits that only the right side of the three dots has, without those whose change the left side has under
    # another SHA.
    selection = ["--cherry-pick", "--right-only", "--no-merges", "--topo-order", f"{onto}...{head}", "--"]
    completed = await run(
        ["rev-list", f"--max-count={MAX_REBASED + 1}", *selection], repository=Path(repository.path)
    )
    shas = completed.stdout.decode().split()
    if len(shas) > MAX_REBASED:
        raise TooManyCommitsError(f"More than {MAX_REBASED} commits are not rebased.")
    last, sizes = onto, TreeSizes(repository)
    with storing():
        # A thread for each commit lets other tasks have their turn, and a cancelled rebase stop.
        for sha in reversed(shas):
            last = await asyncio.to_thread(_rebased_commit, repository, sizes, sha, last, committer)
    return last


def _rebased_commit(
    repository: Repository, sizes: TreeSizes, sha: str, parent: str, committer: Person
) -> str:
    """Return the SHA of a commit with the same change on top of `parent`, or `parent` if nothing of the change is
    left."""
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
    return TooManyFilesError(f"Commits with more than {MAX_MERGED} files and folders are not rebased.")
