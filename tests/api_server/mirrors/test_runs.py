"""Runs of a running server, from a push to the refs of the target."""

import asyncio
from pathlib import Path
from typing import Any

import gitlab
import pytest

from api_server.mirrors import running
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, database, new_mirror, with_credentials
from tests.api_server.mirrors.targets import Http
from tests.support.forge import Forge
from tests.support.git_client import push_files


async def test_a_git_push_arrives_at_the_target(
    working: Forge, target: BareRepository, http_target: Http, tmp_path: Path
) -> None:
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(working, alice, project["id"], with_credentials(http_target[1]), enabled=True)
    sha = await push_files(working, tmp_path / "work", project, alice, {"README.md": "hello\n"})
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    async with asyncio.timeout(20):
        while (shown := (await alice.api.get(path)).body)["update_status"] in ("none", "started"):
            await asyncio.sleep(0.05)
    assert target.refs() == {MAIN: sha}
    assert shown["update_status"] == "finished"
    assert shown["last_error"] is None
    assert shown["last_update_started_at"] < shown["last_update_at"] == shown["last_successful_update_at"]


async def test_a_run_creates_updates_forces_moves_tags_and_deletes_what_is_merged(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    source = mirrored.source
    first = source.commit("first")
    second, amended = source.commit("second", first), source.commit("amended", first)
    unmerged = target.commit("theirs")
    target.commit("first")
    target.set_refs({"refs/heads/merged": first, "refs/heads/unmerged": unmerged, "refs/tags/v1": first})
    await mirrored.push(
        {MAIN: first, "refs/heads/forced": second, "refs/heads/v1": first, "refs/heads/--mirror": first}
        | {"refs/tags/v1": second}
    )
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    kept = {"refs/heads/v1": first, "refs/heads/--mirror": first, "refs/heads/unmerged": unmerged}
    expected = {MAIN: first, "refs/heads/forced": second, "refs/tags/v1": second, **kept}
    assert target.refs() == expected
    await mirrored.push({MAIN: second, "refs/heads/forced": amended, "refs/heads/v1": None})
    await mirrored.hurry()
    assert (await mirrored.reaches("finished", "to_retry", run=2))["last_error"] is None
    del expected["refs/heads/v1"]
    assert target.refs() == expected | {MAIN: second, "refs/heads/forced": amended}


async def test_an_empty_project_leaves_the_target_alone(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(working, alice, project["id"], with_credentials(http_target[1]), enabled=True)
    theirs = target.commit("theirs")
    target.set_refs({MAIN: theirs})
    await running.run_mirror_once(working.server.app, mirror["id"])
    shown = (await alice.api.get(f"/projects/{project['id']}/remote_mirrors/{mirror['id']}")).body
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    assert target.refs() == {MAIN: theirs}


@pytest.mark.parametrize(
    ("values", "protected", "expected"),
    [
        ({"only_protected_branches": True}, ["main", "release/*"], {MAIN, "refs/heads/release/1"}),
        ({"only_protected_branches": True}, [], set()),
        ({"mirror_branch_regex": "m.*|x"}, ["main"], {MAIN}),
    ],
)
async def test_only_the_selected_branches_and_all_tags_are_pushed(
    working: Forge,
    target: BareRepository,
    http_target: Http,
    values: dict[str, Any],
    protected: list[str],
    expected: set[str],
) -> None:
    """A.7; with no protected branch none is pushed (decision D6)."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]), **values)
    names = [MAIN, "refs/heads/release/1", "refs/heads/x1", "refs/tags/v1"]
    mirrored.source.set_refs(dict.fromkeys(names, mirrored.source.commit("first")))
    async with database(working).transaction() as transaction:
        await transaction.row(
            "INSERT INTO protected_branches (project_id, name) SELECT %(id)s, unnest(%(names)s::text[])",
            id=mirrored.project["id"],
            names=protected,
        )
    await mirrored.sync()
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert set(target.refs()) == expected | {"refs/tags/v1"}


async def test_python_gitlab_syncs_a_mirror(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    commit = mirrored.source.commit("first")
    mirrored.source.set_refs({MAIN: commit})

    def sync() -> None:
        client = gitlab.Gitlab(working.base, private_token=mirrored.owner.token)
        (mirror,) = client.projects.get(mirrored.project["id"]).remote_mirrors.list()
        mirror.sync()

    await asyncio.to_thread(sync)
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert target.refs() == {MAIN: commit}
