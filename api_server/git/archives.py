"""Archives of a commit's files: the same bytes each time."""

import asyncio
import bz2
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

import attrs

from api_server.git.at_work import transferring
from api_server.git.errors import NotFoundError
from api_server.git.files import find
from api_server.git.processes import Child, start
from api_server.git.ref_names import FULL_SHA
from api_server.git.references import commit_id
from api_server.git.repositories import open_repository

ArchiveFormat = Literal["zip", "tar", "tar.gz", "tar.bz2"]
TIME_LIMIT_SECONDS = 3600.0
#: Fixed, because bytes would change with it. The level of git's own zip deflate is fixed here as well.
_COMPRESSION_LEVEL = 6
_CONFIGURATION = (("core.compression", str(_COMPRESSION_LEVEL)), ("tar.umask", "0002"))


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


# In process rather than by the gzip and bzip2 programs: no name or time in the header, no program to miss.
_COMPRESSORS: dict[ArchiveFormat, Callable[[], _Compressor]] = {
    "tar.gz": lambda: zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS),
    "tar.bz2": lambda: bz2.BZ2Compressor(9),
}


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
    git_format = "zip" if archive.format == "zip" else "tar"
    paths = ["--", archive.path] if archive.path else []
    arguments = ["archive", f"--format={git_format}", f"--prefix={archive.prefix}/", archive.commit, *paths]
    async with (
        transferring(repository) as inherited,
        start(
            arguments,
            repository=repository,
            configuration=_CONFIGURATION,
            time_limit=time_limit,
            pass_fds=inherited,
        ) as child,
    ):
        compressor = _COMPRESSORS.get(archive.format)
        yield _compressed(child, compressor()) if compressor is not None else child.checked_output()


async def _compressed(child: Child, compressor: _Compressor) -> AsyncIterator[bytes]:
    async for chunk in child.checked_output():
        if packed := await asyncio.to_thread(compressor.compress, chunk):
            yield packed
    yield await asyncio.to_thread(compressor.flush)


def _check(repository: Path, archive: Archive) -> None:
    parts = archive.prefix.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in archive.prefix:
        raise ValueError(f"{archive.prefix!r} is not a folder's name")
    opened = open_repository(repository)
    if not FULL_SHA.fullmatch(archive.commit) or commit_id(opened, archive.commit) is None:
        raise NotFoundError(f"The commit {archive.commit} does not exist.")
    if archive.path and find(opened, archive.commit, archive.path) is None:
        raise NotFoundError(f"The path {archive.path!r} does not exist in {archive.commit}.")
