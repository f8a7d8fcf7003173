"""Differences between two commits, by file and by line."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from api_server.git import trees
from api_server.git.commits import EMPTY_TREE, tree_of
from api_server.git.processes import TIME_LIMIT_SECONDS, run, start
from api_server.git.ref_names import FULL_SHA, NO_COMMIT
from api_server.git.references import commit_id
from api_server.git.repositories import Repository
from api_server.git.trees import Entry, MarkedOutput

#: Bytes of paths whose patches are requested at once: they have to fit on a command line.
_MAX_NAMED = 100
_MAX_BYTES_OF_NAMES = 256 * 1024
_MAX_BYTES_OF_A_NAME = 64 * 1024
#: Bytes of patch text, for each file that may be listed, that all files together may have, as in GitLab.
_BYTES_FOR_A_FILE = 5 * 1024
_SUBMODULE = "160000"
_NO_FILE = "000000"
_OPTIONS = ("--no-abbrev", "--no-indent-heuristic", "--no-ext-diff", "--no-textconv", "-l1000")


@attrs.frozen(kw_only=True)
class DiffLimits:
    """How much of a difference is shown, named like GitLab's settings: the most files listed, the size in bytes from
    which a file or its patch is too large (`diff_max_patch_bytes`), and the lines after which the rest is collapsed."""

    diff_max_files: int
    diff_max_lines: int
    diff_max_patch_bytes: int


@attrs.frozen
class FileDiff:
    """The difference of one file. `text` has the hunks. It is empty if the file is `too_large`, or `collapsed` because
    the files before it have used up the limits. Modes are six octal digits, or 0 for no file."""

    old_path: str
    new_path: str
    old_mode: str
    new_mode: str
    added: bool
    removed: bool
    renamed: bool
    text: str
    too_large: bool
    collapsed: bool


@attrs.frozen
class _Change:
    """A line of git's raw diff, with paths and modes as git writes them. A file that becomes a symbolic link (or the
    like) makes two: one removed and one added."""

    old_path: bytes
    new_path: bytes
    old_mode: str
    new_mode: str
    old_id: str
    new_id: str

    @property
    def renamed(self) -> bool:
        return self.old_path != self.new_path

    @property
    def blobs(self) -> Iterable[str]:
        """Return the ids of the files on both sides."""
        sides = ((self.old_mode, self.old_id), (self.new_mode, self.new_id))
        return [blob for mode, blob in sides if mode not in (_NO_FILE, _SUBMODULE)]


async def differences(
    repository: Repository, old: str | None, new: str, limits: DiffLimits, *, skip: int = 0, limit: int
) -> tuple[Sequence[FileDiff], int]:
    """Return `limit` files after the first `skip`, and the number of all listed ones. Without `old`, all files of `new`
    are added ones.

    Nothing beyond the listed files is read, and patches are made only for the requested ones. Raise `NotFoundError` for
    an unknown commit, and `GitError`.
    """
    trees = (
        EMPTY_TREE if old is None else str(tree_of(repository, old).id),
        str(tree_of(repository, new).id),
    )
    reading = _Reading(repository, trees, limits)
    async with reading.diff(["--find-renames"]) as output:
        changes = await _changes(output, limits.diff_max_files + 1)
        listed = _in_order(changes)[: limits.diff_max_files]
        requested = listed[skip : skip + limit]
        await asyncio.to_thread(reading.find_large, requested)
        if len(requested) == len(listed) and len(changes) <= limits.diff_max_files:
            await reading.take_texts(output, changes, requested)
            return [reading.file(change) for change in requested], len(listed)
    for batch in _batches(requested):
        names = [path for change in batch for path in sorted({change.old_path, change.new_path})]
        option = "--find-renames" if batch[0].renamed else "--no-renames"
        async with reading.diff([option], names) as output:
            await reading.take_texts(output, await _changes(output), batch)
    return [reading.file(change) for change in requested], len(listed)


class _Reading:
    """The state of one answer: the patches read so far, and how much may still be shown."""

    def __init__(self, repository: Repository, trees: tuple[str, str], limits: DiffLimits) -> None:
        self.repository = repository
        self.trees = trees
        self.limits = limits
        self.texts: dict[_Change, str] = {}
        self.large: set[_Change] = set()
        self.lines_left = limits.diff_max_lines
        self.bytes_left = limits.diff_max_files * _BYTES_FOR_A_FILE

    @asynccontextmanager
    async def diff(self, options: Sequence[str], names: Sequence[bytes] = ()) -> AsyncIterator[MarkedOutput]:
        """Yield git's raw diff followed by its patch, of only these paths if there are any."""
        arguments = ["diff-tree", "-r", "-z", "--raw", "-p", *_OPTIONS, *options, *self.trees]
        paths = ["--", *(os.fsdecode(name) for name in names)] if names else []
        # git treats files that are larger than shown as binary, and does not read them.
        threshold = ("core.bigFileThreshold", str(self.limits.diff_max_patch_bytes))
        async with start(
            [*arguments, *paths],
            repository=Path(self.repository.path),
            configuration=[threshold],
            time_limit=TIME_LIMIT_SECONDS,
        ) as child:
            yield MarkedOutput(child.checked_output())

    async def take_texts(
        self, output: MarkedOutput, changes: Iterable[_Change], requested: Sequence[_Change]
    ) -> None:
        """Keep the texts of `requested` from a patch that has the texts of all `changes`, in this order."""
        missing = set(requested)
        await output.until(b"diff --git ")
        for change in changes:
            if not missing or self.lines_left <= 0 or self.bytes_left <= 0:
                break
            section = await output.until(b"\ndiff --git ")
            if section is None:
                break
            if change in missing:
                missing.discard(change)
                self._take(change, _hunks(section.removesuffix(b"\n") + b"\n"))

    def _take(self, change: _Change, text: bytes) -> None:
        if len(text) > self.limits.diff_max_patch_bytes:
            self.large.add(change)
            return
        self.lines_left -= text.count(b"\n")
        self.bytes_left -= len(text)
        self.texts[change] = text.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")

    def find_large(self, changes: Iterable[_Change]) -> None:
        """Note the changes with a file above the limit on either side. Blocks: call it in a thread."""
        limit = self.limits.diff_max_patch_bytes
        self.large |= {change for change in changes if any(self._size(blob) > limit for blob in change.blobs)}

    def _size(self, blob: str) -> int:
        return int(self.repository.odb.read_header(blob)[1])

    def file(self, change: _Change) -> FileDiff:
        too_large = change in self.large
        return FileDiff(
            old_path=change.old_path.decode(errors="replace"),
            new_path=change.new_path.decode(errors="replace"),
            old_mode=_digits(change.old_mode),
            new_mode=_digits(change.new_mode),
            added=change.old_mode == _NO_FILE,
            removed=change.new_mode == _NO_FILE,
            renamed=change.renamed,
            text="" if too_large else self.texts.get(change, ""),
            too_large=too_large,
            collapsed=not too_large and change not in self.texts,
        )


