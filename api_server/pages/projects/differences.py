"""What differs between two commits, as pages show it."""

from collections.abc import Sequence

import attrs
from aiohttp import web

from api_server.code.reading import reading
from api_server.git.diffs import DiffLimits, FileDiff, differences
from api_server.git.repositories import Repository
from api_server.state.listing import Listed, Page
from api_server.web import context

#: Lines of all files of a page together, and bytes of one file.
MOST_LINES = 3000
MOST_BYTES = 128 * 1024

_KINDS = {"+": "added", "-": "removed", "@": "hunk", "\\": "hunk"}


@attrs.frozen
class Line:
    kind: str
    text: str


@attrs.frozen
class File:
    """A file that differs; `lines` is empty where there is nothing to show, for which `note` has the reason."""

    old_path: str
    new_path: str
    title: str
    note: str
    lines: Sequence[Line]


async def read(
    request: web.Request, repository: Repository, old: str | None, new: str, page: Page
) -> tuple[Sequence[File], Listed]:
    """The files on that page, and how many there are. Raises `TooBusy`, and 503 for what takes too long."""
    most = context.settings(request).diff_max_files
    limits = DiffLimits(diff_max_files=most, diff_max_lines=MOST_LINES, diff_max_patch_bytes=MOST_BYTES)
    async with reading(request):
        found, total = await differences(repository, old, new, limits, skip=page.offset, limit=page.size)
    listed = Listed("", page.offset + page.size < total, None, total)
    return [_file(each) for each in found], listed


def _file(found: FileDiff) -> File:
    title = f"{found.old_path} → {found.new_path}" if found.renamed else found.new_path
    return File(found.old_path, found.new_path, title, _note(found), _lines(found.text))


def _note(found: FileDiff) -> str:
    """What happened to the file as a whole, and why nothing of it is shown."""
    kinds = {"new": found.added, "removed": found.removed, "renamed": found.renamed}
    words = [word for word, holds in kinds.items() if holds]
    if found.old_mode != found.new_mode and not (found.added or found.removed):
        words.append(f"mode {found.old_mode} → {found.new_mode}")
    if found.too_large:
        words.append("too large to be shown")
    elif found.collapsed:
        words.append("not shown, since there is so much before it")
    elif not found.text and not words:
        words.append("nothing to show")
    return ", ".join(words)


def _lines(text: str) -> Sequence[Line]:
    return (
        [Line(_KINDS.get(line[:1], "same"), line) for line in text.removesuffix("\n").split("\n")]
        if text
        else []
    )
