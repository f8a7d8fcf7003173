"""Merge requests, the pipelines of their head, and their own pipelines."""

import asyncio
from pathlib import Path
from typing import Any

import gitlab
import orjson
import pytest

from api_server.ci.config.pipeline import NO_JOBS
from api_server.merge_requests.pushes import make_pipeline
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.merge_requests.conftest import Proposed
from tests.support.ci import ONE_JOB, CiProject, bring, ci_project, happen, run
from tests.support.forge import Client, Forge, new_name
from tests.support.git_client import Git, git_url
from tests.support.runner import a_runner

ACTIVE = ("created", "waiting_for_resource", "preparing", "waiting_for_callback", "pending", "running")
SET_STATUS = "UPDATE pipelines SET status = %(status)s WHERE id = %(id)s"


async def skipped(proposed: Proposed) -> int:
    """Return the pipeline of the push, which its message skips."""
    project = proposed.project

    (pipeline,) = await project.api.until(f"{project.url}/pipelines?ref=topic")
    assert pipeline["status"] == "skipped"
    return int(pipeline["id"])


async def test_a_merge_request_shows_the_newest_pipeline_of_its_head(proposed: Proposed) -> None:
    """It looks as in the pipeline's own endpoint, and is not that of an older head."""
    project = proposed.project
    await skipped(proposed)
    await project.pipeline(ONE_JOB)
    newest = await project.pipeline(ONE_JOB)
    own = (await project.api.get(f"{project.url}/pipelines/{newest['id']}")).body
    assert (await proposed.shown())["head_pipeline"] == own
    await project.commit("changed", path="other.txt")

    shown = await proposed.until(lambda shown: shown["head_pipeline"])
    assert shown["head_pipeline"]["sha"] == shown["sha"] != newest["sha"]


async def test_who_may_not_see_pipelines_is_shown_none(forge: Forge, proposed: Proposed) -> None:
    project = proposed.project
    await project.pipeline(ONE_JOB)
    await forge.root.put(project.url, {"visibility": "public", "public_jobs": False})
    guest, reporter = await forge.user(), await forge.user()
    await forge.member("projects", project.id, guest, Role.GUEST)
    await forge.member("projects", project.id, reporter, Role.REPORTER)
    assert (await guest.api.get(proposed.url)).body["head_pipeline"] is None
    assert (await guest.api.get(f"{proposed.url}/pipelines")).status == 403
    assert (await reporter.api.get(proposed.url)).body["head_pipeline"]["ref"] == "topic"
    assert len((await reporter.api.get(f"{proposed.url}/pipelines")).body) >= 1


async def test_lists_leave_pipelines_out(proposed: Proposed) -> None:
    project = proposed.project
    await project.pipeline(ONE_JOB)
    (listed,) = (await project.api.get(f"{project.url}/merge_requests")).body
    shown = await proposed.shown()
    assert shown["head_pipeline"]["id"] == shown["pipeline"]["id"]
    assert {"head_pipeline", "pipeline"}.isdisjoint(listed)


async def test_the_pipelines_of_a_merge_request_are_those_of_its_commits(proposed: Proposed) -> None:
    """Newest first, without pipelines of other branches."""
    project = proposed.project
    first = await skipped(proposed)
    second = await project.pipeline(ONE_JOB)
    await project.commit("changed", path="other.txt")
    third = await project.pipeline(ONE_JOB)
    await project.pipeline(ONE_JOB, branch="elsewhere")
    answer = await project.api.get(f"{proposed.url}/pipelines?per_page=2")
    assert (answer.status, answer.headers["X-Total"]) == (200, "4")
    assert answer.body[0] == (await project.api.get(f"{project.url}/pipelines?sha={third['sha']}")).body[0]
    listed = (await project.api.get(f"{proposed.url}/pipelines")).body
    found = [one["id"] for one in listed]
    assert found == sorted(found, reverse=True)
    assert {first, second["id"], third["id"]} < set(found)
    assert {one["ref"] for one in listed} == {"topic"}
    gone = await project.api.get(f"{project.url}/merge_requests/99/pipelines")
    assert (gone.status, gone.body) == (404, {"message": "404 Not found"})


