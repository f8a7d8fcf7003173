"""The room that built archives take: never more than they may, and never at the cost of one that is needed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api_server.git.errors import NotFoundError
from api_server.static_objects.archive_builds import (
    ArchiveFiles,
    Bounds,
    GrowingFile,
    NoRoomError,
    TooLargeError,
)
from tests.support.folders import files_below

MIB = 2**20


def write(file: Path, size: int, age: float) -> Path:
    """A file of so many bytes that was last asked for so many seconds ago."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes(size))
    when = file.stat().st_mtime - age
    os.utime(file, (when, when))
    return file


def archives(root: Path) -> dict[str, int]:
    """Names and sizes of all there are, in whatever state."""
    return {
        "." if file.name.startswith(".") else file.name: file.stat().st_size
        for file in files_below(root)
        if file.parent != root
    }


@contextmanager
def growing(files: ArchiveFiles, name: str = "new") -> Iterator[GrowingFile]:
    file = GrowingFile(files, files.path(7, name))
    try:
        file.begin()
        yield file
    finally:
        file.close()


def test_what_was_not_asked_for_the_longest_makes_room_at_once(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(one=2 * MIB, all=3 * MIB))
    for number, age in enumerate((300, 100, 200)):
        write(tmp_path / "1" / f"{number}", MIB, age)
    with growing(files) as file:
        file.write(b"x")
        assert archives(tmp_path) == {"1": MIB, "2": MIB, ".": MIB}
        file.write(bytes(MIB))
        assert archives(tmp_path) == {"1": MIB, ".": 2 * MIB}
        file.finish()
        assert archives(tmp_path) == {"1": MIB, "new": MIB + 1}
    opened = files.open(tmp_path / "7" / "new")
    assert opened is not None
    with opened:
        assert opened.read() == b"x" + bytes(MIB)


def test_at_no_moment_do_they_take_more_than_they_may(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(one=4 * MIB, all=5 * MIB))
    write(tmp_path / "1" / "old", MIB, 1)
    totals, refused = [], []
    with growing(files, "one") as one, growing(files, "two") as two:
        for _ in range(48):
            for file in (one, two):
                try:
                    file.write(bytes(MIB // 16))
                except NoRoomError:
                    refused.append(file)
                totals.append(sum(path.stat().st_size for path in files_below(tmp_path)))
        assert max(totals) == 5 * MIB
        assert refused
        one.close()
        two.write(bytes(MIB // 16))  # which the other has left
    assert archives(tmp_path) == {}


def test_what_is_sent_or_built_is_not_removed(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(one=MIB, all=2 * MIB))
    sent = files.open(write(tmp_path / "1" / "sent", MIB, 300))
    assert sent is not None
    with growing(files) as file:
        file.write(bytes(MIB))
        files.shrink()
        with growing(files, "another") as another, pytest.raises(NoRoomError):
            another.write(b"x")
        assert archives(tmp_path) == {"sent": MIB, ".": MIB}
        os.utime(tmp_path / "1" / "sent", (0, 0))  # it has been asked for just now
        sent.close()
        with growing(files, "another") as another:
            another.write(b"x")
            assert "sent" not in archives(tmp_path)


def test_an_archive_has_a_limit_of_its_own(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(one=1000, all=MIB))
    with growing(files) as file:
        file.write(bytes(1000))
        with pytest.raises(TooLargeError, match="The archive has more than 1000 bytes"):
            file.write(b"x")
        assert archives(tmp_path) == {".": 1000}
    assert archives(tmp_path) == {}


def test_the_disk_keeps_its_reserve(tmp_path: Path) -> None:
    old = write(tmp_path / "1" / "old", 1000, 1)
    with (
        growing(ArchiveFiles(tmp_path, Bounds(one=1000, all=MIB, disk_reserve=2**60))) as file,
        pytest.raises(NoRoomError),
    ):
        file.write(b"x")
    assert not old.exists()  # it was of no use


def test_many_small_ones_make_room_too(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(one=1000, all=MIB, files=3))
    for number in range(5):
        write(tmp_path / "1" / f"{number}", 1, 100 - number)
    files.shrink()
    assert set(archives(tmp_path)) == {"2", "3", "4"}


def test_what_a_crash_has_left_unfinished_goes_and_what_is_being_built_stays(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path / "archives", Bounds(one=1000, all=MIB))
    files.shrink()  # nothing is there yet
    with growing(files) as file:
        file.write(b"x")
        left = write(tmp_path / "archives" / "7" / ".left.zip.0123", 1, 0)
        files.shrink()
        assert not left.exists()
        file.finish()
    assert archives(tmp_path / "archives") == {"new": 1}


def test_what_vanishes_during_the_look_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "1" / "there", 10, 1)
    (tmp_path / "1" / "vanished").symlink_to("nothing")
    ArchiveFiles(tmp_path, Bounds(one=10, all=10)).shrink()
    assert (tmp_path / "1" / "there").exists()


def test_a_removed_project_takes_its_archives_with_it(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(one=MIB, all=MIB))
    with growing(files) as file:
        file.write(b"x")
        files.remove_project(7)
        files.remove_project(7)
        with pytest.raises(NotFoundError):
            file.finish()
    assert archives(tmp_path) == {}
