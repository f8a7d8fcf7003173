"""A killed git blocks nothing: neither requests, nor the start, nor what is left of other pushes."""

import contextlib
import datetime
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from api_server.code import housekeeping, refs
from api_server.git import ref_moves
from api_server.git.at_work import at_work, written_mark
from api_server.git.processes import run
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_names import KEEP_AROUND
from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from tests.api_server.code.test_moved_refs import WRITES, moved_project
from tests.support.ci import eventually
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url

BUSY = (503, {"message": "503 Service Unavailable"}, "5")


def _repository(forge: Forge, project_id: int) -> Path:
    return forge.repository_path(project_id)


@contextlib.asynccontextmanager
async def _held(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Somebody moves refs for as long as we watch, and is not waited for."""
    with monkeypatch.context() as impatient:
        impatient.setattr(ref_moves, "LOCK_PATIENCE_SECONDS", 0.0)
        async with at_work(repository, "moving"):
            yield


@contextlib.contextmanager
def _locked(repository: Path, name: str) -> Iterator[Path]:
    lock = repository / f"{name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    yield lock


@pytest.fixture
async def owner(forge: Forge) -> Person:
    return await forge.user("owner")


@pytest.fixture
async def made(forge: Forge, owner: Person) -> dict[str, Any]:
    """A project with a merge request and a tag."""
    return await moved_project(forge, owner)


@pytest.mark.parametrize("what", WRITES)
async def test_what_a_killed_git_has_locked_can_be_written(
    forge: Forge, owner: Person, made: dict[str, Any], what: str
) -> None:
    write, moves = WRITES[what]
    repository = _repository(forge, made["id"])
    locks = [repository / f"{ref}.lock" for _, ref in moves] + [repository / "HEAD.lock"]
    for lock in locks:
        lock.touch()
    answer = await write(owner, made)
    assert answer.status in (200, 201, 204), answer
    assert [lock for lock in locks if lock.exists()] == []


@pytest.mark.parametrize("what", WRITES)
async def test_what_somebody_living_has_locked_is_503(
    forge: Forge, owner: Person, made: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, moves = WRITES[what]
    repository = _repository(forge, made["id"])
    with _locked(repository, moves[0][1]) as lock:
        async with _held(repository, monkeypatch):
            answer = await write(owner, made)
        assert (answer.status, answer.body, answer.headers["Retry-After"]) == BUSY
        assert lock.exists()
    waiting = await forge.database.value(
        "SELECT count(*) FROM pushes WHERE project_id = %(id)s", id=made["id"]
    )
    assert waiting == 0
    assert (await write(owner, made)).status in (200, 201, 204)


async def test_a_pipeline_is_made_once_its_commit_can_be_kept(
    forge: Forge, owner: Person, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {
        "branch": "ci",
        "start_branch": "main",
        "commit_message": "Add [ci skip]",
        "content": "a: {script: b}",
    }
    url = f"/projects/{made['id']}"
    assert (await owner.api.post(f"{url}/repository/files/%2Egitlab-ci.yml", body)).status == 201
    head = (await owner.api.get(f"{url}/repository/branches/ci")).body["commit"]["id"]
    repository = _repository(forge, made["id"])

    async def push_is_settled() -> bool:
        return bool((await owner.api.get(f"{url}/pipelines?ref=ci")).body)

    await eventually(push_is_settled)
    await run(["update-ref", "-d", KEEP_AROUND + head], repository=repository)
    with _locked(repository, KEEP_AROUND + head):
        async with _held(repository, monkeypatch):
            answer = await owner.api.post(f"{url}/pipeline", {"ref": "ci"})
        assert (answer.status, answer.body, answer.headers["Retry-After"]) == BUSY
        answer = await owner.api.post(f"{url}/pipeline", {"ref": "ci"})
    assert answer.status == 201, answer
    assert (repository / KEEP_AROUND / head).read_text().strip() == head


async def test_the_default_branch_moves_in_spite_of_a_lock(
    forge: Forge, owner: Person, made: dict[str, Any]
) -> None:
    repository = _repository(forge, made["id"])
    with _locked(repository, "HEAD") as lock:
        answer = await owner.api.put(f"/projects/{made['id']}", {"default_branch": "feature"})
    assert (answer.status, answer.body["default_branch"]) == (200, "feature")
    assert ((repository / "HEAD").read_text(), lock.exists()) == ("ref: refs/heads/feature\n", False)


async def test_a_push_with_a_living_lock_is_told_by_git_and_goes_through_later(
    forge: Forge, owner: Person, made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, git = _repository(forge, made["id"]), Git(tmp_path / "work")
    url = git_url(forge, made["path_with_namespace"], owner)
    git.folder.mkdir()
    await git("clone", "--quiet", url, ".")
    await git.commit_files({"pushed.txt": "x"}, "Push")
    with _locked(repository, "refs/heads/main"):
        async with _held(repository, monkeypatch):
            said = await git("push", "origin", "main", fails=True)
        assert "cannot lock ref 'refs/heads/main'" in said
        assert "has moved" not in said
        await git("push", "--quiet", "origin", "main")


async def test_what_was_left_is_gone_when_a_server_has_started(new_forge: Any, new_database: Any) -> None:
    url = new_database()
    async with new_forge(database_url=url) as forge:
        project = await forge.project(initialize_with_readme=True)
        repository = _repository(forge, project["id"])
        assert written_mark(repository).exists()
    left = [
        repository / name for name in ("refs/heads/main.lock", "HEAD.lock", "objects/tmp_objdir-incoming-1/1")
    ]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    async with new_forge(database_url=url) as forge:
        assert [file for file in left if file.exists()] == []
        assert not written_mark(repository).exists()
        project = await forge.project(initialize_with_readme=True)
        mine, other = _repository(forge, project["id"]), repository
        with _locked(mine, "refs/heads/main") as held, _locked(other, "refs/heads/main") as seen_by_nobody:
            async with at_work(mine, "moving"):
                await housekeeping.look_after(forge.server.app[SERVICES])
                assert (held.exists(), written_mark(mine).exists()) == (True, True)
            await housekeeping.look_after(forge.server.app[SERVICES])
            assert (held.exists(), written_mark(mine).exists()) == (False, False)
            assert seen_by_nobody.exists()  # nobody has written there since: no task walks all repositories


async def test_a_missing_repository_stops_no_other_push_from_being_settled(
    forge: Forge, owner: Person, made: dict[str, Any]
) -> None:
    app, head = forge.server.app, "1" * 40
    broken = await forge.project(owner, initialize_with_readme=True)
    await app[SERVICES][REPOSITORIES].delete(broken["id"])
    lost = Push((RefUpdate(head, "0" * 40, "refs/heads/main"),))
    fine = Push((RefUpdate(head, "0" * 40, "refs/heads/never-was"),))
    await refs.propose(app[SERVICES], broken["id"], owner.id, lost)
    await refs.propose(app[SERVICES], made["id"], owner.id, fine)
    now = datetime.datetime.now(datetime.UTC)
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            await refs.settle_leftovers(app[SERVICES], now)
    told = [line for line in lines if line["event"] == "a push cannot be settled"]
    assert [line["project_id"] for line in told] == [broken["id"]]
    assert await _unsettled(forge, lost, fine) == {lost.id}
    await refs.settle_leftovers(app[SERVICES], now + datetime.timedelta(hours=8))
    assert await _unsettled(forge, lost, fine) == set()


async def _unsettled(forge: Forge, *pushes: Push) -> set[str]:
    rows = await forge.database.rows(
        "SELECT id FROM pushes WHERE id = ANY(%(ids)s)", ids=[push.id for push in pushes]
    )
    return {row.id for row in rows}


async def test_orphans_go_after_an_hour(new_forge: Any) -> None:
    async with new_forge() as forge:
        app = forge.server.app
        project = await forge.project(initialize_with_readme=True)
        number = "SELECT nextval(pg_get_serial_sequence('projects', 'id'))"
        orphan, young = [
            await forge.database.value(number) for _ in range(2)
        ]  # as of transactions that never ended
        later = young + 1000  # of a database that was newer than this one, before it was restored
        for project_id in (orphan, young, later):
            await app[SERVICES][REPOSITORIES].create(project_id)
        unfinished = app[SERVICES][REPOSITORIES].root / "unfinished"
        for name in ("old", "new"):
            (unfinished / name).mkdir()
        for folder in (
            _repository(forge, project["id"]),
            _repository(forge, orphan),
            _repository(forge, later),
        ):
            _age(folder)
        _age(unfinished / "old")
        await housekeeping.remove_orphans(app[SERVICES])
        there = {
            number: app[SERVICES][REPOSITORIES].exists(number)
            for number in (project["id"], orphan, young, later)
        }
        assert there == {project["id"]: True, orphan: False, young: True, later: True}
        assert {folder.name for folder in unfinished.iterdir()} == {"new"}


def _age(folder: Path) -> None:
    """By more than an hour."""
    then = time.time() - 3700
    for place in (*folder.rglob("*"), folder):
        os.utime(place, (then, then))