def _digits(mode: str) -> str:
    return f"{int(mode, 8):o}"


def _hunks(section: bytes) -> bytes:
    """Return a file's patch from the first hunk on, or git's single line for a binary file."""
    for start_of in (b"\n@@ ", b"\nBinary files "):
        if (position := section.find(start_of)) >= 0:
            return section[position + 1 :]
    return b""


async def _changes(output: MarkedOutput, limit: int | None = None) -> list[_Change]:
    """Read the raw diff to its end, or about `limit` changes (perhaps one more), in the order of their patches."""
    changes: list[_Change] = []
    while (limit is None or len(changes) < limit) and (record := await output.until(b"\0")):
        old_mode, new_mode, old_id, new_id, status = record.decode().removeprefix(":").split(" ")
        path = await output.until(b"\0") or b""
        if status == "T":
            changes.append(_Change(path, path, old_mode, _NO_FILE, old_id, NO_COMMIT))
            changes.append(_Change(path, path, _NO_FILE, new_mode, NO_COMMIT, new_id))
            continue
        new_path = await output.until(b"\0") or b"" if status.startswith("R") else path
        changes.append(_Change(path, new_path, old_mode, new_mode, old_id, new_id))
    return changes


def _in_order(changes: Sequence[_Change]) -> list[_Change]:
    """Sort changes as they are listed: by new path; of two at the same path, the added file comes first."""
    ordered: list[_Change] = []
    for change in changes:
        replaced = bool(ordered) and ordered[-1].new_path == change.new_path
        ordered.insert(len(ordered) - replaced, change)
    return ordered


