"""Whether a line of a file belongs to what differs between two commits."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import attrs

from api_server.git import files
from api_server.git.files import Entry
from api_server.git.processes import run
from api_server.git.ref_names import FULL_SHA
from api_server.git.references import commit_id
from api_server.git.repositories import Repository

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
#: As git tells text from other files.
_LOOKED_AT = 8000


@attrs.frozen(kw_only=True)
class Line:
    """A line by its number before and after, from 1 on: None where it is not there. One path may be left out."""

    old_path: str | None
    new_path: str | None
    old_line: int | None
    new_line: int | None


@attrs.frozen
class _Hunk:
    """So many lines from `old` on became so many from `new` on; where there are none, they begin behind that line."""

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
    """Whether `line` was added, removed, or left as it is in a file that differs between the commits with these full
    SHAs. Files of more than `largest` bytes, and what is no text, have no lines here. Raises `GitError`."""
    if not all(FULL_SHA.fullmatch(sha) and commit_id(repository, sha) == sha for sha in (old, new)):
        return False
    before = _file(repository, old, line.old_path or line.new_path)
    after = _file(repository, new, line.new_path or line.old_path)
    if before and after and before.path != after.path and _file(repository, new, before.path):
        before = None  # it has not become the other one, which is new
    if any(entry.size is None or entry.size > largest for entry in (before, after) if entry):
        return False
    if before and after and before.id == after.id and before.path == after.path:
        return False
    hunks = await _hunks(repository, before, after) if before and after else None
    return await asyncio.to_thread(_has, repository, before, after, hunks, line)


def _file(repository: Repository, commit: str, path: str | None) -> Entry | None:
    found = files.find(repository, commit, path) if path else None
    return found if found is not None and found.is_blob else None


async def _hunks(repository: Repository, before: Entry, after: Entry) -> bytes:
    how = ["--unified=0", "--no-indent-heuristic", "--no-ext-diff", "--no-textconv", "--no-color"]
    output = await run(["diff", *how, before.id, after.id], repository=Path(repository.path))
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
        hunks = [_Hunk(*(int(number or 1) for number in found)) for found in _HUNK.findall(diff)]
    return _is_there(line, hunks, old_lines)


def _lines(repository: Repository, entry: Entry | None) -> int | None:
    """How many, 0 without a file; None where it is no text."""
    data = files.read(repository, entry) if entry else b""
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
