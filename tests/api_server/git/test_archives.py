"""Archives: complete, right, and the same each time."""

import bz2
import io
import os
import tarfile
import zipfile
import zlib

import pytest

from api_server.git import trees
from api_server.git.errors import GitError, NotFoundError
from api_server.git.new_commits import FileAction
from api_server.git.processes import run
from api_server.git.repositories import Repositories
from api_server.git.trees import Archive
from tests.api_server.git.conftest import ALICE, PROJECT, commit, commit_files, new_commit

FORMATS = ["zip", "tar", "tar.gz", "tar.bz2"]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n"
FILES = {
    "readme.txt": b"hello\n",
    "src/-main.py": b"print()\n" * 10_000,
    "src/*": b"a star",
    ".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n",
    "large.bin": POINTER,
}


@pytest.fixture
async def sha(repositories: Repositories) -> str:
    return await commit(repositories, "main", None, **FILES)


async def packed(repositories: Repositories, archive: Archive) -> bytes:
    async with trees.stream_archive(repositories.path(PROJECT), archive) as chunks:
        return b"".join([chunk async for chunk in chunks])


def members(data: bytes, format_: str) -> dict[str, bytes]:
    if format_ == "zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(fileobj=io.BytesIO(data), mode=f"r:{format_.removeprefix('tar').strip('.')}") as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}  # type: ignore[union-attr]


@pytest.mark.parametrize("format_", FORMATS)
async def test_an_archive_has_all_files_below_its_prefix(
    repositories: Repositories, sha: str, format_: trees.ArchiveFormat
) -> None:
    data = await packed(repositories, Archive(sha, format_, "app-main"))
    assert members(data, format_) == {f"app-main/{name}": content for name, content in FILES.items()}


@pytest.mark.parametrize("format_", FORMATS)
async def test_an_archive_has_the_same_bytes_in_each_time_zone_and_repository(
    repositories: Repositories, sha: str, format_: trees.ArchiveFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(sha, format_, "app-main")
    first = await packed(repositories, archive)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    await repositories.delete(PROJECT)
    await repositories.create(PROJECT)
    assert await commit(repositories, "main", None, **FILES) == sha
    await run(["gc", "--quiet"], repository=repositories.path(PROJECT))
    assert await packed(repositories, archive) == first


async def test_a_compressed_archive_is_the_plain_one_compressed(repositories: Repositories, sha: str) -> None:
    """With a header that names no file, time or system."""
    plain, gzipped, bzipped = [
        await packed(repositories, Archive(sha, format_, "p")) for format_ in ("tar", "tar.gz", "tar.bz2")
    ]
    compressor = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    assert gzipped == compressor.compress(plain) + compressor.flush()
    assert bzipped == bz2.compress(plain)


async def test_packing_gives_way_to_the_server(
    repositories: Repositories, sha: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_CONFIGURATION", (("tar.tar.gz.command", "cat >/dev/null; nice"),))
    told = await packed(repositories, Archive(sha, "tar.gz", "p"))
    assert int(told) == os.getpriority(os.PRIO_PROCESS, 0) + 10


@pytest.mark.parametrize("path", ["src", "src/-main.py", "src/*"])
async def test_a_path_limits_the_archive(repositories: Repositories, sha: str, path: str) -> None:
    found = members(await packed(repositories, Archive(sha, "tar", "p", path)), "tar")
    assert set(found) == {f"p/{name}" for name in FILES if f"{name}/".startswith(f"{path}/")}


@pytest.mark.parametrize(
    "archive",
    [
        Archive("1" * 40, "zip", "p"),
        Archive("--output=x", "zip", "p"),
        Archive("main", "zip", "p"),
        Archive("", "tar.gz", "p", "nothing"),
        Archive("", "tar.gz", "p", ":(top)src"),
    ],
)
async def test_what_does_not_exist_is_refused_before_the_first_byte(
    repositories: Repositories, sha: str, archive: Archive
) -> None:
    wanted = Archive(archive.commit or sha, archive.format, archive.prefix, archive.path)
    with pytest.raises(NotFoundError):
        await packed(repositories, wanted)


@pytest.mark.parametrize("prefix", ["", "/", "a/../b", "..", "a\0b", "/etc"])
async def test_a_prefix_stays_below_the_folder_where_it_is_unpacked(
    repositories: Repositories, sha: str, prefix: str
) -> None:
    with pytest.raises(ValueError, match="folder"):
        await packed(repositories, Archive(sha, "tar", prefix))


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_failure_in_the_middle_raises(
    repositories: Repositories, format_: trees.ArchiveFormat
) -> None:
    repository = repositories.open(PROJECT)
    actions = [FileAction("create", f"{n}", bytes([n])) for n in range(9)]
    sha = await commit_files(repository, "main", actions, new_commit(), None)
    lost = str(repository.create_blob(bytes([8])))
    (repositories.path(PROJECT) / "objects" / lost[:2] / lost[2:]).unlink()
    with pytest.raises(GitError):
        await packed(repositories, Archive(sha, format_, "p"))


async def test_times_in_an_archive_are_the_commits(repositories: Repositories, sha: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(await packed(repositories, Archive(sha, "tar", "p")))) as tar:
        assert {member.mtime for member in tar.getmembers()} == {ALICE.time}
