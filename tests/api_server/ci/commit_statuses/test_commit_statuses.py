"""Statuses of commits, which other systems set, and their place among the jobs of pipelines."""

import asyncio
from typing import Any

import gitlab
import pytest
from gitlab.exceptions import GitlabCreateError

from api_server.ci.jobs import upkeep
from api_server.web.routes import Role
from tests.support.ci import CiProject, happen, run
from tests.support.commit_statuses import a_commit, pipeline_of, said, say
from tests.support.forge import new_name
from tests.support.merge_requests import commit
from tests.support.waiting import until

KEYS = [
    "id", "sha", "ref", "status", "name", "target_url", "description", "created_at", "started_at", "finished_at",
    "allow_failure", "coverage", "pipeline_id", "author",
]  # fmt: skip


async def test_the_first_status_of_a_commit_makes_an_external_pipeline(project: CiProject) -> None:
    await project.api.post(f"{project.url}/repository/branches", {"branch": "first", "ref": "main"})
    sha = await a_commit(project, "first")
    made = await say(
        project, sha, "running", name="jenkins", target_url="https://ci.example.org/1", description="at it"
    )
    assert made.status == 201, made
    status = made.body
    assert list(status) == KEYS
    assert {**status, "id": 0, "created_at": "", "started_at": "", "pipeline_id": 0, "author": 0} == {
        "id": 0, "sha": sha, "ref": "first", "status": "running", "name": "jenkins",
        "target_url": "https://ci.example.org/1", "description": "at it", "created_at": "", "started_at": "",
        "finished_at": None, "allow_failure": False, "coverage": None, "pipeline_id": 0, "author": 0,
    }  # fmt: skip
    assert status["created_at"]
    assert status["started_at"]
    assert status["author"]["username"] == project.developer.username
    pipeline = await pipeline_of(project, status)
    assert (pipeline["source"], pipeline["status"], pipeline["ref"], pipeline["sha"], pipeline["tag"]) == (
        "external", "running", "first", sha, False
    )  # fmt: skip
    listed = await project.api.get(f"{project.url}/pipelines?source=external&sha={sha}")
    assert [one["id"] for one in listed.body] == [pipeline["id"]]
    again = await say(project, sha, "success", name="jenkins", coverage=87.5)
    assert again.status == 201
    assert (again.body["id"], again.body["status"], again.body["coverage"]) == (status["id"], "success", 87.5)
    assert (again.body["target_url"], again.body["description"]) == ("https://ci.example.org/1", "at it")
    assert again.body["finished_at"]
    shown = await pipeline_of(project, status)
    assert (shown["status"], shown["coverage"]) == ("success", "87.50")
    head = (await project.api.get(f"{project.url}/repository/commits/{sha}")).body
    assert (head["status"], head["last_pipeline"]["id"]) == ("success", pipeline["id"])


async def test_a_status_that_is_over_is_followed_by_a_new_one(project: CiProject) -> None:
    sha = await a_commit(project)
    first = (await say(project, sha, "failed")).body
    assert (first["name"], first["status"], first["started_at"]) == ("default", "failed", None)
    second = (await say(project, sha, "pending", context="default")).body
    assert second["id"] > first["id"]
    assert second["pipeline_id"] == first["pipeline_id"]
    third = (await say(project, sha, "success", name="other")).body
    assert [one["id"] for one in await said(project, sha)] == [second["id"], third["id"]]
    assert [one["id"] for one in await said(project, sha, "all=true&sort=desc")] == [
        third["id"], second["id"], first["id"]
    ]  # fmt: skip
    assert (await pipeline_of(project, first))["status"] == "running"


@pytest.mark.parametrize(
    ("before", "after", "event"),
    [
        ("pending", "pending", "enqueue"),
        ("running", "pending", "enqueue"),
        ("running", "running", "run"),
        ("running", "skipped", "skip"),
    ],
)
async def test_what_does_not_follow_is_refused_in_gitlabs_words(
    project: CiProject, before: str, after: str, event: str
) -> None:
    sha = await a_commit(project)
    first = (await say(project, sha, before)).body
    refused = await say(project, sha, after, description="not kept")
    text = f'Cannot transition status via :{event} from :{before} (Reason(s): Status cannot transition via "{event}")'
    assert (refused.status, refused.body) == (400, {"message": text})
    assert await said(project, sha, "all=true") == [first]