async def test_without_a_successful_pipeline_a_project_that_demands_one_merges_nothing(
    forge: Forge, proposed: Proposed
) -> None:
    project = proposed.project
    await skipped(proposed)
    assert (await proposed.shown())["detailed_merge_status"] == "mergeable"
    await proposed.demand()
    assert (await proposed.shown())["detailed_merge_status"] == "ci_must_pass"
    pipeline = await project.pipeline(ONE_JOB)
    job = (await project.jobs(pipeline))["build"]["id"]
    for step, status in (
        (None, "ci_still_running"),
        ("run", "ci_still_running"),
        ("drop", "ci_must_pass"),
    ):
        if step == "run":
            await run(forge, job)
        elif step == "drop":
            await happen(forge, job, "drop", failure_reason="script_failure")
        assert (await proposed.shown())["detailed_merge_status"] == status, step
        refused = await forge.root.put(f"{proposed.url}/merge")
        assert (refused.status, refused.body) == (
            405, {"message": "405 Method Not Allowed", "detailed_merge_status": status}
        )  # fmt: skip
    again = (await project.api.post(f"{project.url}/jobs/{job}/retry")).body["id"]
    await run(forge, again)
    await happen(forge, again, "success")
    assert (await proposed.shown())["detailed_merge_status"] == "mergeable"
    assert (await forge.root.put(f"{proposed.url}/merge")).body["state"] == "merged"


async def test_each_status_of_a_pipeline_blocks_or_lets_merge(forge: Forge, proposed: Proposed) -> None:
    pipeline = await proposed.project.pipeline(ONE_JOB)
    await proposed.demand()
    for status in (*ACTIVE, "success", "failed", "canceling", "canceled", "skipped", "manual", "scheduled"):
        await forge.execute(SET_STATUS, id=pipeline["id"], status=status)
        expected = (
            "mergeable" if status == "success" else "ci_still_running" if status in ACTIVE else "ci_must_pass"
        )
        assert (await proposed.shown())["detailed_merge_status"] == expected, status


async def test_a_skipped_pipeline_will_do_where_the_project_says_so(forge: Forge, proposed: Proposed) -> None:
    await skipped(proposed)
    await proposed.demand(allow_merge_on_skipped_pipeline=True)
    assert (await forge.root.get(proposed.project.url)).body["allow_merge_on_skipped_pipeline"] is True
    assert (await proposed.shown())["detailed_merge_status"] == "mergeable"


async def test_python_gitlab_lists_the_pipelines_of_a_merge_request(forge: Forge, proposed: Proposed) -> None:
    pipeline = await proposed.project.pipeline(ONE_JOB)

    def walk() -> None:
        client = gitlab.Gitlab(forge.base, private_token=proposed.project.developer.token)
        found = client.projects.get(proposed.project.id).mergerequests.get(proposed.iid)
        assert found.head_pipeline["id"] == pipeline["id"]
        assert pipeline["id"] in [one.id for one in found.pipelines.list(get_all=True)]

    await asyncio.to_thread(walk)


async def test_deliveries_name_the_pipeline_of_the_head(forge: Forge, proposed: Proposed) -> None:
    project = proposed.project
    pipeline = await project.pipeline(ONE_JOB)
    check = {"name": "QA", "external_url": "https://qa.example.org"}
    assert (await forge.root.post(f"{project.url}/external_status_checks", check)).status == 201
    assert (await forge.root.put(proposed.url, {"title": "Another"})).status == 200
    sent = await forge.database.value(
        "SELECT deliveries.body FROM status_check_deliveries deliveries"
        " JOIN merge_requests m ON m.id = deliveries.merge_request_id"
        " WHERE m.project_id = %(id)s ORDER BY deliveries.id DESC LIMIT 1",
        id=project.id,
    )
    assert orjson.loads(sent)["object_attributes"]["head_pipeline_id"] == pipeline["id"]


#: The usual rule: a branch has pipelines of its own until it has a merge request.
SWITCH = """
workflow:
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
    - if: $CI_COMMIT_BRANCH && $CI_OPEN_MERGE_REQUESTS
      when: never
    - if: $CI_COMMIT_BRANCH
build:
  script: echo
"""
ONLY = "review: {script: echo, only: [merge_requests]}\nbranch: {script: echo}\n"
CHANGES = """
docs:
  script: echo
  rules: [{if: $CI_PIPELINE_SOURCE == "merge_request_event", changes: [docs.md]}]
code:
  script: echo
  rules: [{if: $CI_PIPELINE_SOURCE == "merge_request_event", changes: [code.py]}]
"""
CHILD = """
child:
  trigger: {include: child.yml}
  rules: [{if: $CI_PIPELINE_SOURCE == "merge_request_event"}]
"""


