"""Repositories are packed when necessary; nobody notices it, nothing is lost, and killing it does no harm."""

import asyncio
import gc
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from api_server.git import upkeep
from api_server.git.at_work import alone, at_work, written_mark
from api_server.git.processes import run, start
from api_server.git.ref_moves import keep_commit
from api_server.git.references import branch
from api_server.git.repositories import Repositories
from api_server.git.upkeep import Style, Thresholds, pack
from tests.api_server.git.conftest import PROJECT, Service, commit
from tests.support.folders import files_below
from tests.support.git_client import Git

#: Thresholds above which a repository is packed at once.
AT_ONCE = Thresholds(loose_objects=1, loose_bytes=1, packs=1, loose_refs=1)
NOW = time.time()
DAY = 86_400.0


@attrs.frozen
class Counted:
    loose: int
    packs: int
    loose_refs: int


async def _counted(repository: Path) -> Counted:
    printed = (await run(["count-objects", "-v"], repository=repository)).stdout.decode()
    told = dict(line.split(": ") for line in printed.splitlines())
    return Counted(int(told["count"]), int(told["packs"]), len(files_below(repository / "refs")))


async def _commits(repositories: Repositories, number: int) -> str:
    """Create this many commits on `main`, each of which is kept for a pipeline."""
    head = None
    for n in range(number):
        head = await commit(repositories, "main", head, **{f"file{n}": str(n).encode()})
        await keep_commit(repositories.open(PROJECT), head)
    assert head is not None
    return head


async def _check(repository: Path) -> None:
    """Check that all objects exist, are valid and connected, and that the commit-graph agrees with them."""
    said = await run(["fsck", "--full", "--strict", "--no-dangling"], repository=repository)
    assert said.stdout == b""


