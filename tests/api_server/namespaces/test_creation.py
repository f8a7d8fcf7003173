"""Making a project: all of it, or nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pygit2
import pytest
from pygit2.references import References

from api_server.namespaces.projects import CREATION_LISTENERS
from api_server.web.context import SERVICES
from tests.support.forge import Client, Forge, new_name
from tests.support.purges import Told

WITH_README = {"path": "app", "initialize_with_readme": True}


def _repositories(data_dir: Path) -> list[Path]:
    return list(data_dir.glob("repositories/[0-9a-f][0-9a-f]/*"))


async def _fails_and_leaves_nothing(forge: Forge, data_dir: Path) -> None:
    """Neither rows nor files nor events; and the path is free."""
    answer = await forge.root.post("/projects", WITH_README)
    assert (answer.status, answer.body) == (500, {"message": "500 Internal Server Error"})
    assert (await forge.root.get("/projects/root%2Fapp")).status == 404
    for table in ("projects", "pushes", "protected_branches", "routes WHERE path = 'root/app'"):
        assert await forge.database.value(f"SELECT count(*) FROM {table}") == 0
    events = "SELECT count(*) FROM audit_events WHERE event_type = 'project_created'"
    assert await forge.database.value(events) == 0
    assert _repositories(data_dir) == []
    made = await forge.root.post("/projects", {"path": "app"})
    assert made.status == 201, made


async def test_where_no_repository_can_be_made_there_is_no_project(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "repositories").write_text("in the way")
    async with new_forge() as forge:
        await _fails_and_leaves_nothing(forge, tmp_path)


async def test_where_no_branch_can_be_made_there_is_no_project(
    new_forge: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise pygit2.GitError("no")

    monkeypatch.setattr(References, "create", fail)
    async with new_forge() as forge:
        await _fails_and_leaves_nothing(forge, tmp_path)


async def test_a_first_commit_needs_no_git(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start one takes longer than all else."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    project = await forge.project(initialize_with_readme=True)
    branch = await forge.root.get(f"/projects/{project['id']}/repository/branches/main")
    assert branch.body["commit"]["title"] == "Initial commit"


async def test_where_another_listener_fails_the_first_commit_goes_too(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError

    async with new_forge() as forge:
        forge.server.app[SERVICES][CREATION_LISTENERS].append(fail)
        answer = await forge.root.post("/projects", WITH_README)
        assert answer.status == 500
        assert await forge.database.value("SELECT count(*) FROM projects") == 0
        assert _repositories(tmp_path) == []


async def test_a_first_commit_moves_refs_as_every_commit_does(with_edge: tuple[Forge, Told]) -> None:
    """It is followed by listeners in the transaction: nothing has to be settled later."""
    forge, _ = with_edge
    project = await forge.project(initialize_with_readme=True)
    waiting = "SELECT count(*) FROM pushes WHERE project_id = %(id)s"
    assert await forge.database.value(waiting, id=project["id"]) == 0
    queued = (
        "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'create_pushed_pipeline'"
        " AND args ->> 'project_id' = %(id)s::text"
    )
    assert await forge.database.value(queued, id=project["id"]) == 1


@pytest.mark.parametrize("name", ["a..b", "", "HEAD", "-x", "0" * 40])
async def test_a_default_branch_has_a_name_that_a_branch_can_have(forge: Forge, name: str) -> None:
    for with_readme in (True, False):
        wanted = {"path": "x", "default_branch": name, "initialize_with_readme": with_readme}
        answer = await forge.root.post("/projects", wanted)
        assert (answer.status, answer.body) == (400, {"message": {"default_branch": ["is invalid"]}})


async def test_a_project_in_no_namespace_is_404(forge: Forge) -> None:
    for client in (forge.root, (await forge.user()).api):
        await _refused(client, 999_999_999)


async def _refused(client: Client, namespace_id: int) -> None:
    answer = await client.post("/projects", {"path": "x", "namespace_id": namespace_id})
    assert (answer.status, answer.body) == (404, {"message": "404 Namespace Not Found"})


async def test_what_is_made_in_a_group_that_moves_is_where_the_group_is(forge: Forge) -> None:
    for number in range(8):
        group, outside = await forge.group(), await forge.project()
        url, new = f"/groups/{group['id']}", new_name("moved")
        answers = await asyncio.gather(
            forge.root.post("/projects", {"path": f"p{number}", "namespace_id": group["id"]}),
            forge.root.post("/groups", {"name": "g", "path": f"g{number}", "parent_id": group["id"]}),
            forge.root.put(f"/projects/{outside['id']}/transfer", {"namespace": group["id"]}),
            forge.root.put(url, {"path": new}),
        )
        assert [answer.status for answer in answers] == [201, 201, 200, 200]
        projects = (await forge.root.get(f"{url}/projects")).body
        subgroups = (await forge.root.get(f"{url}/subgroups")).body
        assert len(projects) == 2
        paths = [one["path_with_namespace"] for one in projects] + [one["full_path"] for one in subgroups]
        assert {path.partition("/")[0] for path in paths} == {new}
        for path in paths[:2]:
            assert (await forge.root.get(f"/projects/{path.replace('/', '%2F')}")).status == 200


async def test_a_project_is_made_with_what_it_demands_of_merges(forge: Forge) -> None:
    demands = {
        "only_allow_merge_if_pipeline_succeeds": True,
        "allow_merge_on_skipped_pipeline": True,
        "only_allow_merge_if_all_status_checks_passed": True,
        "only_allow_merge_if_all_discussions_are_resolved": True,
    }
    made = await forge.project(**demands)
    assert {name: made[name] for name in demands} == demands