def _batches(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Split changes into batches that fit on a command line, with renamed files in batches of their own. A path that
    is too long for any command line is left out."""
    for renamed in (False, True):
        batch: list[_Change] = []
        bytes_left = _MAX_BYTES_OF_NAMES
        for change in changes:
            needed = len(change.old_path) + len(change.new_path)
            if change.renamed is not renamed or needed > _MAX_BYTES_OF_A_NAME:
                continue
            if len(batch) == _MAX_NAMED or needed > bytes_left:
                yield batch
                batch, bytes_left = [], _MAX_BYTES_OF_NAMES
            batch.append(change)
            bytes_left -= needed
        if batch:
            yield batch


async def patch_id(repository: Repository, old: str | None, new: str) -> str | None:
    """Return the patch id of the difference between two commits, or of all of `new` without `old`. Return None if
    nothing differs. Raise `NotFoundError` for an unknown commit, and `GitError`."""
    trees = (
        EMPTY_TREE if old is None else str(tree_of(repository, old).id),
        str(tree_of(repository, new).id),
    )
    # With full ids: they are all that the patch has of a binary file.
    arguments = ["diff-tree", "-p", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", *trees]
    path, limit = Path(repository.path), TIME_LIMIT_SECONDS
    async with (
        start(arguments, repository=path, time_limit=limit) as difference,
        start(["patch-id", "--stable"], repository=path, with_stdin=True, time_limit=limit) as child,
    ):
        child.feed(difference.checked_output())
        output = await child.whole_output()
        await child.check()
    return output.split()[0].decode() if output else None


_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
#: git takes a file with a NUL in so many first bytes for binary.
_LOOKED_AT = 8000


@attrs.frozen(kw_only=True)
class Line:
    """A line, by its numbers before and after from 1 on. A number is None if the line does not exist there. One of the
    paths may be None."""

    old_path: str | None
    new_path: str | None
    old_line: int | None
    new_line: int | None


@attrs.frozen
class _Hunk:
    """Lines from `old` on that became lines from `new` on. If there are none on a side, the number is that of the line
    before."""

    old: int
    old_count: int
    new: int
    new_count: int

    @property
    def last_old(self) -> int:
        return self.old + max(self.old_count, 1) - 1

    def removes(self, line: int) -> bool:
        return self.old <= line < self.old + self.old_count

    def adds(self, line: int) -> bool:
        return self.new <= line < self.new + self.new_count


async def has_line(repository: Repository, old: str, new: str, line: Line, *, largest: int) -> bool:
    """Return whether `line` was added, removed, or kept in a file that differs between the commits with these full
    SHAs. Files above `largest` bytes and binary files have no lines here. Raise `GitError`."""
    if not all(FULL_SHA.fullmatch(sha) and commit_id(repository, sha) == sha for sha in (old, new)):
        return False
    before = _entry(repository, old, line.old_path or line.new_path)
    after = _entry(repository, new, line.new_path or line.old_path)
    if before and after and before.path != after.path and _entry(repository, new, before.path):
        before = None  # it has not become the other file, which is new
    if any(entry.size is None or entry.size > largest for entry in (before, after) if entry):
        return False
    if before and after and before.id == after.id and before.path == after.path:
        return False
    hunks = await _diff_of_blobs(repository, before, after) if before and after else None
    return await asyncio.to_thread(_has, repository, before, after, hunks, line)


def _entry(repository: Repository, commit: str, path: str | None) -> Entry | None:
    entry = trees.find_entry(repository, commit, path) if path else None
    return entry if entry is not None and entry.is_blob else None


async def _diff_of_blobs(repository: Repository, before: Entry, after: Entry) -> bytes:
    options = ["--unified=0", "--no-indent-heuristic", "--no-ext-diff", "--no-textconv", "--no-color"]
    output = await run(["diff", *options, before.id, after.id], repository=Path(repository.path))
    return output.stdout


def _has(
    repository: Repository, before: Entry | None, after: Entry | None, diff: bytes | None, line: Line
) -> bool:
    old_lines, new_lines = _lines(repository, before), _lines(repository, after)
    if old_lines is None or new_lines is None:
        return False
    if diff is None:
        hunks = [_Hunk(1 if old_lines else 0, old_lines, 1 if new_lines else 0, new_lines)]
    else:
        hunks = [_Hunk(*(int(number or 1) for number in numbers)) for numbers in _HUNK.findall(diff)]
    return _is_there(line, hunks, old_lines)


def _lines(repository: Repository, entry: Entry | None) -> int | None:
    """Return the number of lines: 0 without a file, None for a binary file."""
    data = trees.read_blob(repository, entry) if entry else b""
    if b"\0" in data[:_LOOKED_AT]:
        return None
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


def _is_there(line: Line, hunks: Sequence[_Hunk], old_lines: int) -> bool:
    old, new = line.old_line, line.new_line
    if old is None:
        return new is not None and any(hunk.adds(new) for hunk in hunks)
    if new is None:
        return any(hunk.removes(old) for hunk in hunks)
    moved_by = sum(hunk.new_count - hunk.old_count for hunk in hunks if hunk.last_old < old)
    stays = not any(hunk.removes(old) for hunk in hunks)
    return stays and 1 <= old <= old_lines and new - old == moved_by
