"""Archives of a commit's files: the same bytes each time."""

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs

from api_server.git.at_work import transferring
from api_server.git.errors import NotFoundError
from api_server.git.files import find
from api_server.git.processes import start
from api_server.git.ref_names import FULL_SHA
from api_server.git.references import commit_id
from api_server.git.repositories import open_repository

ArchiveFormat = Literal["zip", "tar", "tar.gz", "tar.bz2"]
TIME_LIMIT_SECONDS = 3600.0
#: Fixed, because bytes would change with it. The level of git's own zip deflate is fixed here as well.
_COMPRESSION_LEVEL = 6
#: Filters of git's tar. Python's rather than the gzip and bzip2 programs: no name or time in the header, no program to
#: miss. In a child, because threads that compress take the processors from the event loop.
_FILTER = """
import bz2, sys, zlib
packer = {packer}
while chunk := sys.stdin.buffer.read(131072):
    sys.stdout.buffer.write(packer.compress(chunk))
sys.stdout.buffer.write(packer.flush())
"""
_PACKERS: dict[ArchiveFormat, str] = {
    "tar.gz": f"zlib.compressobj({_COMPRESSION_LEVEL}, zlib.DEFLATED, 16 + zlib.MAX_WBITS)",
    "tar.bz2": "bz2.BZ2Compressor(9)",
}
_CONFIGURATION = (
    ("core.compression", str(_COMPRESSION_LEVEL)),
    ("tar.umask", "0002"),
    *(
        (f"tar.{name}.command", shlex.join([sys.executable, "-I", "-S", "-c", _FILTER.format(packer=packer)]))
        for name, packer in _PACKERS.items()
    ),
)


@attrs.frozen
class Archive:
    """What to pack: `commit` is a full SHA, `prefix` the top folder, `path` a file or folder or "" for all.

    Equal archives have equal bytes, as long as git and the compression libraries stay the same and no file
    asks for the names of refs by the attribute export-subst.
    """

    commit: str
    format: ArchiveFormat
    prefix: str
    path: str = ""


@asynccontextmanager
async def stream(
    repository: Path, archive: Archive, *, time_limit: float = TIME_LIMIT_SECONDS
) -> AsyncIterator[AsyncIterator[bytes]]:
    """The archive's bytes: `async with stream(...) as chunks: async for chunk in chunks`.

    Raises `NotFoundError` before the first byte when the commit or path does not exist, and `GitError` in the
    iteration when git fails later: the bytes never end cleanly short. LFS pointers are packed as they are.
    """
    _check(repository, archive)
    paths = ["--", archive.path] if archive.path else []
    arguments = [
        "archive",
        f"--format={archive.format}",
        f"--prefix={archive.prefix}/",
        archive.commit,
        *paths,
    ]
    async with (
        transferring(repository) as inherited,
        start(
            arguments,
            repository=repository,
            configuration=_CONFIGURATION,
            time_limit=time_limit,
            pass_fds=inherited,
            background=True,
        ) as child,
    ):
        yield child.checked_output()


def _check(repository: Path, archive: Archive) -> None:
    parts = archive.prefix.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in archive.prefix:
        raise ValueError(f"{archive.prefix!r} is not a folder's name")
    opened = open_repository(repository)
    if not FULL_SHA.fullmatch(archive.commit) or commit_id(opened, archive.commit) is None:
        raise NotFoundError(f"The commit {archive.commit} does not exist.")
    if archive.path and find(opened, archive.commit, archive.path) is None:
        raise NotFoundError(f"The path {archive.path!r} does not exist in {archive.commit}.")
