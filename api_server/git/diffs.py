"""What differs between two commits, file by file. Walks whole trees: call it in a thread."""

from collections.abc import Sequence

import attrs
import pygit2
from pygit2.enums import DeltaStatus, FileMode

from api_server.git.commits import tree_of
from api_server.git.repositories import Repository

#: Files beyond this size, and texts of differences beyond it, are not shown.
MOST_BYTES = 512 * 1024


@attrs.frozen
class FileDiff:
    """One file; `text` is the hunks, empty where it is `too_large`. Modes are six octal digits, 0 for none."""

    old_path: str
    new_path: str
    old_mode: str
    new_mode: str
    added: bool
    removed: bool
    renamed: bool
    text: str
    too_large: bool


def differences(
    repository: Repository, old: str | None, new: str, *, skip: int = 0, limit: int
) -> tuple[Sequence[FileDiff], int]:
    """`limit` files after the first `skip`, and how many there are; without `old` all files of `new` are new.

    Raises `NotFoundError` for what is no commit.
    """
    tree = tree_of(repository, new)
    found = tree.diff_to_tree(swap=True) if old is None else tree_of(repository, old).diff_to_tree(tree)
    found.find_similar()
    deltas = list(found.deltas)
    wanted = range(skip, min(skip + limit, len(deltas)))
    return [_file(repository, found, index, deltas[index]) for index in wanted], len(deltas)


def _file(repository: Repository, found: pygit2.Diff, index: int, delta: pygit2.DiffDelta) -> FileDiff:
    sides = (delta.old_file, delta.new_file)
    too_large = any(_size(repository, side) > MOST_BYTES for side in sides)
    text = "" if too_large else _text(found[index])
    if len(text) > MOST_BYTES:
        text, too_large = "", True
    old_mode, new_mode = (f"{int(side.mode):o}" for side in sides)
    return FileDiff(
        old_path=_path(sides[0]),
        new_path=_path(sides[1]),
        old_mode=old_mode,
        new_mode=new_mode,
        added=delta.status == DeltaStatus.ADDED,
        removed=delta.status == DeltaStatus.DELETED,
        renamed=delta.status == DeltaStatus.RENAMED,
        text=text,
        too_large=too_large,
    )


def _text(patch: pygit2.Patch | None) -> str:
    """From the first hunk on; binary files have git's one line."""
    whole = (
        ""
        if patch is None
        else patch.data.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
    for start in ("\n@@ ", "\nBinary files "):
        if (position := whole.find(start)) >= 0:
            return whole[position + 1 :]
    return ""


def _size(repository: Repository, side: pygit2.DiffFile) -> int:
    if side.mode in (FileMode.UNREADABLE, FileMode.COMMIT):
        return 0
    return int(repository.odb.read_header(side.id)[1])


def _path(side: pygit2.DiffFile) -> str:
    return side.raw_path.decode(errors="replace")
