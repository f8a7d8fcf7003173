"""Merge requests that change while somebody merges, approves or checks them: in another process, say."""

import asyncio
from typing import Any

import pytest

from api_server.git.errors import BranchMovedError
from api_server.merge_requests import merging as merge
from api_server.merge_requests import queries
from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, open_merge_request
from tests.support.rights import stopped_before_acting
from tests.support.waiting import until_somebody_waits

RETARGET = "UPDATE merge_requests SET target_branch = 'main' WHERE project_id = %(id)s"
LOCK_PROJECT = "SELECT id FROM projects WHERE id = %(id)s FOR UPDATE"
#: As a push to the target that has been settled leaves it.
MOVED = """
    UPDATE merge_requests SET target_sha = repeat('a', 40), mergeability = 'unchecked' WHERE project_id = %(id)s
"""
MERGEABILITY = "SELECT mergeability FROM merge_requests WHERE project_id = %(id)s"


@pytest.fixture
async def developer(forge: Forge, project: dict[str, Any]) -> Person:
    """May merge into the branch `open`, and not into `main`."""
    return await forge.new_member(project["id"], Role.DEVELOPER, "developer")


async def _open(developer: Person, alice: Person, project: dict[str, Any]) -> str:
    """The path of a merge request into the branch `open`, to which somebody has pushed since."""
    await commit(alice.api, project, "open", start_branch="main")
    await open_merge_request(developer, project, "feature", "open")
    await commit(alice.api, project, "open")
    return f"/projects/{project['id']}/merge_requests/1"


async def _heads(alice: Person, project: dict[str, Any]) -> tuple[str, str]:
    return await head_of(alice.api, project, "main"), await head_of(alice.api, project, "open")


@pytest.mark.parametrize("is_checked", [False, True])
async def test_the_right_to_merge_is_judged_on_the_target_that_is_merged_into(
    forge: Forge, alice: Person, project: dict[str, Any], developer: Person, *, is_checked: bool
) -> None:
    """While somebody, who has locked what she changes, points it at a branch that is protected; git has been asked
    about the old heads (`is_checked`) or has not."""
    url = await _open(developer, alice, project)
    if is_checked:
        assert (await alice.api.get(url)).body["detailed_merge_status"] == "mergeable"
    before = await _heads(alice, project)
    async with forge.database.transaction() as transaction:
        await transaction.value(LOCK_PROJECT, id=project["id"])
        await transaction.run(RETARGET, id=project["id"])
        merging = asyncio.create_task(developer.api.put(f"{url}/merge"))
        await until_somebody_waits(forge.database)
    answer = await merging
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})
    assert await _heads(alice, project) == before
    shown = (await alice.api.get(url)).body
    assert (shown["state"], shown["target_branch"]) == ("opened", "main")


async def test_merging_and_retargeting_at_once_are_one_after_the_other(
    forge: Forge, alice: Person, project: dict[str, Any], developer: Person
) -> None:
    url = await _open(developer, alice, project)
    main, _ = await _heads(alice, project)
    answers = await asyncio.gather(
        developer.api.put(f"{url}/merge"), developer.api.put(url, {"target_branch": "main"})
    )
    shown = (await alice.api.get(url)).body
    assert (await _heads(alice, project))[0] == main
    merged, retargeted = (answer.status for answer in answers)
    if merged == 200:
        assert (shown["state"], shown["target_branch"], retargeted) == ("merged", "open", 422)
    else:
        assert (merged, retargeted) == (403, 200)
        assert (shown["state"], shown["target_branch"]) == ("opened", "main")