@pytest.mark.parametrize("state", ["pending", "running", "success", "failed", "canceled", "skipped"])
async def test_each_state_can_be_the_first_and_is_the_pipelines(project: CiProject, state: str) -> None:
    status = (await say(project, await a_commit(project), state)).body
    assert status["status"] == state
    pipeline = await pipeline_of(project, status)
    assert pipeline["status"] == state
    jobs = f"{project.url}/pipelines/{pipeline['id']}"
    assert (await project.api.get(f"{jobs}/jobs")).body == []
    assert (await project.api.get(f"{jobs}/bridges")).body == []


async def test_a_status_of_somebody_else_is_not_continued(project: CiProject) -> None:
    sha = await a_commit(project)
    first = (await say(project, sha, "running")).body
    other = (await say(project, sha, "running", by=project.forge.root)).body
    assert other["id"] != first["id"]
    own = (await say(project, sha, "success")).body
    assert own["id"] not in (first["id"], other["id"])
    assert [one["id"] for one in await said(project, sha)] == [own["id"]]


async def test_ref_and_pipeline_choose_what_is_joined(project: CiProject) -> None:
    sha = await a_commit(project)
    for branch in ("another", "a/branch"):
        await project.api.post(f"{project.url}/repository/branches", {"branch": branch, "ref": sha})
    first = (await say(project, sha, "success", name="one")).body
    assert first["ref"] == "a/branch"  # the first branch that has the commit
    second = (await say(project, sha, "success", name="two", ref="another")).body
    assert (second["ref"], second["pipeline_id"] != first["pipeline_id"]) == ("another", True)
    newest = (await say(project, sha, "success", name="three")).body
    assert newest["pipeline_id"] == second["pipeline_id"]
    older = (await say(project, sha, "success", name="four", pipeline_id=first["pipeline_id"])).body
    assert (older["pipeline_id"], older["ref"]) == (first["pipeline_id"], "a/branch")
    by_ref = await said(project, sha, "ref=another&order_by=pipeline_id")
    assert [one["name"] for one in by_ref] == ["two", "three"]
    names = [one["name"] for one in await said(project, sha, f"pipeline_id={first['pipeline_id']}")]
    assert names == ["one", "four"]
    ordered = [one["pipeline_id"] for one in await said(project, sha, "order_by=pipeline_id&sort=desc")]
    assert ordered == sorted(ordered, reverse=True)
    for values in ({"pipeline_id": 999_999_999}, {"pipeline_id": first["pipeline_id"], "ref": "another"}):
        missing = await say(project, sha, "success", **values)
        told = {"message": "404 Pipeline for pipeline_id, sha and ref Not Found"}
        assert (missing.status, missing.body) == (404, told)
    page = await project.api.get(f"{project.url}/repository/commits/{sha}/statuses?per_page=3&page=2")
    assert (len(page.body), page.headers["X-Total"]) == (1, "4")
    await project.api.post(f"{project.url}/repository/tags", {"tag_name": "v1", "ref": sha}, expect=201)
    of_tag = (await say(project, sha, "success", ref="v1")).body
    assert (await pipeline_of(project, of_tag))["tag"] is True


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({}, {"error": "state is missing"}),
        ({"state": "nice"}, {"error": "state does not have a valid value"}),
        ({"state": "success", "coverage": "nan"}, {"error": "coverage is invalid"}),
        ({"state": "success", "coverage": "-inf"}, {"error": "coverage is invalid"}),
        ({"state": "success", "name": " "}, {"message": {"name": ["can't be blank"]}}),
        (
            {"state": "success", "target_url": "git://example.org"},
            {"message": {"target_url": ["is blocked: Only allowed schemes are http, https"]}},
        ),
        (
            {"state": "success", "target_url": "no address"},
            {"message": {"target_url": ["is blocked: Only allowed schemes are http, https"]}},
        ),
        (
            {"state": "success", "description": "x" * 256},
            {"message": {"description": ["is too long (maximum is 255 characters)"]}},
        ),
        ({"state": "success", "coverage": "much"}, {"error": "coverage is invalid"}),
        # These 3,000 bytes do not fit into an index.
        (
            {"state": "success", "ref": "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))},
            {"error": "ref is too long (maximum is 1023 characters)"},
        ),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    project: CiProject, values: dict[str, Any], body: dict[str, Any]
) -> None:
    refused = await project.api.post(f"{project.url}/statuses/main", values)
    assert (refused.status, refused.body) == (400, body)
    missing = await say(project, "0" * 40, "success")
    assert (missing.status, missing.body) == (404, {"message": "404 Commit Not Found"})
    listed = await project.api.get(f"{project.url}/repository/commits/{'0' * 40}/statuses")
    assert (listed.status, listed.body) == (404, {"message": "404 Commit Not Found"})


