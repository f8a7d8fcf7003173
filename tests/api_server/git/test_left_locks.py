"""Locks that a killed git or server has left are removed when they block others; locks of running processes stay."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from api_server.git import ref_moves
from api_server.git.at_work import alone, at_work, join, open_file
from api_server.git.errors import BranchMovedError, RepositoryLockedError
from api_server.git.processes import start
from api_server.git.received_push import Push, RefUpdate
from api_server.git.references import branch, default_branch
from api_server.git.repositories import Repositories, Repository
from tests.api_server.git.conftest import PROJECT, Service, commit, move_branch
from tests.support.folders import files_below
from tests.support.git_client import Git

Write = Callable[[Repository, str, str], Awaitable[object]]


@pytest.fixture
def repository(repositories: Repositories) -> Repository:
    return repositories.open(PROJECT)


@pytest.fixture
async def shas(repositories: Repositories) -> tuple[str, str]:
    """The commits of `main` before and now; `other` is at the latter too."""
    first = await commit(repositories, "main", None, readme=b"one")
    second = await commit(repositories, "main", first, more=b"two")
    await move_branch(repositories.open(PROJECT), "other", second)
    return first, second


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ref_moves, "LOCK_TIMEOUT_SECONDS", 0.0)


async def _move_main(repository: Repository, first: str, second: str) -> None:
    await move_branch(repository, "main", first, second)
    assert branch(repository, "main").commit == first


async def _delete_other(repository: Repository, _first: str, second: str) -> None:
    await move_branch(repository, "other", None, second)
    assert branch(repository, "other") is None


async def _set_head(repository: Repository, _first: str, _second: str) -> None:
    await ref_moves.set_default_branch(repository, "other")
    assert default_branch(repository) == "other"


async def _set_merge_request(repository: Repository, first: str, _second: str) -> None:
    await ref_moves.set_internal_ref(repository, "refs/merge-requests/1/head", first)
    assert str(repository.references["refs/merge-requests/1/head"].target) == first


async def _keep_commit(repository: Repository, first: str, _second: str) -> None:
    await ref_moves.keep_commit(repository, first)
    assert str(repository.references[f"refs/keep-around/{first}"].target) == first


WRITES: dict[str, tuple[str, Write]] = {
    "a branch": ("refs/heads/main.lock", _move_main),
    "a branch that HEAD names": ("HEAD.lock", _move_main),
    "a packed branch": ("packed-refs.lock", _delete_other),
    "a packed branch, half written": ("packed-refs.new", _delete_other),
    "HEAD": ("HEAD.lock", _set_head),
    "a merge request's head": ("refs/merge-requests/1/head.lock", _set_merge_request),
    "a kept commit": ("refs/keep-around/{first}.lock", _keep_commit),
}


@pytest.fixture(params=WRITES.values(), ids=WRITES)
async def locked(
    request: pytest.FixtureRequest, repository: Repository, shas: tuple[str, str]
) -> tuple[Path, Callable[[], Awaitable[object]]]:
    """A lock, and a function that it blocks."""
    name, write = request.param
    await _run_git(repository, "pack-refs", "--all")
    lock = Path(repository.path, name.format(first=shas[0]))
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return lock, lambda: write(repository, *shas)


async def _run_git(repository: Repository, *arguments: str) -> None:
    async with start(arguments, repository=Path(repository.path)) as git:
        await git.check()


async def test_a_lock_that_nobody_can_hold_is_no_hindrance(
    locked: tuple[Path, Callable[[], Awaitable[object]]],
) -> None:
    lock, write = locked
    await write()
    assert not lock.exists()


@pytest.mark.usefixtures("impatient")
async def test_a_lock_of_somebody_living_is_said_to_be_one(
    repository: Repository, locked: tuple[Path, Callable[[], Awaitable[object]]]
) -> None:
    lock, write = locked
    async with at_work(Path(repository.path), "moving"):
        with pytest.raises(RepositoryLockedError):
            await write()
        assert lock.exists()
    await write()


async def test_a_lock_is_waited_for(repository: Repository, shas: tuple[str, str]) -> None:
    lock = Path(repository.path, "refs/heads/main.lock")
    async with at_work(Path(repository.path), "moving"):
        lock.touch()
        moving = asyncio.create_task(move_branch(repository, "main", shas[0], shas[1]))
        await asyncio.sleep(0)
        lock.unlink()
        await moving


async def test_one_that_has_moved_has_moved_all_the_same(
    repository: Repository, shas: tuple[str, str]
) -> None:
    update = RefUpdate(shas[0], shas[0], "refs/heads/main")
    with pytest.raises(BranchMovedError):
        await ref_moves.apply_push(Path(repository.path), Push((update,)))


async def test_a_git_that_is_killed_leaves_locks_which_are_removed(
    repository: Repository, shas: tuple[str, str]
) -> None:
    """It is killed while it moves refs: the refs are locked, and have not moved."""
    folder = Path(repository.path)
    async with (
        at_work(folder, "moving") as descriptor,
        start(["update-ref", "--stdin"], repository=folder, with_stdin=True, pass_fds=(descriptor,)) as git,
    ):
        git.write(f"start\nupdate refs/heads/main {shas[0]} {shas[1]}\nprepare\n".encode())
        await git.read_until(b"prepare: ok\n")
        git.signal_group(signal.SIGKILL)
    left = {str(file.relative_to(folder)) for file in files_below(folder) if file.suffix == ".lock"}
    assert left == {"HEAD.lock", "refs/heads/main.lock"}
    await _move_main(repository, *shas)
    assert [file for file in files_below(folder) if file.suffix == ".lock"] == []


async def test_a_child_is_at_work_for_longer_than_who_started_it(repository: Repository) -> None:
    folder = Path(repository.path)
    descriptor = open_file(folder, "moving")
    child = await asyncio.create_subprocess_exec("sleep", "60", pass_fds=(descriptor,))
    await join(descriptor)  # the child was started before, as for a push
    os.close(descriptor)
    with alone(folder, "moving") as held:
        assert held is None
    child.kill()
    await child.wait()
    with alone(folder, "moving") as held:
        assert held is not None


LOCKS_OF_A_PUSH = ["refs/heads/main.lock", "HEAD.lock", "packed-refs.lock", "packed-refs.new"]


@pytest.mark.parametrize("name", LOCKS_OF_A_PUSH)
async def test_a_push_is_not_stopped_by_what_is_left(
    service: Service, git: Git, clone: Path, name: str
) -> None:
    await git("push", "-q", "origin", "HEAD:refs/heads/gone", cwd=clone)
    await git("--git-dir", str(service.repository), "pack-refs", "--all")
    head = await git.commit_file(clone, "more.txt")
    (service.repository / name).touch()
    await git("push", "-q", "origin", "main", ":gone", cwd=clone)
    assert await git("ls-remote", service.url, cwd=clone) == f"{head}\tHEAD\n{head}\trefs/heads/main"
    assert not (service.repository / name).exists()


@pytest.mark.usefixtures("impatient")
async def test_a_push_hears_of_a_lock_in_gits_own_words(
    service: Service, git: Git, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = service.repository / "refs/heads/main.lock"
    lock.touch()
    head = await git("rev-parse", "HEAD", cwd=clone)
    await git.commit_file(clone, "more.txt")
    async with at_work(service.repository, "moving"):
        said = await git("push", "origin", "main", cwd=clone, fails=True)
    assert "cannot lock ref 'refs/heads/main'" in said
    assert await git("ls-remote", "--heads", service.url) == f"{head}\trefs/heads/main"
    assert lock.exists()


@pytest.fixture(autouse=True)
def no_descriptor_is_left(tmp_path: Path) -> Iterator[None]:
    """Check only this test's repository, because servers of other tests work meanwhile."""
    yield
    assert {file for file in _open_files() if file.startswith(f"{tmp_path}/") and "at-work" in file} == set()


def _open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except OSError:
            continue
    return found
