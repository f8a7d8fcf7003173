"""Files of stored archives: the same as Python's zipfile finds, and no files that an archive only pretends to have."""

import io
import random
import struct
import time
import warnings
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server import zip_files
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.zip_files import (
    DamagedError,
    Folder,
    Limits,
    Member,
    Names,
    TooMuchError,
    ZipFiles,
    entries,
    with_indices,
)
from tests.support.folders import files_below
from tests.support.zips import many_members

KEY = "projects/1/jobs/2/0123456789abcdef0123456789abcdef"
LIMITS = Limits(members=1000, unpacked_bytes=2**20)
CONTENT = {
    "stored": (b"as it is", zipfile.ZIP_STORED),
    "a folder/deflated": (b"a\n" * 300_000, zipfile.ZIP_DEFLATED),
    "nothing": (b"", zipfile.ZIP_DEFLATED),
    "büro ☃": (b"in UTF-8", zipfile.ZIP_STORED),
}


def packed(**more: tuple[bytes, int]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.mkdir("empty folder")
        for name, (content, method) in (CONTENT | more).items():
            writer.writestr(name, content, method)
    return archive.getvalue()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects("", tmp_path)


async def put(objects: Objects, archive: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield archive

    await objects.delete(with_indices([KEY]))
    await objects.put(KEY, pieces())


async def read(files: ZipFiles, archive: bytes, path: str) -> bytes | None:
    member = await files.find(KEY, path)
    if member is None:
        return None
    pieces = [piece async for piece in files.unpack(KEY, len(archive), member)]
    assert all(len(piece) <= 2**20 for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b""), (b"#!/bin/sh\n" * 9, b"")], ids=["plain", "with bytes before it"]
)
async def test_files_are_those_that_zipfile_finds(objects: Objects, before: bytes, after: bytes) -> None:
    archive = before + packed() + after
    await put(objects, archive)
    files = ZipFiles(objects, LIMITS)
    found = {name: await read(files, archive, name) for name in CONTENT}
    assert found == {name: content for name, (content, _) in CONTENT.items()}
    for missing in ("empty folder", "empty folder/", "a folder", "", "Stored", "../stored"):
        assert await read(files, archive, missing) is None


async def test_an_archive_with_a_comment(objects: Objects) -> None:
    archive = io.BytesIO(packed())
    with zipfile.ZipFile(archive, "a") as writer:
        writer.comment = b"made by hand" * 1000
    await put(objects, archive.getvalue())
    assert await read(ZipFiles(objects, LIMITS), archive.getvalue(), "stored") == b"as it is"


@pytest.mark.filterwarnings("ignore:Duplicate name")
async def test_of_two_files_of_one_name_the_last_counts(objects: Objects) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        for content in ("first", "second", "third"):
            writer.writestr("name", content)
    await put(objects, archive.getvalue())
    assert await read(ZipFiles(objects, LIMITS), archive.getvalue(), "name") == b"third"


async def test_numbers_of_64_bits(objects: Objects) -> None:
    archive = b"".join(many_members(70_000))
    await put(objects, archive)
    files = ZipFiles(objects, Limits(70_000, 70_000))
    assert [await read(files, archive, f"d/{number:08}") for number in (0, 65_536, 69_999, 70_000)] == [
        b"x",
        b"x",
        b"x",
        None,
    ]
    wide = io.BytesIO()
    with zipfile.ZipFile(wide, "w") as writer, writer.open("large", "w", force_zip64=True) as file:
        file.write(b"64 bits")
    await put(objects, wide.getvalue())
    assert await read(files, wide.getvalue(), "large") == b"64 bits"


async def test_what_cannot_be_unpacked_is_not_there(objects: Objects) -> None:
    archive = packed(
        lzma=(b"x" * 100, zipfile.ZIP_LZMA),
        bzip2=(b"x" * 100, zipfile.ZIP_BZIP2),
        encrypted=(b"x", zipfile.ZIP_STORED),
    )
    encrypted = archive[: (at := archive.rindex(b"PK\1\2")) + 8] + b"\1" + archive[at + 9 :]
    await put(objects, encrypted)  # its last file is encrypted
    files = ZipFiles(objects, LIMITS)
    for name in ("lzma", "bzip2", "encrypted"):
        assert await read(files, encrypted, name) is None
    assert await read(files, encrypted, "stored") == b"as it is"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(4, 2**20), "4 files"),
        (Limits(5, 500_000), "500000 bytes of files"),
        (Limits(5, 2**20), "4096 bytes in the name of a file"),
    ],
)
async def test_more_than_the_limits_allow(objects: Objects, limits: Limits, says: str) -> None:
    archive = packed(**({"n" * 4097: (b"", 0)} if "name" in says else {}))
    limits = Limits(limits.members + ("name" in says), limits.unpacked_bytes)
    await put(objects, archive)
    files = ZipFiles(objects, limits)
    with pytest.raises(TooMuchError, match=f"^{says}$"):
        await files.make_index(KEY)
    assert await read(files, archive, "stored") is None  # stored before there were limits


@pytest.mark.parametrize("declared", [99_999, 100_001, 2**31])
async def test_a_size_that_is_not_the_real_one_is_never_passed_off_as_it(
    objects: Objects, declared: int
) -> None:
    archive = packed(last=(b"z" * 100_000, zipfile.ZIP_DEFLATED))
    at = archive.rindex(b"PK\1\2") + 24
    lying = archive[:at] + struct.pack("<L", declared) + archive[at + 4 :]
    await put(objects, lying)
    with pytest.raises(DamagedError):
        await read(ZipFiles(objects, Limits(1000, 2**40)), lying, "last")


