"""Git LFS pointers: the small files that stand in a repository for objects that are kept elsewhere."""

import re
from collections.abc import AsyncIterator, Collection, Iterable
from itertools import islice
from pathlib import Path

import attrs

from api_server.git.processes import start

#: Pointer files are smaller than this (the LFS specification).
POINTER_BYTES = 1024
OID = re.compile(r"[0-9a-f]{64}")
_FIRST_LINE = re.compile(rb"version https?://[^\n]+/spec/v?1\n")
_OID_LINE = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)
_SIZE_LINE = re.compile(rb"^size ([0-9]{1,18})$", re.MULTILINE)
_TIME_LIMIT_SECONDS = 1800.0


@attrs.frozen
class Pointer:
    """An object by the SHA-256 of its content (`oid`, in hex) and its size in bytes."""

    oid: str
    size: int


def parse_pointer(content: bytes) -> Pointer | None:
    """What a file points to; None for a file that is no pointer.

    Read as generously as git-lfs does: any version of the first specification, and lines that extensions add.
    """
    if len(content) >= POINTER_BYTES or not _FIRST_LINE.match(content):
        return None
    oid, size = _OID_LINE.search(content), _SIZE_LINE.search(content)
    return Pointer(oid[1].decode(), int(size[1])) if oid and size else None


async def pointers_in(repository: Path, tips: Collection[str], known: Collection[str]) -> set[Pointer]:
    """The pointers that commits reachable from `tips`, and not from `known`, have brought.

    Both are full ids; what the repository lacks is passed over. What it costs grows with what these commits have
    changed. Raises `GitError`.
    """
    blobs = await _small_blobs(repository, await _changed_blobs(repository, tips, known))
    if not blobs:
        return set()
    return {pointer async for content in _contents(repository, blobs) if (pointer := parse_pointer(content))}


async def _changed_blobs(repository: Path, tips: Collection[str], known: Collection[str]) -> set[bytes]:
    """Files that a commit has added or changed; of a merge, those that differ from all parents."""
    command = ["log", "--format=", "--raw", "--root", "-c", "--no-renames", "--no-abbrev"]
    if not tips:  # git would take HEAD
        return set()
    revisions = [*(sha.encode() for sha in tips), *(f"^{sha}".encode() for sha in known)]
    async with start(
        [*command, "--ignore-missing", "--stdin"],
        repository=repository,
        with_stdin=True,
        time_limit=_TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(_lines(revisions))
        return {blob async for line in _by_line(child.checked_output()) if (blob := _regular_file(line))}


def _regular_file(line: bytes) -> bytes | None:
    """The new content's id in a line of raw diff (`:old-mode new-mode old-id new-id status`, with several parents
    `::mode mode new-mode id id new-id status`); None for symbolic links and submodules."""
    fields = line.partition(b"\t")[0].lstrip(b":").split(b" ")
    parents = len(line) - len(line.lstrip(b":"))
    if not parents or not fields[parents].startswith(b"100"):
        return None
    return fields[2 * parents + 1]


async def _small_blobs(repository: Path, blobs: Collection[bytes]) -> list[bytes]:
    if not blobs:
        return []
    small = []
    async with start(
        ["cat-file", "--batch-check=%(objectname) %(objectsize)", "--buffer"],
        repository=repository,
        with_stdin=True,
        time_limit=_TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(_lines(blobs))
        async for line in _by_line(child.checked_output()):
            name, _, size = line.partition(b" ")
            if size.isdigit() and int(size) < POINTER_BYTES:
                small.append(name)
    return small


async def _contents(repository: Path, blobs: Collection[bytes]) -> AsyncIterator[bytes]:
    async with start(
        ["cat-file", "--batch=%(objectsize)", "--buffer"],
        repository=repository,
        with_stdin=True,
        time_limit=_TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(_lines(blobs))
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


async def _lines(texts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """`texts` as lines, some thousand at a time."""
    remaining = iter(texts)
    while lines := list(islice(remaining, 4096)):
        yield b"".join(line + b"\n" for line in lines)


async def _by_line(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    waiting = b""
    async for chunk in chunks:
        *lines, waiting = (waiting + chunk).split(b"\n")
        for line in lines:
            yield line
