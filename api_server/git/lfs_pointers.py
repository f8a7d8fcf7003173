"""Git LFS pointers: small files in a repository that stand for objects that are stored elsewhere."""

import re
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import attrs

from api_server.git.processes import start

#: Pointer files have fewer bytes than this, according to the LFS specification.
POINTER_BYTES = 1024
OID = re.compile(r"[0-9a-f]{64}")
_FIRST_LINE = re.compile(rb"version https?://[^\n]+/spec/v?1\n")
_OID_LINE = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)
_SIZE_LINE = re.compile(rb"^size ([0-9]{1,18})$", re.MULTILINE)
_TIME_LIMIT_SECONDS = 1800.0


@attrs.frozen
class Pointer:
    """The object that a pointer file names: the SHA-256 of its content (`oid`, in hex) and its size in bytes."""

    oid: str
    size: int


def parse_pointer(content: bytes) -> Pointer | None:
    """Return the object that a file points to, or None if the file is no pointer.

    This is as lenient as git-lfs: any version of the first specification is accepted, and so are lines of extensions.
    """
    if len(content) >= POINTER_BYTES or not _FIRST_LINE.match(content):
        return None
    oid, size = _OID_LINE.search(content), _SIZE_LINE.search(content)
    return Pointer(oid[1].decode(), int(size[1])) if oid and size else None


async def pointers_in(repository: Path, tips: Collection[str], excluded: Collection[str]) -> set[Pointer]:
    """Return the pointers that were added by commits reachable from `tips` but not from `excluded`.

    Both contain full ids, and ids that the repository lacks are ignored. The cost grows with the amount of changes in
    these commits. Raise `GitError`.
    """
    if not tips:  # without tips, git would begin at HEAD
        return set()
    changed = _changed_blobs(repository, tips, excluded)
    contents = _contents(repository, _small_blobs(repository, changed))
    return {pointer async for content in contents if (pointer := parse_pointer(content))}


async def _changed_blobs(
    repository: Path, tips: Collection[str], excluded: Collection[str]
) -> AsyncIterator[bytes]:
    """Yield the ids of files that commits have added or changed, one per line. Of a merge, only the files that differ
    from all parents count."""
    command = ["log", "--format=", "--raw", "--root", "-c", "--no-renames", "--no-abbrev"]
    async with start(
        [*command, "--ignore-missing", "--stdin"],
        repository=repository,
        with_stdin=True,
        time_limit=_TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(_revisions(tips, excluded))
        async for lines in _lines(child.checked_output()):
            yield b"".join(blob + b"\n" for line in lines if (blob := _regular_file(line)))


async def _revisions(tips: Collection[str], excluded: Collection[str]) -> AsyncIterator[bytes]:
    yield "".join([*(f"{sha}\n" for sha in tips), *(f"^{sha}\n" for sha in excluded)]).encode()


def _regular_file(line: bytes) -> bytes | None:
    """Return the id of the new content in a line of a raw diff, or None for deleted files, symbolic links and
    submodules.

    A line has the form `:old-mode new-mode old-id new-id status`, or with two parents `::mode mode new-mode id id
    new-id status`.
    """
    fields = line.partition(b"\t")[0].lstrip(b":").split(b" ")
    parents = len(line) - len(line.lstrip(b":"))
    if not parents or not fields[parents].startswith(b"100"):
        return None
    return fields[2 * parents + 1]


async def _small_blobs(repository: Path, blobs: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the ids of blobs that are small enough for a pointer, one per line."""
    async with start(
        ["cat-file", "--batch-check=%(objectsize) %(objectname)", "--buffer"],
        repository=repository,
        with_stdin=True,
        time_limit=_TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(blobs)
        async for lines in _lines(child.checked_output()):
            answers = (line.partition(b" ") for line in lines)
            yield b"".join(
                blob + b"\n" for size, _, blob in answers if size.isdigit() and int(size) < POINTER_BYTES
            )


async def _contents(repository: Path, blobs: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with start(
        ["cat-file", "--batch=%(objectsize)", "--buffer"],
        repository=repository,
        with_stdin=True,
        time_limit=_TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(blobs)
        waiting = b""
        async for chunk in child.checked_output():
            waiting += chunk
            position = 0
            while (newline := waiting.find(b"\n", position)) >= 0:
                end = newline + 1 + int(waiting[position:newline])
                if end >= len(waiting):  # a newline follows the content
                    break
                yield waiting[newline + 1 : end]
                position = end + 1
            waiting = waiting[position:]


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield lists of the lines that have arrived completely, without their ends."""
    waiting = b""
    async for chunk in chunks:
        *lines, waiting = (waiting + chunk).split(b"\n")
        yield lines