async def propose(
    project: CiProject, branch: str = "topic", target: str = "main", **values: Any
) -> dict[str, Any]:
    """Create a merge request; return it with its pipelines."""
    wanted = {"source_branch": branch, "target_branch": target, "title": "Change it"} | values
    made = await project.api.post(f"{project.url}/merge_requests", wanted, expect=201)
    await project.settled()
    return dict(made.body)


async def sources(project: CiProject, query: str = "") -> list[tuple[str, str, str]]:
    """Return the sources of the pipelines, newest first."""
    listed = (await project.api.get(f"{project.url}/pipelines?{query}")).body
    return [(one["source"], one["ref"], one["status"]) for one in listed]


async def post(client: Client, project: CiProject, merge_request: dict[str, Any]) -> Any:
    return await client.post(f"{project.url}/merge_requests/{merge_request['iid']}/pipelines")


@pytest.fixture(scope="module")
async def switched(forge: Forge) -> tuple[CiProject, dict[str, Any]]:
    """A branch that was pushed, proposed, and pushed again."""
    project = await ci_project(forge)
    await project.commit(SWITCH, message="One")
    merge_request = await propose(project, description="d" * 2701, labels="bug,ui")
    await project.commit("2", path="other.txt", message="Two")
    return project, merge_request


async def test_with_the_usual_switch_each_push_has_one_pipeline(switched: Any) -> None:
    project, merge_request = switched
    ref = f"refs/merge-requests/{merge_request['iid']}/head"
    assert await sources(project) == [
        ("merge_request_event", ref, "pending"),
        ("merge_request_event", ref, "canceled"),  # the pipeline of the newer commit has replaced it
        ("push", "topic", "pending"),
    ]
    assert await sources(project, "source=merge_request_event&status=pending") == [
        ("merge_request_event", ref, "pending")
    ]
    assert await sources(project, "scope=branches") == [("push", "topic", "pending")]
    listed = (await project.api.get(f"{project.url}/merge_requests/{merge_request['iid']}/pipelines")).body
    assert listed == (await project.api.get(f"{project.url}/pipelines")).body
    shown = (await project.api.get(f"{project.url}/merge_requests/{merge_request['iid']}")).body
    assert (shown["head_pipeline"]["id"], shown["head_pipeline"]["sha"]) == (listed[0]["id"], shown["sha"])
    assert shown["head_pipeline"]["before_sha"] == "0" * 40


async def test_the_jobs_of_a_merge_request_are_told_what_they_run_for(forge: Forge, switched: Any) -> None:
    project, merge_request = switched
    runner = await a_runner(forge, project_id=project.id)
    first, second = await runner.job(), await runner.job()
    assert first.variables["CI_COMMIT_BRANCH"] == "topic"
    assert first.variables["CI_OPEN_MERGE_REQUESTS"] == f"{project.path}!{merge_request['iid']}"
    told = second.variables
    assert "CI_COMMIT_BRANCH" not in told
    base = (await project.api.get(f"{project.url}/repository/branches/main")).body["commit"]["id"]
    url = f"{forge.base}/{project.path}"
    expected = {
        "CI_PIPELINE_SOURCE": "merge_request_event",
        "CI_COMMIT_REF_NAME": "topic",
        "CI_COMMIT_BEFORE_SHA": "0" * 40,
        "CI_OPEN_MERGE_REQUESTS": f"{project.path}!{merge_request['iid']}",
        "CI_MERGE_REQUEST_ID": str(merge_request["id"]),
        "CI_MERGE_REQUEST_IID": str(merge_request["iid"]),
        "CI_MERGE_REQUEST_REF_PATH": f"refs/merge-requests/{merge_request['iid']}/head",
        "CI_MERGE_REQUEST_EVENT_TYPE": "detached",
        "CI_MERGE_REQUEST_TITLE": "Change it",
        "CI_MERGE_REQUEST_DESCRIPTION": "d" * 2700,
        "CI_MERGE_REQUEST_DESCRIPTION_IS_TRUNCATED": "true",
        "CI_MERGE_REQUEST_DRAFT": "false",
        "CI_MERGE_REQUEST_LABELS": "bug,ui",
        "CI_MERGE_REQUEST_PROJECT_ID": str(project.id),
        "CI_MERGE_REQUEST_PROJECT_PATH": project.path,
        "CI_MERGE_REQUEST_PROJECT_URL": url,
        "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "topic",
        "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "",
        "CI_MERGE_REQUEST_SOURCE_BRANCH_PROTECTED": "false",
        "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": str(project.id),
        "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": project.path,
        "CI_MERGE_REQUEST_SOURCE_PROJECT_URL": url,
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": "",
        "CI_MERGE_REQUEST_TARGET_BRANCH_PROTECTED": "true",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
    }
    assert {key: told.get(key) for key in told if key in expected or "MERGE_REQUEST" in key} == expected
    sha, pipeline = told["CI_COMMIT_SHA"], told["CI_PIPELINE_ID"]
    git = second.payload["git_info"]
    assert (git["ref"], git["ref_type"]) == (expected["CI_MERGE_REQUEST_REF_PATH"], "branch")
    assert (git["sha"], git["refspecs"]) == (sha, [f"+{sha}:refs/pipelines/{pipeline}"])


