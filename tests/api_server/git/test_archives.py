"""Archives and differences: they are complete, right, within limits, and the same each time."""

import bz2
import io
import os
import tarfile
import zipfile
import zlib
from pathlib import Path

import attrs
import pytest

from api_server.git import trees
from api_server.git.diffs import DiffLimits, FileDiff, differences
from api_server.git.errors import GitError, NotFoundError
from api_server.git.new_commits import FileAction
from api_server.git.processes import run
from api_server.git.repositories import Repositories, Repository, open_repository
from api_server.git.trees import Archive
from tests.api_server.git.conftest import ALICE, PROJECT, commit, commit_files, new_commit
from tests.support.git_client import Git
from tests.support.large_trees import Plumbing

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
    """Its header names no file, time or system."""
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


LIMITS = DiffLimits(diff_max_files=1000, diff_max_lines=50_000, diff_max_patch_bytes=4_000)
TEXT = "".join(f"line {number}\n" for number in range(40))


@pytest.fixture
async def work(tmp_path: Path) -> Git:
    git = Git(tmp_path / "work")
    await git.init()
    return git


def repository_of(git: Git) -> Repository:
    return open_repository(git.folder / ".git")


async def all_kinds(git: Git) -> tuple[str, str]:
    """Create two commits between which there is every kind of change."""
    old = await git.commit_files(
        {
            "a b\t\"q": "x\n", "bin": bytes(range(256)), "big": "small\n", "empty": "", "link": "plain\n",
            "moved/exactly": TEXT, "moved/nearly": TEXT.upper(), "mode": "m\n", "nonl": "no newline", "swap": "file\n",
            "ünï": "ü\n",
        }
    )  # fmt: skip
    for gone in ("link", "moved/exactly", "moved/nearly", "swap"):
        (git.folder / gone).unlink()
    (git.folder / "link").symlink_to("bin")
    (git.folder / "mode").chmod(0o755)
    new = await git.commit_files(
        {
            "a b\t\"q": "y\n", "bin": bytes(range(255)), "big": "x" * 5_000, "new\nline": b"\0", "new": "",
            "to/exactly": TEXT, "to/nearly": TEXT.upper() + "more\n", "nonl": "no newline\nnow", "swap/in": "folder\n",
            "ünï": "ö\n",
        }
    )  # fmt: skip
    return old, new


def told(
    old_path: str, new_path: str, text: str, *, old: str = "100644", new: str = "100644", **kinds: bool
) -> FileDiff:
    values = {"added": old == "0", "removed": new == "0", "renamed": old_path != new_path} | kinds
    return FileDiff(
        old_path, new_path, old, new, text=text, **{"too_large": False, "collapsed": False} | values
    )


def expected() -> list[FileDiff]:
    return [
        told("a b\t\"q", "a b\t\"q", "@@ -1 +1 @@\n-x\n+y\n"),
        told("big", "big", "", too_large=True),
        told("bin", "bin", "Binary files a/bin and b/bin differ\n"),
        told("link", "link", "@@ -0,0 +1 @@\n+bin\n\\ No newline at end of file\n", old="0", new="120000"),
        told("link", "link", "@@ -1 +0,0 @@\n-plain\n", new="0"),
        told("mode", "mode", "", new="100755"),
        told("new", "new", "", old="0"),
        told("new\nline", "new\nline", "Binary files /dev/null and \"b/new\\nline\" differ\n", old="0"),
        told("nonl", "nonl", "@@ -1 +1,2 @@\n-no newline\n\\ No newline at end of file\n+no newline\n+now\n"
             "\\ No newline at end of file\n"),
        told("swap", "swap", "@@ -1 +0,0 @@\n-file\n", new="0"),
        told("swap/in", "swap/in", "@@ -0,0 +1 @@\n+folder\n", old="0"),
        told("moved/exactly", "to/exactly", ""),
        told("moved/nearly", "to/nearly", "@@ -38,3 +38,4 @@ LINE 36\n LINE 37\n LINE 38\n LINE 39\n+more\n"),
        told("ünï", "ünï", "@@ -1 +1 @@\n-ü\n+ö\n"),
    ]  # fmt: skip


async def test_every_kind_of_change_is_told(work: Git) -> None:
    old, new = await all_kinds(work)
    files, total = await differences(repository_of(work), old, new, LIMITS, limit=100)
    assert (list(files), total) == (expected(), 14)
    back, _ = await differences(repository_of(work), new, old, LIMITS, limit=100)
    assert sorted(one.new_path for one in back) == sorted(one.old_path for one in files)
    nothing = await differences(repository_of(work), new, new, LIMITS, limit=100)
    assert nothing == ([], 0)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_pages_are_pieces_of_the_whole(work: Git, size: int) -> None:
    old, new = await all_kinds(work)
    pages = [
        await differences(repository_of(work), old, new, LIMITS, skip=skip, limit=size)
        for skip in range(0, 14, size)
    ]
    assert [file for page, _ in pages for file in page] == expected()
    assert {total for _, total in pages} == {14}
    assert await differences(repository_of(work), old, new, LIMITS, skip=14, limit=size) == ([], 14)


async def test_more_files_than_are_listed(work: Git) -> None:
    new = await work.commit_files({f"f{number}": "x\n" for number in range(8)})
    limits = attrs.evolve(LIMITS, diff_max_files=5)
    files, total = await differences(repository_of(work), None, new, limits, limit=100)
    assert ([file.new_path for file in files], total) == (["f0", "f1", "f2", "f3", "f4"], 5)
    page, total = await differences(repository_of(work), None, new, limits, skip=4, limit=2)
    assert ([file.text for file in page], total) == (["@@ -0,0 +1 @@\n+x\n"], 5)


async def test_what_follows_the_last_line_that_is_shown_is_collapsed(work: Git) -> None:
    new = await work.commit_files({"a": "1\n2\n", "b": "1\n", "c": "1\n", "d": "x" * 5_000})
    limits = attrs.evolve(LIMITS, diff_max_lines=4)
    files, _ = await differences(repository_of(work), None, new, limits, limit=100)
    assert [(file.text.count("\n"), file.collapsed, file.too_large) for file in files] == [
        (3, False, False), (2, False, False), (0, True, False), (0, False, True),
    ]  # fmt: skip


async def test_differences_that_are_larger_than_the_files(work: Git) -> None:
    old = await work.commit_files({"a": "1\n" * 1_500, "b": "1\n"})
    new = await work.commit_files({"a": "2\n" * 1_500, "b": "2\n"})
    files, _ = await differences(repository_of(work), old, new, LIMITS, limit=100)
    assert [(file.text, file.too_large) for file in files] == [("", True), ("@@ -1 +1 @@\n-1\n+2\n", False)]


async def test_names_longer_than_a_command_line(work: Git) -> None:
    made = Plumbing(work)
    blob = ("100644", made.blob())
    names = [str(number) + "n" * 60_000 for number in range(3)]
    folder = ("040000", made.tree(dict.fromkeys(names, blob)))
    new = made.commit(made.tree({"d" * 60_000: folder, "e": blob, "f": blob}))
    files, total = await differences(repository_of(work), None, new, LIMITS, limit=4)
    assert [(len(file.new_path), file.collapsed) for file in files] == [(120_002, True)] * 3 + [(1, False)]
    assert total == 5
    whole, _ = await differences(repository_of(work), None, new, LIMITS, limit=5)
    assert [(file.new_path, file.text) for file in whole] == [
        (path, "@@ -0,0 +1 @@\n+x\n") for path in (*(f"{'d' * 60_000}/{name}" for name in names), "e", "f")
    ]
