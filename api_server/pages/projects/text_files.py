"""A file of a commit as a page shows it: as text, so far as it is text, and no longer than somebody reads."""

import asyncio

import attrs

from api_server.git import trees
from api_server.git.repositories import Repository
from api_server.git.trees import IN_MEMORY_BYTES, Entry

#: Lines of a file that are shown.
MOST_LINES = 5000
#: So far git looks for a NUL too.
_LOOKED_AT = 8000


@attrs.frozen
class Shown:
    """`lines` is None for what is no text, or too large to be shown; `cut` says that there are more."""

    lines: list[str] | None
    binary: bool = False
    cut: bool = False


async def shown(repository: Repository, entry: Entry) -> Shown:
    """The lines of a file, a symbolic link (its target), or nothing of what is too large."""
    if (entry.size or 0) > IN_MEMORY_BYTES:
        return Shown(None)
    return await asyncio.to_thread(_read, repository, entry)


def _read(repository: Repository, entry: Entry) -> Shown:
    data = trees.read_blob(repository, entry)
    if b"\0" in data[:_LOOKED_AT]:
        return Shown(None, binary=True)
    lines = data.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n").split("\n")
    return Shown(lines[:MOST_LINES], cut=len(lines) > MOST_LINES)
