"""Moved refs have their consequences once, a killed git blocks nothing, and idle repositories are packed."""

import asyncio
import contextlib
import datetime
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from api_server.code import housekeeping, refs
from api_server.git import ref_moves
from api_server.git.at_work import at_work, written_mark
from api_server.git.processes import run
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_names import KEEP_AROUND
from api_server.git.repositories import REPOSITORIES
from api_server.git.upkeep import Style
from api_server.services import Services
from api_server.web.context import SERVICES
from tests.support.clock import forge_with_clock
from tests.support.folders import files_below
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request
from tests.support.server_process import server_process
from tests.support.waiting import until

Json = dict[str, Any]
ZEROS = "0" * 40


_NEW = {"commit_message": "Add", "content": "new"}
#: A request below the project, its body, and the refs that it moves.
WRITES: dict[str, tuple[str, Json | None, list[tuple[str, str]]]] = {
    "commit": ("POST repository/files/new.txt", _NEW | {"branch": "main"}, [("update", "refs/heads/main")]),
    "commit to a new branch": (
        "POST repository/files/new.txt",
        _NEW | {"branch": "new", "start_branch": "main"},
        [("create", "refs/heads/new")],
    ),
    "create a branch": (
        "POST repository/branches", {"branch": "new", "ref": "main"}, [("create", "refs/heads/new")]
    ),
    "delete a branch": ("DELETE repository/branches/feature", None, [("delete", "refs/heads/feature")]),
    "create a tag": (
        "POST repository/tags", {"tag_name": "v2", "ref": "main", "message": "Two"}, [("create", "refs/tags/v2")]
    ),
    "delete a tag": ("DELETE repository/tags/v1", None, [("delete", "refs/tags/v1")]),
    "merge": (
        "PUT merge_requests/1/merge",
        {"should_remove_source_branch": True},
        [("update", "refs/heads/main"), ("delete", "refs/heads/feature")],
    ),
}  # fmt: skip


async def _write(what: str, owner: Person, project: Json) -> Answer:
    request, body, _ = WRITES[what]
    method, path = request.split()
    return await owner.api.request(method, f"/projects/{project['id']}/{path}", json=body)


@pytest.fixture
def moved(forge: Forge) -> Any:
    """The updates of which listeners were notified, by project."""
    told: dict[int, list[RefUpdate]] = {}

    async def listen(_transaction: Any, project: Any, _user_id: Any, updates: Sequence[RefUpdate]) -> None:
        told.setdefault(project.id, []).extend(updates)

    forge.server.app[SERVICES][refs.REF_LISTENERS].append(listen)
    yield told
    forge.server.app[SERVICES][refs.REF_LISTENERS].remove(listen)