async def test_a_target_that_moves_when_git_has_been_asked_about_it_is_merged_into_as_it_is_then(
    alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a merge of another merge request at the same time moves it."""
    made, real, moved = await open_merge_request(alice, project), merge.check_mergeability, []

    async def checked(app: Any, found: queries.MergeRequest) -> None:
        await real(app, found)
        if not moved and found.project_id == project["id"]:
            moved.append(await commit(alice.api, project, "main"))

    monkeypatch.setattr(merge, "check_mergeability", checked)
    merged = await alice.api.put(f"/projects/{project['id']}/merge_requests/{made['iid']}/merge")
    assert (merged.status, merged.body.get("state")) == (200, "merged")
    head = await head_of(alice.api, project, "main")
    shown = await alice.api.get(f"/projects/{project['id']}/repository/commits/{head}")
    assert shown.body["parent_ids"] == [*moved, made["sha"]]


async def test_a_target_that_has_moved_and_of_which_nobody_knows_yet_is_merged_into(
    alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real, moves = await open_merge_request(alice, project), merge.move_in, []

    async def moved_once(app: Any, database: Any, project_id: int, *rest: Any) -> None:
        if project_id == project["id"]:
            moves.append(rest)
            if len(moves) == 1:
                raise BranchMovedError("moved")
        await real(app, database, project_id, *rest)

    monkeypatch.setattr(merge, "move_in", moved_once)
    merged = await alice.api.put(f"/projects/{project['id']}/merge_requests/{made['iid']}/merge")
    assert (merged.status, merged.body.get("state"), len(moves) > 1) == (200, "merged", True)


PUSHES = "SELECT count(*) FROM pushes WHERE project_id = %(id)s"


async def test_nothing_is_left_of_a_merge_of_what_is_deleted_just_then(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await open_merge_request(alice, project)
    url = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    main = await head_of(alice.api, project, "main")
    with stopped_before_acting(forge, monkeypatch) as stop:
        merging = asyncio.create_task(alice.api.put(f"{url}/merge"))
        await stop.until(1)
        async with forge.database.transaction() as transaction:
            await queries.delete(transaction, made["id"])
        stop.open()
        answer = await merging
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert await head_of(alice.api, project, "main") == main
    assert await forge.database.value(PUSHES, id=project["id"]) == 0


async def test_what_git_said_of_an_older_target_is_not_kept(
    forge: Forge, alice: Person, project: dict[str, Any], developer: Person
) -> None:
    """Whoever asked git about the heads finds that the target has moved when the answer is to be written down."""
    url = await _open(developer, alice, project)
    number = {"id": project["id"]}
    assert await forge.database.value(MERGEABILITY, **number) == "unchecked"
    async with forge.database.transaction() as transaction:
        await transaction.value(LOCK_PROJECT, **number)
        await transaction.run(MOVED, **number)
        reading = asyncio.create_task(alice.api.get(url))
        await until_somebody_waits(forge.database)
    assert (await reading).body["detailed_merge_status"] == "unchecked"
    assert await forge.database.value(MERGEABILITY, **number) == "unchecked"


async def test_nothing_about_merge_requests_changes_in_an_archived_project(
    alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    await commit(alice.api, project, "another", start_branch="main")
    requests, one = f"/projects/{project['id']}/merge_requests", f"/projects/{project['id']}/merge_requests/1"
    before = (await alice.api.get(one)).body
    assert (await alice.api.post(f"/projects/{project['id']}/archive")).status == 201
    wanted = {"source_branch": "another", "target_branch": "main", "title": "Another"}
    response = {"sha": made["sha"], "external_status_check_id": 1}
    for answer in [
        await alice.api.post(requests, wanted),
        await alice.api.put(one, {"title": "Another"}),
        await alice.api.put(one, {"state_event": "close"}),
        await alice.api.put(f"{one}/merge"),
        await alice.api.post(f"{one}/cancel_merge_when_pipeline_succeeds"),
        await alice.api.put(f"{one}/rebase"),
        await alice.api.delete(one),
        await alice.api.post(f"{one}/approve"),
        await alice.api.post(f"{one}/unapprove"),
        await alice.api.post(f"{one}/status_check_responses", response),
        await alice.api.post(f"{one}/status_checks/1/retry"),
    ]:
        assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})
    assert [shown["iid"] for shown in (await alice.api.get(requests)).body] == [1]
    assert (await alice.api.get(one)).body == before | {"user": {"can_merge": False}}