def _open_packs(repository: Path) -> list[str]:
    """Return the names of the repository's packs that this process has open."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(entry.readlink())
    return [link.name for link in links if link.parent == repository / "objects/pack"]


async def test_packs_are_closed_with_the_last_reference(repositories: Repositories) -> None:
    """Nobody has to collect garbage for this: packs are replaced, and an open one still takes its place on the disk."""
    head = await commit(repositories, "main", None, file=b"1")
    folder = repositories.path(PROJECT)
    await run(["repack", "-a", "-d", "-q"], repository=folder)
    gc.disable()
    try:
        repository = repositories.open(PROJECT)
        found = branch(repository, "main")
        assert found is not None
        assert (found.commit, "refs/heads/main" in repository.references) == (head, True)
        assert repository[head].type_str == "commit"
        assert _open_packs(folder)
        del repository, found
        assert _open_packs(folder) == []
    finally:
        gc.enable()


async def test_many_small_commits_become_one_pack(repositories: Repositories) -> None:
    head = await _commits(repositories, 12)
    repository = repositories.path(PROJECT)
    assert await _counted(repository) == Counted(loose=36, packs=0, loose_refs=13)
    assert upkeep.maintain(repository, Thresholds(loose_objects=30), NOW).wants_packing
    assert await pack(repository, Style(), NOW)
    assert await _counted(repository) == Counted(loose=0, packs=1, loose_refs=0)
    assert upkeep.maintain(repository, Thresholds(loose_objects=30), NOW).wants_packing is False
    opened = repositories.open(PROJECT)
    assert branch(opened, "main").commit == head
    assert f"refs/keep-around/{head}" in opened.references
    assert len((await run(["rev-list", "main"], repository=repository)).stdout.split()) == 12
    await _check(repository)
    await commit(repositories, "main", head, again=b"it can still be written")


@pytest.mark.parametrize(
    "thresholds",
    [Thresholds(loose_objects=6), Thresholds(loose_bytes=100), Thresholds(loose_refs=3)],
    ids=["loose objects", "their bytes", "loose refs"],
)
async def test_what_a_repository_is_packed_for(repositories: Repositories, thresholds: Thresholds) -> None:
    repository = repositories.path(PROJECT)
    assert not upkeep.wants_packing(repository, thresholds)
    await _commits(repositories, 2)
    assert upkeep.wants_packing(repository, thresholds)
    assert not upkeep.wants_packing(repository, Thresholds())


async def test_many_packs_become_few(repositories: Repositories, service: Service, git: Git) -> None:
    """A large repository gets another pack beside its existing ones."""
    work = git.folder / "work"
    await git("init", "-q", str(work))
    for n in range(3):
        (work / f"{n}.bin").write_bytes(os.urandom(300_000))
        await git("add", ".", cwd=work)
        await git("commit", "-qm", str(n), cwd=work)
        await git("push", "-q", service.url, "main", cwd=work)
    assert (await _counted(service.repository)).packs == 3
    assert upkeep.wants_packing(service.repository, Thresholds(packs=3))
    await pack(service.repository, Style(whole=0, days=10**6), NOW)
    assert await _counted(service.repository) == Counted(loose=0, packs=1, loose_refs=0)
    await _check(service.repository)


async def _brought(repositories: Repositories, number: int) -> None:
    """Push one more commit with a file of 2 KB on `main`, as a pack of its own."""
    previous = "from refs/heads/main^0\n" if number else ""
    text = os.urandom(1000).hex()
    stream = (
        f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + number} +0000\ndata 1\nx\n{previous}"
        f"M 100644 inline file{number}\ndata {len(text)}\n{text}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *("git", "-c", "fastimport.unpackLimit=1", "fast-import", "--quiet"),
        cwd=repositories.path(PROJECT),
        stdin=asyncio.subprocess.PIPE,
    )
    await process.communicate(stream.encode())
    assert process.returncode == 0


async def test_packs_stay_few_and_what_is_written_grows_little_faster_than_what_there_is(
    repositories: Repositories,
) -> None:
    repository, rewritten, most = repositories.path(PROJECT), 0, 0
    folder = repository / "objects/pack"
    for number in range(300):
        await _brought(repositories, number)
        most = max(most, len(list(folder.glob("*.pack"))))
        if upkeep.wants_packing(repository, Thresholds(packs=20)):
            before = {file.name for file in folder.glob("*.pack")}
            assert await pack(repository, Style(), NOW)
            rewritten += sum(f.stat().st_size for f in folder.glob("*.pack") if f.name not in before)
    there = sum(file.stat().st_size for file in folder.glob("*.pack"))
    assert most == 20
    assert rewritten < 4 * there  # it would be eight times as much if it were rewritten as a whole each time
    assert len((await run(["rev-list", "main"], repository=repository)).stdout.split()) == 300
    await _check(repository)


async def test_a_push_stays_a_pack(service: Service, git: Git, clone: Path) -> None:
    assert await _counted(service.repository) == Counted(loose=0, packs=1, loose_refs=1)
    (clone / "large.bin").write_bytes(os.urandom(1_500_000))  # more than git sends in one piece
    await git("add", ".", cwd=clone)
    await git("commit", "-qm", "Large", cwd=clone)
    await git("push", "-q", "origin", "main", cwd=clone)
    assert await _counted(service.repository) == Counted(loose=0, packs=2, loose_refs=1)


async def test_large_ones_get_bitmaps_and_a_commit_graph_which_stays_true(repositories: Repositories) -> None:
    repository = repositories.path(PROJECT)
    objects = repository / "objects"
    await _commits(repositories, 3)
    await pack(repository, Style(large=10), NOW)
    assert list(objects.glob("pack/*.bitmap")) == []
    assert not (objects / "info/commit-graph").exists()
    await pack(repository, Style(large=9), NOW + 8 * DAY)
    assert len(list(objects.glob("pack/*.bitmap"))) == 1
    await run(["commit-graph", "verify"], repository=repository)
    await pack(repository, Style(large=10), NOW + 16 * DAY)
    await _check(repository)


async def test_what_nobody_can_reach_is_kept_for_two_weeks(repositories: Repositories) -> None:
    """A request may be about to use some of it."""
    repository = repositories.path(PROJECT)
    opened = repositories.open(PROJECT)
    young, old = (opened.create_blob(content) for content in (b"young", b"old"))
    await _commits(repositories, 1)
    file = repository / "objects" / str(old)[:2] / str(old)[2:]
    then = NOW - 15 * 86_400
    os.utime(file, (then, then))
    await pack(repository, Style(), NOW)
    again = repositories.open(PROJECT)
    assert (young in again, old in again) == (True, False)
    assert (await _counted(repository)).loose == 0


async def test_readers_and_writers_notice_nothing(
    repositories: Repositories, service: Service, git: Git, clone: Path
) -> None:
    """Some have opened the repository before, and read objects that were packed again since."""
    before = repositories.open(PROJECT)
    head = branch(before, "main").commit
    await asyncio.gather(
        pack(service.repository, Style(large=1), NOW),
        git("clone", "-q", service.url, "while", cwd=git.folder),
        git("push", "-q", "origin", "main:refs/heads/while", cwd=clone),
    )
    opened = repositories.open(PROJECT)
    new = await git.commit_file(clone, "more.txt")
    await git("push", "-q", "origin", "main", cwd=clone)
    await pack(service.repository, Style(large=1), NOW)
    for reader in (before, opened):
        assert [entry.name for entry in reader[head].tree] == ["readme.txt"]
        assert branch(reader, "main").commit == new
        assert [entry.name for entry in reader[new].tree] == ["more.txt", "readme.txt"]
    assert branch(opened, "while").commit == head
    await _check(service.repository)


async def test_no_repository_is_packed_by_two(repositories: Repositories) -> None:
    repository = repositories.path(PROJECT)
    with alone(repository, "packing"):
        assert not await pack(repository, Style(), NOW)
        assert not upkeep.maintain(repository, AT_ONCE, NOW).is_quiet


async def test_a_killed_packing_leaves_nothing_harmful(repositories: Repositories) -> None:
    """Its temporary files and locks belong to nobody, since no process packs."""
    repository = repositories.path(PROJECT)
    await _commits(repositories, 2)
    with alone(repository, "packing") as descriptor:
        assert descriptor is not None
        arguments = ["pack-objects", "--stdin-packs", "objects/pack/.tmp-1-pack"]
        async with start(arguments, repository=repository, with_stdin=True, pass_fds=(descriptor,)) as git:
            git.signal_group(signal.SIGKILL)
    names = (
        "pack/tmp_pack_1", "pack/tmp_idx_1", "pack/.tmp-1-pack-2.pack", "pack/multi-pack-index.lock",
        "info/commit-graph.lock", "info/commit-graphs/tmp_graph_1",
    )  # fmt: skip
    left = [repository / "objects" / name for name in names]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    with alone(repository, "packing"):
        upkeep.maintain(repository, Thresholds(), NOW)
        assert all(file.exists() for file in left)
    upkeep.maintain(repository, Thresholds(), NOW)
    assert [file for file in left if file.exists()] == []
    await pack(repository, Style(large=1), NOW)
    await _check(repository)


async def test_what_was_being_received_is_removed_when_nobody_receives(repositories: Repositories) -> None:
    repository = repositories.path(PROJECT)
    await _commits(repositories, 1)
    arriving = repository / "objects/tmp_objdir-incoming-abc/pack/tmp_pack_1"
    arriving.parent.mkdir(parents=True)
    arriving.write_bytes(b"PACK")
    ours, theirs = repository / "objects/pack/pack-1.keep", repository / "objects/pack/pack-2.keep"
    ours.write_text("receive-pack 4711 on a-machine\n")  # as git writes it
    theirs.write_text("an operator's\n")
    async with at_work(repository, "transferring"):
        found = upkeep.maintain(repository, AT_ONCE, NOW)
        assert (found.is_quiet, found.wants_packing) == (False, True)
        assert arriving.exists()
        assert ours.exists()
        assert written_mark(repository).exists()
    assert upkeep.maintain(repository, AT_ONCE, NOW).is_quiet
    assert not arriving.parent.parent.exists()
    assert (ours.exists(), theirs.exists()) == (False, True)
    assert not written_mark(repository).exists()
    assert list((repositories.root / "unfinished").iterdir()) == []


async def test_what_this_process_writes_itself_goes_when_it_is_old(repositories: Repositories) -> None:
    repository = repositories.path(PROJECT)
    files = [repository / "objects" / name for name in ("tmp_object_git2_1", "tmp_object_git2_2")]
    for file, age in zip(files, (3700, 3500), strict=True):
        file.touch()
        os.utime(file, (NOW - age, NOW - age))
    upkeep.maintain(repository, Thresholds(), NOW)
    assert [file.exists() for file in files] == [False, True]


async def test_the_mark_of_a_deleted_repository_goes(repositories: Repositories) -> None:
    await _commits(repositories, 1)
    repository = repositories.path(PROJECT)
    assert upkeep.written(repositories.root) == [repository]
    await repositories.delete(PROJECT)
    upkeep.maintain(repository, Thresholds(), NOW)
    assert upkeep.written(repositories.root) == []
