"""Automatic merges, and merge requests that change while they are merged, approved or checked."""

import asyncio
from typing import Any

import gitlab
import orjson
import pytest

from api_server.git.errors import BranchMovedError
from api_server.merge_requests import merging, merging_queries, queries
from api_server.merge_requests import merging as auto_merge
from api_server.merge_requests import merging as merge
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.merge_requests.conftest import Proposed
from tests.support.ci import ONE_JOB, happen, run
from tests.support.forge import Forge, Person, SharedForges
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request
from tests.support.rights import stopped_before_acting
from tests.support.waiting import until, until_somebody_waits

ALL_ARE_MADE = """
    SELECT NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE task_name LIKE 'create_%%_pipeline' AND status IN ('todo', 'doing'))
"""


async def under_way(proposed: Proposed) -> int:
    """Return the id of the only job of the head's pipeline, once no other pipeline is still to be created."""
    pipeline = await proposed.project.pipeline(ONE_JOB)
    await until(lambda: proposed.project.forge.database.value(ALL_ARE_MADE))
    return int((await proposed.project.jobs(pipeline))["build"]["id"])


async def succeed(forge: Forge, job_id: int) -> None:
    await run(forge, job_id)
    await happen(forge, job_id, "success")


async def merged(proposed: Proposed) -> dict[str, Any]:
    """Return the merge request when it has been merged."""
    return await proposed.until(lambda shown: shown["state"] == "merged")


async def look(proposed: Proposed) -> dict[str, Any]:
    """Check whether the merge request can be merged now; return it after the check."""
    await merging.merge_when_ready(
        proposed.project.forge.server.app[SERVICES], (await proposed.shown())["id"]
    )
    return await proposed.shown()


async def maintainer(forge: Forge, proposed: Proposed) -> Person:
    return await forge.new_member(proposed.project.id, Role.MAINTAINER, "maintainer")


#: Parameters of a merge that is still to come.
HOW = ("commit_message", "squash", "squash_commit_message", "should_remove_source_branch", "sha")
MEANWHILE = {
    "demoted": "UPDATE members SET access_level = 30 WHERE user_id = %(user_id)s AND project_id = %(project_id)s",
    "moved": "UPDATE merge_requests SET head_sha = repeat('a', 40), auto_merge = NULL WHERE id = %(id)s",
    "drafted": "UPDATE merge_requests SET title = 'Draft: ' || title WHERE id = %(id)s",
}
LATER = {"merge_when_pipeline_succeeds": True}


@pytest.mark.parametrize("name", ["auto_merge", "merge_when_pipeline_succeeds"])
async def test_what_is_to_wait_for_its_pipeline_is_merged_when_that_has_succeeded(
    forge: Forge, proposed: Proposed, name: str
) -> None:
    """This applies also if the project requires no pipeline; the merge has the parameters and the author of the
    request."""
    person, job = await maintainer(forge, proposed), await under_way(proposed)
    how = {name: True, "squash": True, "squash_commit_message": "One", "should_remove_source_branch": True}
    asked = await person.api.put(f"{proposed.url}/merge", how | {"merge_commit_message": "By itself"})
    assert (asked.status, asked.body["state"], asked.body["merge_when_pipeline_succeeds"]) == (
        200,
        "opened",
        True,
    )
    assert (asked.body["merge_user"]["id"], asked.body["merged_by"]) == (person.id, None)
    assert asked.body["should_remove_source_branch"] is True
    await succeed(forge, job)
    shown = await merged(proposed)
    assert (shown["merge_user"]["id"], shown["merged_by"]["id"]) == (person.id, person.id)
    assert (shown["merge_when_pipeline_succeeds"], shown["merge_error"]) == (False, None)
    for key, title in (("merge_commit_sha", "By itself"), ("squash_commit_sha", "One")):
        made = await person.api.get(f"{proposed.project.url}/repository/commits/{shown[key]}")
        assert made.body["title"] == title
    assert (await person.api.get(f"{proposed.project.url}/repository/branches/topic")).status == 404


async def test_what_waits_for_nothing_is_merged(forge: Forge, proposed: Proposed) -> None:
    await succeed(forge, await under_way(proposed))
    assert (await forge.root.put(f"{proposed.url}/merge", LATER)).status == 200
    assert (await merged(proposed))["merge_user"]["username"] == "root"