@pytest.mark.parametrize("what", WRITES)
async def test_what_git_has_done_before_a_failure_is_settled_later_and_once(
    forge: Forge, what: str, moved: dict[int, list[RefUpdate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = WRITES[what][-1]
    owner = await forge.user("owner")
    project = await moved_project(forge, owner)
    moved.clear()

    async def fail(*_: Any, **_options: Any) -> None:
        raise RuntimeError("the database is gone")

    with monkeypatch.context() as broken:
        broken.setattr(refs, "settle", fail)
        assert (await _write(what, owner, project)).status == 500
    assert moved.get(project["id"]) is None
    for _ in range(2):
        await _settle(forge)
    updates = moved[project["id"]]
    assert [(update.kind, update.ref) for update in updates] == expected
    repository = forge.repository(project["id"])
    stands = {u.ref: str(repository.lookup_reference(u.ref).target) for u in updates if u.new != ZEROS}
    assert stands == {u.ref: u.new for u in updates if u.new != ZEROS}


@pytest.mark.parametrize("what", WRITES)
async def test_what_git_refuses_leaves_nothing_behind(
    forge: Forge, what: str, moved: dict[int, list[RefUpdate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await forge.user("owner")
    project = await moved_project(forge, owner)
    moved.clear()
    propose = refs.propose

    async def propose_too_late(services: Services, project_id: int, user_id: int | None, push: Any) -> None:
        await propose(services, project_id, user_id, push)
        await _let_others_move(forge, project, push.updates)

    monkeypatch.setattr(refs, "propose", propose_too_late)
    assert (await _write(what, owner, project)).status in (400, 409)
    monkeypatch.undo()
    assert (
        await forge.database.value("SELECT count(*) FROM pushes WHERE project_id = %(id)s", id=project["id"])
        == 0
    )
    assert project["id"] not in moved


async def moved_project(forge: Forge, owner: Person) -> Json:
    """Create a project with a merge request and a tag `v1`."""
    project = await new_project(forge, owner)
    await open_merge_request(owner, project)
    await owner.api.post(
        f"/projects/{project['id']}/repository/tags", {"tag_name": "v1", "ref": "main"}, expect=201
    )
    return project


async def _let_others_move(forge: Forge, project: Json, updates: Sequence[RefUpdate]) -> None:
    """Move the first ref somewhere else, without notifying anybody."""
    repository = forge.repository(project["id"])
    parent = repository[repository.head.target]
    other = repository.create_commit(None, parent.author, parent.author, "other", parent.tree_id, [parent.id])
    repository.references.create(updates[0].ref, other, force=True)


async def _settle(forge: Forge) -> None:
    await refs.settle_leftovers(forge.server.app[SERVICES], datetime.datetime.now(datetime.UTC))


async def test_half_a_push_is_settled_as_far_as_it_has_come(
    forge: Forge, moved: dict[int, list[RefUpdate]]
) -> None:
    """A push goes on while another server, or the task of this one, looks for leftovers."""
    owner = await forge.user("owner")
    project = await new_project(forge, owner)
    head = await head_of(owner.api, project, "main")
    moved.clear()
    first, second = (RefUpdate(ZEROS, head, f"refs/heads/{name}") for name in ("a", "b"))
    push = Push((first, second))
    app = forge.server.app
    await refs.propose(app[SERVICES], project["id"], owner.id, push)
    repository = app[SERVICES][REPOSITORIES].path(project["id"])
    for update, so_far in ((first, [first]), (second, [first, second])):
        await ref_moves.apply_push(repository, Push((update,), id=push.id))
        await _settle(forge)
        assert moved[project["id"]] == so_far
    await refs.settle_push(app[SERVICES], project["id"], push)
    assert moved[project["id"]] == [first, second]


#: A git that, when armed, kills the process that has started it as soon as it has moved refs.
DEADLY_GIT = """#!/bin/sh
PATH={path}
git "$@"
status=$?
case " $* " in *" update-ref "*)
    if [ -e {armed} ]; then rm {armed}; kill -9 $PPID; fi ;;
esac
exit $status
"""


@pytest.mark.parametrize("what", ["commit", "merge"])
async def test_a_server_killed_between_git_and_the_database_goes_on_where_it_was(
    new_database: Any, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed, programs = tmp_path / "armed", tmp_path / "programs"
    programs.mkdir()
    (programs / "git").write_text(DEADLY_GIT.format(path=os.environ["PATH"], armed=armed))
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    async with server_process(new_database(), tmp_path / "data") as server:
        root = Person(1, "root", "", server.root)
        project = (await server.root.post("/projects", {"name": "app"})).body
        before = await commit(server.root, project, "main", ".gitlab-ci.yml", content="job: {script: echo}")
        await open_merge_request(root, project)
        armed.touch()
        with pytest.raises(aiohttp.ClientError):
            await _write(what, root, project)
        assert await asyncio.wait_for(server.wait(), 60) == -9
        await server.start()
        after = await head_of(server.root, project, "main")
        assert after != before
        assert await _pipelines(server.root, project, number=2) == [after, before]
        merge_request = await server.root.get(f"/projects/{project['id']}/merge_requests/1")
        assert merge_request.body["state"] == ("merged" if what == "merge" else "opened")


async def _pipelines(client: Client, project: Json, number: int) -> list[str]:
    """Return the commits of the pipelines on main, newest first, once the queue has created this many."""
    path = f"/projects/{project['id']}/pipelines?ref=main"
    made = await client.until(path, lambda pipelines: len(pipelines) >= number, seconds=60)
    return [pipeline["sha"] for pipeline in made]


async def test_a_push_that_moves_nothing_for_seven_hours_is_given_up(
    forge: Forge, moved: dict[int, list[RefUpdate]]
) -> None:
    """Until then it may still be going on."""
    project = await forge.project(initialize_with_readme=True)
    moved.clear()
    app = forge.server.app
    head = await head_of(forge.root, project, "main")
    push = Push((RefUpdate(ZEROS, head, "refs/heads/never"),))
    await refs.propose(app[SERVICES], project["id"], None, push)
    now = datetime.datetime.now(datetime.UTC)
    for hours, waiting in ((6.9, 1), (7.1, 0)):
        await refs.settle_leftovers(app[SERVICES], now + datetime.timedelta(hours=hours))
        count = "SELECT count(*) FROM pushes WHERE id = %(id)s"
        assert await forge.database.value(count, id=push.id) == waiting
    assert project["id"] not in moved


BUSY = (503, {"message": "503 Service Unavailable"}, "5")


def _repository(forge: Forge, project_id: int) -> Path:
    return forge.repository_path(project_id)


@contextlib.asynccontextmanager
async def _held(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Let another process move refs for the duration of the block, for which the server does not wait."""
    with monkeypatch.context() as impatient:
        impatient.setattr(ref_moves, "LOCK_TIMEOUT_SECONDS", 0.0)
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
    moves = WRITES[what][-1]
    repository = _repository(forge, made["id"])
    locks = [repository / f"{ref}.lock" for _, ref in moves] + [repository / "HEAD.lock"]
    for lock in locks:
        lock.touch()
    answer = await _write(what, owner, made)
    assert answer.status in (200, 201, 204), answer
    assert [lock for lock in locks if lock.exists()] == []


@pytest.mark.parametrize("what", WRITES)
async def test_what_somebody_living_has_locked_is_503(
    forge: Forge, owner: Person, made: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = WRITES[what][-1]
    repository = _repository(forge, made["id"])
    with _locked(repository, moves[0][1]) as lock:
        async with _held(repository, monkeypatch):
            answer = await _write(what, owner, made)
        assert (answer.status, answer.body, answer.headers["Retry-After"]) == BUSY
        assert lock.exists()
    waiting = await forge.database.value(
        "SELECT count(*) FROM pushes WHERE project_id = %(id)s", id=made["id"]
    )
    assert waiting == 0
    assert (await _write(what, owner, made)).status in (200, 201, 204)


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

    await owner.api.until(f"{url}/pipelines?ref=ci")
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
                await housekeeping.maintain_repositories(forge.server.app[SERVICES])
                assert (held.exists(), written_mark(mine).exists()) == (True, True)
            await housekeeping.maintain_repositories(forge.server.app[SERVICES])
            assert (held.exists(), written_mark(mine).exists()) == (False, False)
            assert seen_by_nobody.exists()  # no task walks all repositories


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
        # ids of transactions that never ended
        orphan, young = [await forge.database.value(number) for _ in range(2)]
        later = young + 1000  # an id of a newer state of the database, before it was restored
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
    """Make the files older than an hour."""
    then = time.time() - 3700
    for place in (*folder.rglob("*"), folder):
        os.utime(place, (then, then))


QUEUED = """
    SELECT args ->> 'project_id' AS project_id FROM procrastinate_jobs
    WHERE task_name = 'pack_repository' AND status = 'todo'
"""


async def _new_repository(forge: Forge) -> Path:
    """Create a repository of three loose objects."""
    project = await forge.project(initialize_with_readme=True)
    return forge.repository_path(project["id"])


async def _queued(forge: Forge) -> list[str]:
    return [row.project_id for row in await forge.database.rows(QUEUED)]


async def test_what_wants_to_be_packed_is_packed_by_the_queue(new_forge: Any) -> None:
    async with new_forge(work=True, housekeeping_loose_objects=3) as forge:
        repository = await _new_repository(forge)
        await housekeeping.maintain_repositories(forge.server.app[SERVICES])
        await until(lambda: not list(repository.glob("objects/??/*")))
        assert len(list(repository.glob("objects/pack/*.pack"))) == 1
        assert (repository / "packed-refs").exists()
        await forge.root.get(f"/projects/{repository.stem}/repository/files/README%2Emd?ref=main", expect=200)


async def test_packing_waits_until_nobody_is_at_work_but_not_for_ever(
    new_database: Any, tmp_path: Path
) -> None:
    async with forge_with_clock(
        new_database(), tmp_path, housekeeping_loose_objects=3, housekeeping_max_delay=600
    ) as (forge, clock):
        clock.now = clock.now.now(clock.now.tzinfo)
        app, repository = forge.server.app, await _new_repository(forge)
        async with at_work(repository, "transferring"):
            await housekeeping.maintain_repositories(app[SERVICES])
            assert (await _queued(forge), written_mark(repository).exists()) == ([], True)
            clock.move(minutes=11)
            await housekeeping.maintain_repositories(app[SERVICES])
            assert await _queued(forge) == [repository.stem]
        await housekeeping.maintain_repositories(app[SERVICES])  # the task is queued already
        assert (await _queued(forge), written_mark(repository).exists()) == ([repository.stem], False)


@pytest.mark.parametrize("settings", [{"housekeeping_loose_objects": 4}, {"housekeeping": False}])
async def test_what_does_not_want_it_or_may_not_is_left_alone(
    new_forge: Any, settings: dict[str, Any]
) -> None:
    async with new_forge(**{"housekeeping_loose_objects": 3} | settings) as forge:
        repository = await _new_repository(forge)
        await housekeeping.maintain_repositories(forge.server.app[SERVICES])
        assert (await _queued(forge), written_mark(repository).exists()) == ([], False)


async def test_one_that_cannot_be_looked_at_stops_no_other(new_forge: Any) -> None:
    async with new_forge(housekeeping_loose_objects=3) as forge:
        broken, fine = await _new_repository(forge), await _new_repository(forge)
        for file in files_below(broken / "at-work"):
            file.unlink()
        (broken / "at-work").rmdir()
        (broken / "at-work").touch()
        await housekeeping.maintain_repositories(forge.server.app[SERVICES])
        assert await _queued(forge) == [fine.stem]


def test_settings_and_defaults_agree(forge: Forge) -> None:
    assert housekeeping.style_of(forge.settings) == Style()
    assert housekeeping.thresholds(forge.server.app[SERVICES]) == housekeeping.Thresholds()
