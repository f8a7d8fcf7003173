"""A backup is of one moment, whatever happens while it is made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api_server.code import refs
from api_server.git import ref_moves
from api_server.git.received_push import Push, RefUpdate
from api_server.git.repositories import REPOSITORIES
from api_server.git.upkeep import Style, pack
from api_server.state.backups import backing_up, not_during
from api_server.state.errors import Unavailable
from common.mistakes import Mistake
from forgelet.backup import backing_up as backing_up_module
from forgelet.backup.contents import Places, Refs
from tests.support.ci import CiProject, ci_project
from tests.support.database_roles import as_role
from tests.support.forge import Client, Forge, running_forge

from .backups import backed_up, restored


@pytest.fixture(scope="module")
async def here(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("busy")) as forge:
        yield forge


def just_after_the_moment(work: Callable[[], Awaitable[None]]) -> Callable[[str, int, int], None]:
    """Does `work` once, while the backup waits, when its first table is copied."""
    loop, begun = asyncio.get_running_loop(), []

    def progress(what: str, _done: int, _of: int) -> None:
        if what == "tables" and not begun:
            begun.append(what)
            asyncio.run_coroutine_threadsafe(work(), loop).result(60)

    return progress


async def commit(project: CiProject, client: Client, branch: str, path: str, **values: Any) -> str:
    actions = [{"action": "create", "file_path": path, "content": "job: {script: make}\n"}]
    made = await client.post(
        f"{project.url}/repository/commits",
        {"branch": branch, "commit_message": f"Add {path}", "actions": actions} | values,
    )
    assert made.status == 201, made
    return str(made.body["id"])


async def test_what_happens_meanwhile_is_not_in_it_and_takes_nothing_from_it(
    here: Forge, empty: Places
) -> None:
    doomed, changed = await ci_project(here), await ci_project(here)
    first = await commit(changed, here.root, "feature", "one.txt", start_branch="main")

    async def work() -> None:
        """Removes a project with its repository, a branch, and moves another one."""
        assert (await here.root.delete(f"/projects/{doomed.id}")).status == 202
        with pytest.raises(Unavailable):  # what the queue does next
            not_during(here.server.app[REPOSITORIES].root)
        assert (await changed.api.delete(f"{changed.url}/repository/branches/feature")).status == 204
        await commit(changed, here.root, "main", "two.txt")
        assert not await pack(here.server.app[REPOSITORIES].path(changed.id), Style(), 0.0)

    text, made = await backed_up(here, just_after_the_moment(work))
    assert made.missing == []
    await asyncio.to_thread(restored, empty, text)
    async with running_forge(empty.database_url, empty.data_dir) as again:
        url = f"/projects/{changed.id}/repository"
        assert (await again.root.get(f"/projects/{doomed.id}/repository/tree")).status == 200
        assert (await again.root.get(f"{url}/branches/feature")).body["commit"]["id"] == first
        assert (await again.root.get(f"{url}/files/one%2Etxt?ref=feature")).status == 200
        assert (await again.root.get(f"{url}/files/two%2Etxt?ref=main")).status == 404


async def test_pushes_wait_only_while_what_has_moved_is_read_again(
    here: Forge, empty: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, twice, quiet = [await ci_project(here) for _ in range(3)]
    kept = await commit(quiet, here.root, "feature", "kept.txt", start_branch="main")
    loop, readings, read_meanwhile = asyncio.get_running_loop(), [], []
    hold, read = backing_up_module._hold_pushes, Refs.read

    async def work() -> None:
        if len(readings) == 1:
            await commit(once, here.root, "main", "one.txt")
            assert (await quiet.api.post(f"{quiet.url}/statuses/{kept}?state=success")).status == 201
        await commit(twice, here.root, "main", f"{len(readings)}.txt")

    def progress(what: str, done: int, of: int) -> None:
        if what == "refs" and done == of - 1:  # of all others, refs have been read
            readings.append(of)
            asyncio.run_coroutine_threadsafe(work(), loop).result(60)

    def noted(refs: Refs, repositories: Any, project_id: int, **options: Any) -> None:
        if is_held:
            read_meanwhile.append(project_id)
        read(refs, repositories, project_id, **options)

    def held(barrier: Any) -> None:
        hold(barrier)
        is_held.append(True)

    is_held: list[bool] = []
    monkeypatch.setattr(backing_up_module, "_hold_pushes", held)
    monkeypatch.setattr(Refs, "read", noted)
    text, _ = await backed_up(here, progress)
    assert read_meanwhile == [twice.id]
    await asyncio.to_thread(restored, empty, text)
    async with running_forge(empty.database_url, empty.data_dir) as again:
        for project, name in ((once, "one.txt"), (twice, "1.txt"), (twice, "2.txt")):
            url = f"{project.url}/repository/files/{name.replace('.', '%2E')}?ref=main"
            assert (await again.root.get(url)).status == 200
        repository = again.server.app[REPOSITORIES].open(quiet.id)
        assert f"refs/keep-around/{kept}" in repository.references


async def test_a_push_that_was_not_settled_is_settled_after_the_restore(here: Forge, empty: Places) -> None:
    project = await ci_project(here)
    old = (await project.api.get(f"{project.url}/repository/branches/main")).body["commit"]["id"]
    new = await commit(project, here.root, "other", ".gitlab-ci.yml", start_branch="main")
    push = Push((RefUpdate(old, new, "refs/heads/main"),))
    app = here.server.app
    await refs.propose(app, project.id, (await here.root.get("/user")).body["id"], push)
    await ref_moves.apply_push(app[REPOSITORIES].path(project.id), push)  # and the server is killed
    text, _ = await backed_up(here)
    await refs.settle_push(app, project.id, push)
    await asyncio.to_thread(restored, empty, text)
    async with running_forge(empty.database_url, empty.data_dir) as again:
        async with asyncio.timeout(30):  # the queue has it
            while not (await again.root.get(f"/projects/{project.id}/pipelines?ref=main&sha={new}")).body:
                await asyncio.sleep(0.05)
        with as_role(empty.database_url) as cursor:
            cursor.execute("SELECT count(*) FROM pushes")
            assert cursor.fetchone() == (0,)


async def test_a_missing_repository_and_object_are_named(here: Forge) -> None:
    project = await ci_project(here)
    repository = here.server.app[REPOSITORIES].path(project.id)
    aside = repository.with_name("aside")
    repository.rename(aside)
    try:
        _, made = await backed_up(here)
    finally:
        aside.rename(repository)
    assert made.missing == [f"repository of project {project.id}"]


def test_one_backup_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api_server.state.backups._PATIENCE_SECONDS", 0.0)
    not_during(tmp_path)
    with backing_up(tmp_path), pytest.raises(Mistake, match="Another backup"), backing_up(tmp_path):
        pass
    not_during(tmp_path)