async def test_a_failed_pipeline_merges_nothing_and_one_that_is_tried_again_does(
    forge: Forge, proposed: Proposed
) -> None:
    job = await under_way(proposed)
    assert (await forge.root.put(f"{proposed.url}/merge", LATER)).status == 200
    await run(forge, job)
    await happen(forge, job, "drop", failure_reason="script_failure")
    shown = await look(proposed)
    assert (shown["state"], shown["merge_when_pipeline_succeeds"]) == ("opened", True)
    again = (await proposed.project.api.post(f"{proposed.project.url}/jobs/{job}/retry")).body["id"]
    await succeed(forge, again)
    await merged(proposed)


async def test_it_waits_for_status_checks_too(forge: Forge, proposed: Proposed) -> None:
    job = await under_way(proposed)
    await forge.root.put(proposed.project.url, {"only_allow_merge_if_all_status_checks_passed": True})
    wanted = {"name": "QA", "external_url": "http://203.0.113.7"}
    check = (await forge.root.post(f"{proposed.project.url}/external_status_checks", wanted)).body
    asked = await forge.root.put(f"{proposed.url}/merge", LATER)
    assert asked.body["detailed_merge_status"] == "status_checks_must_pass"
    await succeed(forge, job)
    assert (await look(proposed))["state"] == "opened"
    answer = {"sha": asked.body["sha"], "external_status_check_id": check["id"], "status": "passed"}
    assert (await forge.root.post(f"{proposed.url}/status_check_responses", answer)).status == 201
    await merged(proposed)


@pytest.mark.parametrize("how", ["resolved", "deleted"])
async def test_it_waits_for_threads_too(forge: Forge, proposed: Proposed, how: str) -> None:
    await succeed(forge, await under_way(proposed))
    await forge.root.put(proposed.project.url, {"only_allow_merge_if_all_discussions_are_resolved": True})
    thread = (await forge.root.post(f"{proposed.url}/discussions", {"body": "Why?"})).body
    asked = await forge.root.put(f"{proposed.url}/merge", LATER)
    assert (asked.status, asked.body["detailed_merge_status"]) == (200, "discussions_not_resolved")
    assert (await look(proposed))["state"] == "opened"
    discussion = f"{proposed.url}/discussions/{thread['id']}"
    if how == "resolved":
        assert (await forge.root.put(discussion, {"resolved": True})).status == 200
    else:
        assert (await forge.root.delete(f"{discussion}/notes/{thread['notes'][0]['id']}")).status == 204
    await merged(proposed)


async def test_it_waits_for_its_pipeline_where_git_is_still_to_be_asked_about_a_target_that_has_moved(
    forge: Forge, proposed: Proposed
) -> None:
    job = await under_way(proposed)
    made = (await forge.root.put(f"{proposed.url}/merge", LATER)).body
    await commit(forge.root, {"id": proposed.project.id}, "main", commit_message="[skip ci]")
    await auto_merge.merge_when_ready(forge.server.app[SERVICES], made["id"])
    shown = await proposed.shown()
    assert (shown["state"], shown["merge_when_pipeline_succeeds"]) == ("opened", True)
    await succeed(forge, job)
    await merged(proposed)