async def test_a_broken_file_is_damaged(objects: Objects) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", method) as writer:
            writer.writestr("name", bytes(range(256)) * 20)
        for at in (2, 40):
            broken = bytearray(archive.getvalue())
            broken[at : at + 9] = b"\xff" * 9
            await put(objects, bytes(broken))
            with pytest.raises(DamagedError):
                await read(ZipFiles(objects, LIMITS), bytes(broken), "name")


def broken_archives(count: int) -> Iterator[bytes]:
    """Draw an archive of three files with a few changed bytes, and perhaps without its end."""
    archive = b"".join(many_members(3))
    chance = random.Random(7)
    for _ in range(count):
        broken = bytearray(archive)
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(len(broken))] = chance.choice((0, 1, 255, chance.randrange(256)))
        yield bytes(broken[: chance.choice((None, None, -1, -30))])


def test_whatever_bytes_a_directory_has_nothing_else_is_raised() -> None:
    outcomes = set()
    for broken in broken_archives(2000):
        try:
            outcomes.add(len(list(entries(io.BytesIO(broken), LIMITS))))
        except (DamagedError, TooMuchError) as problem:
            outcomes.add(type(problem))
    assert outcomes == {0, 1, 2, 3, DamagedError, TooMuchError}


async def test_whatever_bytes_an_archive_has_a_file_is_whole_or_damaged_or_not_there(
    objects: Objects,
) -> None:
    files = ZipFiles(objects, LIMITS)
    outcomes = set()
    for broken in broken_archives(40):
        await put(objects, broken)
        try:
            outcomes.add(await read(files, broken, "d/00000001"))
        except DamagedError:
            outcomes.add(b"damaged")
    assert {b"x", None} <= outcomes <= {b"x", None, b"damaged"}


async def test_an_index_is_made_at_the_first_use_and_again_when_its_form_is_another(
    objects: Objects, tmp_path: Path
) -> None:
    archive = packed()
    await put(objects, archive)
    files = ZipFiles(objects, LIMITS)
    index = tmp_path / "objects" / f"{KEY}.index"
    assert not index.exists()
    assert await read(files, archive, "stored") == b"as it is"
    made = index.read_bytes()
    index.write_bytes(b"zip index 0\n".ljust(2000))
    assert await read(files, archive, "stored") == b"as it is"
    assert index.read_bytes() == made
    await objects.delete(with_indices([KEY]))
    assert files_below(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        await files.find(KEY, "stored")


async def test_folders_show_what_stands_directly_in_them(objects: Objects) -> None:
    names = ["b", "a/x", "a/y/z", "a.txt", "a/y/w", "a0", "c/d/e", "ä/ö", "a//q", "b"]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are two `b`
        for number, name in enumerate(names):
            writer.writestr(name, b"x" * number)
    await put(objects, archive.getvalue())
    files = ZipFiles(objects, LIMITS)
    assert await files.folder(KEY, "", 9) == Folder(
        ["a", "c", "ä"], {"a.txt": 3, "a0": 5, "b": 9}, is_cut=False
    )
    assert await files.folder(KEY, "a/", 9) == Folder(["", "y"], {"x": 1}, is_cut=False)
    assert await files.folder(KEY, "a/y/", 9) == Folder([], {"w": 4, "z": 2}, is_cut=False)
    assert await files.folder(KEY, "ä/", 9) == Folder([], {"ö": 7}, is_cut=False)
    assert await files.folder(KEY, "none/", 9) == Folder([], {}, is_cut=False)
    assert await files.folder(KEY, "", 6) == await files.folder(KEY, "", 9)
    assert await files.folder(KEY, "", 2) == Folder(["a"], {"a.txt": 3}, is_cut=True)


@given(st.lists(st.from_regex("[ab/.0]{0,5}[ab.0]", fullmatch=True), max_size=20))
def test_folders_are_those_that_the_names_say(names: list[str]) -> None:
    found = Names()
    found.read((name.encode(), Member(0, 0, number, 0, 0)) for number, name in enumerate(names))
    found.sort()
    for path in {"", *(name[: at + 1] for name in names for at, letter in enumerate(name) if letter == "/")}:
        inside = {name[len(path) :]: at for at, name in enumerate(names) if name.startswith(path)}
        folder = found.folder(path.encode(), 100)
        assert folder.folders == sorted({rest.partition("/")[0] for rest in inside if "/" in rest})
        assert list(folder.files.items()) == sorted(
            (rest, at) for rest, at in inside.items() if "/" not in rest
        )


async def test_an_archive_is_read_once_for_many_looks(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(objects, b"".join(many_members(60_000)))
    files = ZipFiles(objects, Limits(70_000, 2**30))
    first = await files.folder(KEY, "", 1000)
    monkeypatch.setattr(zip_files, "entries", None)
    began = time.process_time()
    for _ in range(10):
        assert await files.folder(KEY, "", 1000) == first
    assert time.process_time() - began < 0.5  # a look took as long before


async def test_of_an_archive_of_very_many_names_the_first_are_shown(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_files, "_NAMES_OF_ONE", 150)
    await put(objects, packed())
    folder = await ZipFiles(objects, LIMITS).folder(KEY, "", 1000)
    assert folder == Folder(["a folder"], {"stored": 8}, is_cut=True)


async def test_names_of_archives_take_bounded_memory(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_files, "_NAMES_KEPT", 800)
    files = ZipFiles(objects, LIMITS)
    for number in range(9):
        monkeypatch.setitem(globals(), "KEY", f"projects/1/jobs/{number}/0123456789abcdef0123456789abcdef")
        await put(objects, packed())
        assert (await files.folder(KEY, "", 10)).folders == ["a folder"]
    assert 0 < files._names.currsize <= 800