async def test_on_a_protected_branch_only_who_may_push_says_something(project: CiProject) -> None:
    sha = await a_commit(project, "main")
    refused = await say(project, sha, "success")
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    assert (await say(project, sha, "success", ref="refs/heads/main")).status == 403
    maintainer = await project.forge.new_member(project.id, Role.MAINTAINER, "maintainer")
    assert (await say(project, sha, "success", by=maintainer.api)).status == 201
    reporter = await project.forge.new_member(project.id, Role.REPORTER, "reporter")
    assert (await say(project, sha, "success", by=reporter.api)).status == 403


async def test_two_first_statuses_at_once_share_a_pipeline(project: CiProject) -> None:
    sha = await a_commit(project)
    made = await asyncio.gather(*(say(project, sha, "running", name=str(number)) for number in range(4)))
    assert [one.status for one in made] == [201] * 4
    assert len({one.body["pipeline_id"] for one in made}) == 1


async def test_python_gitlab_says_and_lists(project: CiProject) -> None:
    sha = await a_commit(project)

    def use() -> None:
        api = gitlab.Gitlab(project.forge.base, private_token=project.developer.token)
        there = api.projects.get(project.id).commits.get(sha)
        made = there.statuses.create({"state": "pending", "name": "danger", "description": "looks"})
        assert (made.status, made.author["id"]) == ("pending", project.developer.id)
        with pytest.raises(GitlabCreateError, match="Cannot transition status via :enqueue from :pending"):
            there.statuses.create({"state": "pending", "name": "danger"})
        assert there.statuses.create({"state": "success", "name": "danger"}).id == made.id
        assert [one.name for one in there.statuses.list(get_all=True)] == ["danger"]

    await asyncio.to_thread(use)


MAKE_OLD = """
    UPDATE jobs SET started_at = %(now)s - interval '7 days', contacted_at = %(now)s - interval '7 days'
    WHERE id = %(id)s
"""
LISTENING_SINCE_LAST_WEEK = """
    INSERT INTO runner_watch (looked_at, listening_since) VALUES (%(now)s, %(now)s - interval '8 days')
    ON CONFLICT (one) DO UPDATE SET looked_at = excluded.looked_at, listening_since = excluded.listening_since
"""


async def test_a_status_joins_the_pipeline_of_its_commit_and_no_runner_or_retry_touches_it(
    project: CiProject,
) -> None:
    text = "stages: [one, two]\nbuild: {stage: one, script: make}\nlast: {stage: two, script: make}\n"
    pipeline = await project.pipeline(text)
    status = (await say(project, pipeline["sha"], "skipped", name="outside", ref="topic")).body
    assert status["pipeline_id"] == pipeline["id"]
    taken = await say(project, pipeline["sha"], "success", name="build")
    assert (taken.status, taken.body) == (400, {"message": {"name": ["has already been taken"]}})
    jobs = await project.jobs(pipeline)
    assert sorted(jobs) == ["build", "last"]
    for action in ("retry", "play", "cancel", "erase"):
        assert (await project.api.post(f"{project.url}/jobs/{status['id']}/{action}")).status == 404
    assert (await project.api.get(f"{project.url}/jobs/{status['id']}")).status == 404
    await run(project.forge, jobs["build"]["id"])
    await happen(project.forge, jobs["build"]["id"], "drop", failure_reason="script_failure")
    assert await project.statuses(pipeline) == {"build": "failed", "last": "skipped", "outside": "skipped"}
    assert (await project.api.post(f"{project.url}/jobs/{jobs['build']['id']}/retry")).status == 201
    assert await project.statuses(pipeline) == {"build": "pending", "last": "created", "outside": "skipped"}
    everything = await said(project, pipeline["sha"])
    assert [one["name"] for one in everything] == ["last", "outside", "build"]
    assert [one["name"] for one in await said(project, pipeline["sha"], "stage=external")] == ["outside"]
    assert [one["name"] for one in await said(project, pipeline["sha"], "name=last")] == ["last"]


async def test_a_pipeline_is_retried_without_and_canceled_with_its_statuses(project: CiProject) -> None:
    pipeline = await project.pipeline()
    await say(project, pipeline["sha"], "failed", name="over")
    await say(project, pipeline["sha"], "running", name="at work")
    answer = await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")
    assert answer.body["status"] == "failed"
    assert await project.statuses(pipeline) == {"build": "canceled", "over": "failed", "at work": "canceled"}
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/retry")
    assert await project.statuses(pipeline) == {"build": "pending", "over": "failed", "at work": "canceled"}