async def test_a_target_that_moves_just_then_is_merged_into_as_it_is_now(
    forge: Forge, proposed: Proposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await succeed(forge, await under_way(proposed))
    made, real, moves = await proposed.shown(), merge.move_in, []
    root = (await forge.root.get("/user")).body["id"]

    async def moved_once(app: Any, database: Any, project_id: int, *rest: Any) -> None:
        moves.append(project_id)
        if moves.count(proposed.project.id) == 1 and project_id == proposed.project.id:
            raise BranchMovedError("moved")
        await real(app, database, project_id, *rest)

    async with forge.database.transaction() as transaction:
        how = orjson.dumps(dict.fromkeys(HOW) | {"sha": made["sha"]}).decode()
        await merging_queries.set_auto_merge(transaction, made["id"], root, how, squash=None)
    monkeypatch.setattr(merge, "move_in", moved_once)
    assert (await look(proposed))["state"] == "merged"
    assert moves.count(proposed.project.id) == 2


LOOKED_AT_LATER = """
    SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'merge_when_ready' AND scheduled_at > %(now)s
        AND args ->> 'merge_request_id' = %(id)s::text
"""
QUEUED = "task_name LIKE 'create_%%_pipeline' AND status = 'todo'"


async def test_it_waits_for_a_pipeline_that_is_still_to_be_made(shared_forge: SharedForges) -> None:
    """A caller who pushes and requests a merge at once wants the pipeline to run first. If the file creates no
    pipeline, it is merged."""
    forge = await shared_forge()
    alice = await forge.user("alice")
    project = await new_project(forge, alice)
    made = await open_merge_request(alice, project)
    path = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    asked = await alice.api.put(f"{path}/merge", LATER)
    assert (asked.body["state"], asked.body["merge_when_pipeline_succeeds"]) == ("opened", True)
    await auto_merge.merge_when_ready(forge.server.app[SERVICES], made["id"])
    assert (await alice.api.get(path)).body["state"] == "opened"
    assert await forge.database.value(LOOKED_AT_LATER, id=made["id"]) == 1
    await forge.execute(f"UPDATE procrastinate_jobs SET status = 'failed' WHERE {QUEUED}")
    await auto_merge.merge_when_ready(forge.server.app[SERVICES], made["id"])
    assert (await alice.api.get(path)).body["state"] == "merged"


@pytest.mark.parametrize("meanwhile", ["demoted", "moved", "drafted"])
async def test_it_is_judged_again_where_something_changes_while_it_is_merged(
    forge: Forge, proposed: Proposed, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Another process may change it between the check and the move."""
    person, job = await maintainer(forge, proposed), await under_way(proposed)
    await succeed(forge, job)
    made, project = await proposed.shown(), proposed.project
    async with forge.database.transaction() as transaction:
        how = orjson.dumps(dict.fromkeys(HOW) | {"sha": made["sha"]}).decode()
        await merging_queries.set_auto_merge(transaction, made["id"], person.id, how, squash=None)
    before = (await forge.root.get(f"{project.url}/repository/branches/main")).body["commit"]["id"]
    with stopped_before_acting(forge, monkeypatch) as stop:
        merging = asyncio.create_task(auto_merge.merge_when_ready(forge.server.app[SERVICES], made["id"]))
        await stop.until(1)
        await forge.execute(MEANWHILE[meanwhile], user_id=person.id, id=made["id"], project_id=project.id)
        stop.open()
        await merging
    shown = await proposed.shown()
    assert (shown["state"], shown["merge_when_pipeline_succeeds"]) == ("opened", meanwhile == "drafted")
    main = await forge.root.get(f"{project.url}/repository/branches/main")
    assert main.body["commit"]["id"] == before


@pytest.mark.parametrize("end", ["push", "retarget", "close", "cancel"])
async def test_it_ends_when_what_was_asked_for_is_something_else(
    forge: Forge, proposed: Proposed, end: str
) -> None:
    project, job = proposed.project, await under_way(proposed)
    assert (await forge.root.put(f"{proposed.url}/merge", LATER)).status == 200
    assert (await forge.root.put(proposed.url, {"title": "Other"})).body[
        "merge_when_pipeline_succeeds"
    ] is True
    if end == "push":
        await project.commit("changed", path="other.txt")
    elif end == "retarget":
        branch = {"branch": "stable", "ref": "main"}
        assert (await forge.root.post(f"{project.url}/repository/branches", branch)).status == 201
        assert (await forge.root.put(proposed.url, {"target_branch": "stable"})).status == 200
    elif end == "close":
        await forge.root.put(proposed.url, {"state_event": "close"})
        await forge.root.put(proposed.url, {"state_event": "reopen"})
    else:
        answer = await forge.root.post(f"{proposed.url}/cancel_merge_when_pipeline_succeeds")
        assert (answer.status, answer.body) == (201, {"status": "success"})
    shown = await proposed.shown()
    assert (shown["merge_when_pipeline_succeeds"], shown["merge_user"]) == (False, None)
    await succeed(forge, job)
    assert (await look(proposed))["state"] == "opened"


async def test_whoever_has_lost_the_right_merges_nothing_later(forge: Forge, proposed: Proposed) -> None:
    person, job = await maintainer(forge, proposed), await under_way(proposed)
    assert (await person.api.put(f"{proposed.url}/merge", LATER)).status == 200
    member = f"{proposed.project.url}/members/{person.id}"
    assert (await forge.root.put(member, {"access_level": 30})).status == 200
    await succeed(forge, job)

    shown = await proposed.until(lambda shown: not shown["merge_when_pipeline_succeeds"])
    text = "You are not allowed to merge this merge request"
    assert (shown["state"], shown["merge_error"], shown["merge_user"]) == ("opened", text, None)


async def test_who_may_ask_for_it_and_who_may_cancel_it(forge: Forge, proposed: Proposed) -> None:
    developer = proposed.project.developer  # the author
    await under_way(proposed)
    cancel = f"{proposed.url}/cancel_merge_when_pipeline_succeeds"
    missing = await developer.api.post(cancel)
    assert (missing.status, missing.body) == (406, {"message": "Can't cancel the automatic merge"})
    assert (await developer.api.put(f"{proposed.url}/merge", LATER)).status == 403
    assert (await forge.root.put(f"{proposed.url}/merge", LATER)).status == 200
    other = await forge.new_member(proposed.project.id, Role.DEVELOPER, "other")
    assert (await other.api.post(cancel)).status == 403
    assert (await developer.api.post(cancel)).status == 201
    await forge.root.put(proposed.url, {"title": "Draft: Not yet"})
    refused = await forge.root.put(f"{proposed.url}/merge", LATER)
    body = {"message": "405 Method Not Allowed", "detailed_merge_status": "draft_status"}
    assert (refused.status, refused.body) == (405, body)
    await forge.root.put(proposed.url, {"state_event": "close"})
    assert (await developer.api.post(cancel)).status == 405


SENT = """
    SELECT deliveries.body FROM status_check_deliveries deliveries
    JOIN merge_requests m ON m.id = deliveries.merge_request_id
    WHERE m.project_id = %(id)s ORDER BY deliveries.id DESC LIMIT 1
"""


async def test_deliveries_tell_of_it(forge: Forge, proposed: Proposed) -> None:
    await under_way(proposed)
    root = (await forge.root.get("/user")).body["id"]
    wanted = {"name": "QA", "external_url": "http://203.0.113.7"}
    await forge.root.post(f"{proposed.project.url}/external_status_checks", wanted)
    asked = (await forge.root.put(f"{proposed.url}/merge", LATER)).body
    await forge.root.put(proposed.url, {"title": "Other"})
    sent = orjson.loads(await forge.database.value(SENT, id=proposed.project.id))["object_attributes"]
    assert (sent["merge_when_pipeline_succeeds"], sent["merge_user_id"]) == (True, root)
    assert sent["merge_params"] == {
        "force_remove_source_branch": "0",
        "auto_merge_strategy": "merge_when_checks_pass",
        "should_remove_source_branch": None,
        "sha": asked["sha"],
    }


async def test_python_gitlab_asks_for_it_and_cancels_it(forge: Forge, proposed: Proposed) -> None:
    person = await maintainer(forge, proposed)
    await under_way(proposed)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=person.token)
        found = client.projects.get(proposed.project.id).mergerequests.get(proposed.iid)
        found.merge(merge_when_pipeline_succeeds=True)
        assert found.merge_when_pipeline_succeeds is True
        assert found.cancel_merge_when_pipeline_succeeds() == {"status": "success"}

    await asyncio.to_thread(use)


RETARGET = "UPDATE merge_requests SET target_branch = 'main' WHERE project_id = %(id)s"
LOCK_PROJECT = "SELECT id FROM projects WHERE id = %(id)s FOR UPDATE"
#: The state that a settled push to the target leaves.
MOVED = """
    UPDATE merge_requests SET target_sha = repeat('a', 40), mergeability = 'unchecked' WHERE project_id = %(id)s
"""
MERGEABILITY = "SELECT mergeability FROM merge_requests WHERE project_id = %(id)s"


@pytest.fixture
async def developer(forge: Forge, project: dict[str, Any]) -> Person:
    """A developer, who may merge into the branch `open` but not into `main`."""
    return await forge.new_member(project["id"], Role.DEVELOPER, "developer")


async def _open(developer: Person, alice: Person, project: dict[str, Any]) -> str:
    """Return the path of a merge request into the branch `open`, to which commits were pushed since."""
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
    """Meanwhile a request that has locked the row changes the target to a protected branch. git may have been asked
    about the old heads (`is_checked`) or not."""
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
    """Another merge request is merged at the same time, which moves the target."""
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
    """The result for the heads is not stored if the target has moved since git was asked."""
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
