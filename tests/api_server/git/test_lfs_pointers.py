"""Finding LFS pointers in what commits have brought."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.lfs_pointers import Pointer, parse_pointer, pointers_in
from tests.support.git_client import Git

_OIDS = st.binary(min_size=32, max_size=32).map(bytes.hex)


def text(pointer: Pointer) -> str:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{pointer.oid}\nsize {pointer.size}\n"


def numbered(number: int) -> Pointer:
    return Pointer(f"{number:064x}", number)


@given(oid=_OIDS, size=st.integers(0, 10**18 - 1), extension=st.booleans())
def test_what_git_lfs_writes_is_read(oid: str, size: int, extension: bool) -> None:
    written = text(Pointer(oid, size))
    if extension:
        written = written.replace("\noid", f"\next-0-caps sha256:{'f' * 64}\noid")
    assert parse_pointer(written.encode()) == Pointer(oid, size)


@given(content=st.binary(max_size=2000))
def test_nothing_else_is_a_pointer(content: bytes) -> None:
    assert parse_pointer(content) is None
    assert parse_pointer(text(numbered(1)).encode() + b"x" * 1024) is None


@pytest.mark.parametrize(
    "content",
    [
        "version https://git-lfs.github.com/spec/v2\noid sha256:" + "0" * 64 + "\nsize 1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha512:" + "0" * 64 + "\nsize 1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 63 + "\nsize 1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize -1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\n",
    ],
)
def test_what_only_looks_like_a_pointer_is_none(content: str) -> None:
    assert parse_pointer(content.encode()) is None


async def test_what_new_commits_have_brought_and_nothing_older(tmp_path: Path) -> None:
    git = Git(tmp_path)
    await git.init()
    first = await git.commit_files({"a": text(numbered(1)), "plain": "x", "large": "y" * 5000})
    second = await git.commit_files({"sub dir/\tb\n": text(numbered(2))})
    await git("checkout", "--quiet", "-b", "side", first)
    side = await git.commit_files({"a": text(numbered(3))})
    await git("checkout", "--quiet", "main")
    await git("merge", "--quiet", "--no-commit", "side")
    merge = await git.commit_files({"c": text(numbered(4))})
    (tmp_path / "c").unlink()
    (tmp_path / "link").symlink_to("a")
    last = await git.commit_files({"d": "d"})
    await git("tag", "--annotate", "--message", "x", "v1")
    tag, repository = await git("rev-parse", "v1"), tmp_path / ".git"
    unknown = "0123456789" * 4

    async def found(tips: list[str], *known: str) -> set[int]:
        return {pointer.size for pointer in await pointers_in(repository, tips, known)}

    assert await found([last]) == await found([tag], unknown) == {1, 2, 3, 4}
    assert await found([last], first) == {2, 3, 4}
    assert await found([last], second) == {3, 4}
    assert await found([last], second, side) == {4}
    assert await found([last], merge) == set()
    assert await found([side, second], first) == {2, 3}
    assert await found([]) == await found([first], first) == await found([unknown]) == set()
    tree, blob = await git("rev-parse", "main^{tree}"), await git("rev-parse", "main:a")
    assert await found([tree, blob]) == set()


async def test_many_pointers_come_through_whatever_the_size_of_what_git_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = Git(tmp_path)
    await git.init()
    last = await git.commit_files({f"f{number}": text(numbered(number)) for number in range(500)})
    monkeypatch.setattr("api_server.git.processes.CHUNK_BYTES", 37)
    assert await pointers_in(tmp_path / ".git", [last], []) == {numbered(number) for number in range(500)}