async def test_a_merge_waits_for_the_statuses_of_its_head(project: CiProject) -> None:
    root, url = project.forge.root, f"{project.url}/merge_requests"
    assert (await root.put(project.url, {"only_allow_merge_if_pipeline_succeeds": True})).status == 200
    branch = new_name("proposed")
    sha = await commit(root, {"id": project.id}, branch, start_branch="main")
    wanted = {"source_branch": branch, "target_branch": "main", "title": "Wait"}
    iid = (await root.post(url, wanted)).body["iid"]

    async def detailed() -> str:
        return str((await root.get(f"{url}/{iid}")).body["detailed_merge_status"])

    await until(lambda: _is(detailed, "ci_must_pass"))
    for state, then in (
        ("running", "ci_still_running"),
        ("failed", "ci_must_pass"),
        ("success", "mergeable"),
    ):
        assert (await say(project, sha, state, name="gate")).status == 201
        assert await detailed() == then
        merged = await root.put(f"{url}/{iid}/merge")
        assert merged.status == (200 if state == "success" else 405), merged


async def test_a_status_is_what_a_merge_by_itself_may_wait_for(project: CiProject) -> None:
    root, url, branch = project.forge.root, f"{project.url}/merge_requests", new_name("proposed")
    sha = await commit(root, {"id": project.id}, branch, start_branch="main")
    assert (await say(project, sha, "running", name="gate")).status == 201
    wanted = {"source_branch": branch, "target_branch": "main", "title": "Wait"}
    iid = (await root.post(url, wanted)).body["iid"]

    async def shown(key: str) -> Any:
        return (await root.get(f"{url}/{iid}")).body[key]

    await until(lambda: _is(lambda: shown("merge_status"), "can_be_merged"))
    waiting = await root.put(f"{url}/{iid}/merge", {"merge_when_pipeline_succeeds": True})
    assert (waiting.status, waiting.body["state"]) == (200, "opened"), waiting
    assert (await say(project, sha, "success", name="gate")).status == 201
    await until(lambda: _is(lambda: shown("state"), "merged"))


async def _is(asked: Any, wanted: str) -> bool:
    return bool(await asked() == wanted)


async def test_what_is_said_of_a_merge_requests_pipeline_is_judged_by_its_source_branch(
    project: CiProject,
) -> None:
    root, branch = project.forge.root, new_name("proposed")
    text = "build: {script: echo, rules: [{if: $CI_MERGE_REQUEST_IID}]}\n"
    await project.commit(text, branch=branch, message="Ask for a pipeline")
    wanted = {"source_branch": branch, "target_branch": "main", "title": "Judge"}
    made = (await root.post(f"{project.url}/merge_requests", wanted)).body

    (pipeline,) = await root.until(f"{project.url}/merge_requests/{made['iid']}/pipelines")
    sha, ref = made["sha"], f"refs/merge-requests/{made['iid']}/head"
    assert (await say(project, sha, "running", name="one")).body["pipeline_id"] == pipeline["id"]
    assert (await say(project, sha, "running", name="two", ref=ref)).body["ref"] == ref
    assert (await root.post(f"{project.url}/protected_branches?name={branch}")).status == 201
    for values in ({}, {"ref": ref}, {"pipeline_id": pipeline["id"]}):
        refused = await say(project, sha, "success", name="one", **values)
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    nowhere = await say(project, "main", "success", ref=ref)
    assert (nowhere.status, nowhere.body) == (404, {"message": "404 References for commit Not Found"})


async def test_nobody_waits_for_the_runner_of_a_status_or_a_bridge(project: CiProject) -> None:
    """A status or a bridge may run for a week without any report."""
    status = (await say(project, await a_commit(project), "running")).body
    await project.commit("inner: {script: echo, when: manual, allow_failure: false}", path="child.yml")
    pipeline = await project.pipeline("child: {trigger: {include: child.yml, strategy: depend}}")
    bridge = (await project.bridges(pipeline))["child"]["id"]
    await until(lambda: _is(lambda: _status_of(project, pipeline), "running"))
    async with project.forge.database.transaction() as transaction:
        for job_id in (status["id"], bridge):
            await transaction.run(MAKE_OLD, id=job_id)
        await transaction.run(LISTENING_SINCE_LAST_WEEK)
    await upkeep.look_for_lost_jobs(project.forge.database, 3600, 60)
    assert await _status_of(project, pipeline) == "running"
    assert (await pipeline_of(project, status))["status"] == "running"


async def _status_of(project: CiProject, pipeline: dict[str, Any]) -> str:
    return (await project.statuses(pipeline))["child"]