async def test_a_file_that_names_merge_requests_has_two_pipelines_and_others_none(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(ONE_JOB, branch="plain", message="One")
    plain = await propose(project, "plain")
    refused = await post(project.api, project, plain)
    message = {"base": [NO_JOBS]}
    assert (refused.status, refused.body) == (400, {"message": message})
    await project.commit(ONLY, message="One")
    merge_request = await propose(project)
    ref = f"refs/merge-requests/{merge_request['iid']}/head"
    assert await sources(project, "ref=topic") == [("push", "topic", "pending")]
    assert await sources(project, f"ref={ref}") == [("merge_request_event", ref, "pending")]
    assert len(await sources(project)) == 3
    (own,) = (await project.api.get(f"{project.url}/pipelines?ref={ref}")).body
    assert set(await project.statuses(own)) == {"review"}
    await project.commit("3", path="skipped.txt")  # its message says so
    assert [one[2] for one in await sources(project, f"ref={ref}")] == ["skipped", "pending"]


async def test_python_gitlab_runs_the_pipeline_of_a_merge_request_again(forge: Forge) -> None:
    """It is created beside the existing one, and is the head's even if the branch has pipelines."""
    project = await ci_project(forge)
    await project.commit(ONLY, message="One")
    project.texts["topic"] = ONLY
    merge_request = await propose(project)
    await project.pipeline(ONLY)

    def walk() -> tuple[list[int], int, int]:
        client = gitlab.Gitlab(forge.base, private_token=project.developer.token)
        found = client.projects.get(project.id).mergerequests.get(merge_request["iid"])
        made = found.pipelines.create()
        assert made.source == "merge_request_event"
        found = client.projects.get(project.id).mergerequests.get(merge_request["iid"])
        ids = [one.id for one in found.pipelines.list(get_all=True)]
        return ids, made.id, found.head_pipeline["id"]

    ids, made, head = await asyncio.to_thread(walk)
    assert made == head == ids[0]
    assert len(ids) == 4
    await project.pipeline(ONLY)
    shown = (await project.api.get(f"{project.url}/merge_requests/{merge_request['iid']}")).body
    assert shown["head_pipeline"]["id"] == made


async def test_changes_are_those_since_the_branches_parted(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(CHANGES, branch="main")
    await project.commit("1", path="docs.md")
    merge_request = await propose(project)
    await project.commit("1", path="else.txt", message="Two")
    (own,) = (
        await project.api.get(f"{project.url}/pipelines?source=merge_request_event&status=pending")
    ).body
    assert set(await project.statuses(own)) == {"docs"}
    assert (await post(project.api, project, merge_request)).body["sha"] == own["sha"]


async def test_child_pipelines_of_a_merge_request_run_for_it_too(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit("inner: {script: echo, only: [branches]}\nother: {script: echo, rules: "
                         "[{if: $CI_MERGE_REQUEST_IID}]}\n", path="child.yml")  # fmt: skip
    await project.commit(CHILD, message="One")
    await propose(project)

    (child,) = await project.api.until(f"{project.url}/pipelines?source=parent_pipeline")
    assert child["ref"].startswith("refs/merge-requests/")
    assert "other" in await project.statuses(child)


async def test_the_source_branchs_protection_says_who_runs_and_changes_them(forge: Forge) -> None:
    """It applies to Developers who propose a protected branch, or change its pipeline, job or artifacts."""
    project = await ci_project(forge)
    await project.commit(ONLY, branch="release", message="One")
    protect = {"name": "release", "push_access_level": 40, "merge_access_level": 40}
    assert (await forge.root.post(f"{project.url}/protected_branches", protect)).status == 201
    secret = {"key": "SECRET", "value": "x", "protected": True}
    assert (await forge.root.post(f"{project.url}/variables", secret)).status == 201
    merge_request = await propose(project, "release")
    assert await sources(project, "source=merge_request_event") == []
    refused = await post(project.api, project, merge_request)
    text = "You do not have sufficient permission to run a pipeline on 'release'."
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})
    made = await post(forge.root, project, merge_request)
    assert made.status == 200, made
    (job,) = (await project.jobs(made.body)).values()
    assert (await project.api.post(f"{project.url}/pipelines/{made.body['id']}/cancel")).status == 403
    assert (await project.api.post(f"{project.url}/jobs/{job['id']}/cancel")).status == 403
    runner = await a_runner(forge, project_id=project.id)
    assert (await runner.job()).variables["CI_PIPELINE_SOURCE"] == "push"
    assert (await runner.job()).variables["SECRET"] == "x"  # both branches are protected
    assert (await forge.root.delete(f"{project.url}/protected_branches/main")).status == 204
    await bring(forge, job["id"], "success")
    assert (await post(forge.root, project, merge_request)).status == 200
    assert "SECRET" not in (await runner.job()).variables


async def test_who_proposed_must_have_the_right_when_it_is_made(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(ONLY, message="One")
    wanted = {"source_branch": "topic", "target_branch": "main", "title": "Change it"}
    merge_request = (await forge.root.post(f"{project.url}/merge_requests", wanted)).body
    await project.settled()
    assert len(await sources(project, "source=merge_request_event")) == 1
    app, gone = forge.server.app, await forge.user()
    queued = {"merge_request_id": merge_request["id"], "head_sha": merge_request["sha"]}
    await make_pipeline(app[SERVICES], user_id=gone.id, origin=new_name("gone"), **queued)
    assert len(await sources(project, "source=merge_request_event")) == 1
    again = new_name("again")
    for _ in range(2):  # the second run creates nothing
        await make_pipeline(app[SERVICES], user_id=project.developer.id, origin=again, **queued)
    assert len(await sources(project, "source=merge_request_event")) == 2


async def test_a_head_that_comes_back_has_a_pipeline_again(forge: Forge, tmp_path: Path) -> None:
    """Its first pipeline was canceled because of a commit that no longer exists."""
    project = await ci_project(forge)
    await project.commit(ONLY, message="One")
    merge_request = await propose(project)
    await project.commit("2", path="other.txt", message="Two")
    git = Git(tmp_path)
    await git("clone", "-q", git_url(forge, project.path, project.developer), ".")
    await git("push", "-q", "--force", "origin", f"{merge_request['sha']}:topic")
    await project.settled()
    own = await project.api.get(f"{project.url}/pipelines?source=merge_request_event")
    assert [one["status"] for one in own.body] == ["pending", "canceled", "canceled"]


async def test_what_has_nothing_to_merge_has_no_pipeline(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(ONLY, branch="main")
    body = {"branch": "same", "ref": "main"}
    assert (await project.api.post(f"{project.url}/repository/branches", body)).status == 201
    merge_request = await propose(project, "same")
    assert await sources(project, "source=merge_request_event") == []
    refused = await post(project.api, project, merge_request)
    assert (refused.status, refused.body) == (405, {"message": "405 Method Not Allowed"})
    reporter = await forge.new_member(project.id, Role.REPORTER)
    assert (await post(reporter.api, project, merge_request)).status == 403
    asked = await project.api.post(f"{project.url}/merge_requests/{merge_request['iid']}/pipelines?async=x")
    assert (asked.status, asked.body) == (400, {"error": "async is invalid"})
