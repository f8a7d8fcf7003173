"""`POST /jobs/request`: which runner gets which job and when, and the description of the job."""

import asyncio
import time
from typing import Any

import aiohttp
import attrs
import pytest

from api_server.ci.pipelines import job_queries
from api_server.web.context import SERVICES
from tests.support.ci import ONE_JOB, CiProject, ci_project, run
from tests.support.forge import Forge
from tests.support.runner import Runner, a_runner, checksum, until_waiting
from tests.support.waiting import until, until_somebody_waits


async def test_the_payload_is_what_runners_read(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id, maximum_timeout=700)
    pipeline = await project.pipeline("build: {script: [make], tags: [], variables: {A: '1'}}")
    job = await runner.job(info={"version": "17.0", "features": {"cancel_gracefully": True}})
    payload = job.payload
    assert list(payload) == [
        "id", "token", "allow_git_fetch", "job_info", "git_info", "runner_info", "variables", "steps", "hooks", "image",
        "services", "artifacts", "cache", "credentials", "dependencies", "features",
    ]  # fmt: skip
    assert payload["job_info"] | {"project_name": ""} == {
        "id": job.id, "name": "build", "stage": "test", "project_id": project.id, "project_name": "",
    }  # fmt: skip
    sha = pipeline["sha"]
    host = forge.base.removeprefix("http://")
    assert payload["git_info"] == {
        "repo_url": f"http://gitlab-ci-token:{job.token}@{host}/{project.path}.git",
        "ref": "topic",
        "sha": sha,
        "before_sha": "0" * 40,
        "ref_type": "branch",
        "refspecs": [
            f"+{sha}:refs/pipelines/{pipeline['id']}",
            "+refs/heads/topic:refs/remotes/origin/topic",
        ],
        "depth": 20,
    }
    assert payload["runner_info"] == {"timeout": 700, "runner_session_url": None}
    assert payload["steps"] == [
        {"name": "script", "script": ["make"], "timeout": 700, "when": "on_success", "allow_failure": False}
    ]
    assert job.variables["CI_PROJECT_PATH"] == project.path
    assert job.variables["CI_COMMIT_SHA"] == sha
    assert job.variables["CI_CONFIG_PATH"] == ".gitlab-ci.yml"
    assert job.variables["CI_RUNNER_ID"] == str(runner.id)
    assert {one["key"]: one["masked"] for one in payload["variables"]}["CI_JOB_TOKEN"] is True
    own = await forge.anonymous.get("/job", headers={"JOB-TOKEN": job.token})
    assert (own.status, own.body["id"], own.body["runner"]["id"]) == (200, job.id, runner.id)
    assert own.body["runner_manager"]["system_id"] == "s_test"


@pytest.mark.parametrize(
    ("said", "depth"),
    [("5", 5), ("0", 0), ("007", 7), ("all", 20), ("", 20), ("9" * 25, 2**31 - 1), ("9" * 5000, 2**31 - 1)],
)
async def test_a_job_says_how_deep_it_is_fetched(
    forge: Forge, project: CiProject, said: str, depth: int
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline(f"build: {{script: [make], variables: {{GIT_DEPTH: '{said}'}}}}")
    git = (await runner.job()).payload["git_info"]
    assert git["depth"] == depth
    refs = ["+refs/heads/topic:refs/remotes/origin/topic"]
    everything = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
    assert git["refspecs"] == [
        f"+{pipeline['sha']}:refs/pipelines/{pipeline['id']}",
        *(refs if depth else everything),
    ]


async def test_without_a_job_it_is_204_at_once(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    answer = await runner.poll()
    assert (answer.status, answer.body) == (204, "")
    assert answer.headers["X-GitLab-Last-Update"] == answer.headers["X-Service-Last-Update"] != ""


async def test_a_waiting_runner_wakes_at_once_on_a_new_job(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    last = (await runner.poll()).headers["X-GitLab-Last-Update"]
    waiting = asyncio.create_task(runner.poll(last_update=last))
    await until_waiting(forge, runner)
    await project.pipeline()
    assert (await asyncio.wait_for(waiting, forge.settings.runner_poll_timeout / 2)).status == 201


async def test_a_wait_ends_with_204(forge: Forge, runner: Runner) -> None:
    with forge.changed_settings(runner_poll_timeout=1):
        began = time.monotonic()
        assert (await runner.poll(last_update="x")).status == 204
        assert time.monotonic() - began >= 0.9


async def test_a_server_that_shuts_down_sends_waiting_runners_home(new_forge) -> None:
    async with new_forge() as forge:
        runner = await a_runner(forge)
        waiting = asyncio.create_task(runner.poll(last_update="x"))
        await until_waiting(forge, runner)
        forge.server.app[SERVICES].shutdown.begin(5)
        assert (await asyncio.wait_for(waiting, forge.settings.runner_poll_timeout / 2)).status == 204


async def test_a_runner_that_hung_up_gets_no_job(forge: Forge, project: CiProject) -> None:
    """The job goes to the next runner that waits."""
    first, second = [await a_runner(forge, project_id=project.id) for _ in range(2)]
    polls = []
    for runner in (first, second):
        polls.append(asyncio.create_task(runner.poll(last_update="x")))
        await until_waiting(forge, runner)
    connections = forge.server.served.endpoint.connections  # type: ignore[attr-defined]
    before = len(connections)
    polls[0].cancel()
    await until(lambda: len(connections) < before)
    await project.pipeline()
    taken = await polls[1]
    assert taken.status == 201
    job = (await forge.anonymous.get("/job", headers={"JOB-TOKEN": taken.body["token"]})).body
    assert job["runner"]["id"] == second.id


@pytest.mark.parametrize("token", ["glrt-wrong", "", None])
async def test_a_wrong_token_is_403(forge: Forge, token: str | None) -> None:
    answer = await forge.anonymous.post("/jobs/request", {"token": token})
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


async def test_the_token_may_come_in_the_header(forge: Forge) -> None:
    runner = await a_runner(forge, tag_list=["nothing"], run_untagged=False)
    await forge.anonymous.post("/jobs/request", {}, headers={"RUNNER-TOKEN": runner.token}, expect=204)


async def test_200_concurrent_polls_hand_each_job_out_once(forge: Forge, project: CiProject) -> None:
    text = "".join(f"job{number}: {{script: 'true'}}\n" for number in range(50))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        crowd = attrs.evolve(forge, session=session)
        runners = [await a_runner(crowd, project_id=project.id) for _ in range(10)]
        polls = [
            asyncio.create_task(runners[number % 10].poll(last_update="x", system_id=f"s{number}"))
            for number in range(200)
        ]
        await until_waiting(forge, *runners, requests=200)
        pipeline = await project.pipeline(text)
        taken = [
            (await poll).body["id"] for _, poll in zip(range(50), asyncio.as_completed(polls), strict=False)
        ]
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
    assert sorted(taken) == sorted(job["id"] for job in (await project.jobs(pipeline)).values())
    assert set((await project.statuses(pipeline)).values()) == {"running"}


TAGGED = "build: {script: 'true', tags: [linux, big]}"


@pytest.mark.parametrize(
    ("runner", "text", "gets"),
    [
        ({"tag_list": ["linux", "big", "new"]}, TAGGED, True),
        ({"tag_list": ["linux"]}, TAGGED, False),
        ({}, TAGGED, False),
        ({"tag_list": ["linux"]}, "build: {script: 'true'}", True),
        ({"tag_list": ["linux"], "run_untagged": False}, "build: {script: 'true'}", False),
        ({"access_level": "ref_protected"}, "build: {script: 'true'}", False),
        ({"paused": True}, "build: {script: 'true'}", False),
    ],
)
async def test_which_jobs_a_runner_gets(
    forge: Forge, project: CiProject, runner: dict, text: str, gets: bool
) -> None:
    one = await a_runner(forge, project_id=project.id, **runner)
    await project.pipeline(text)
    assert ((await one.poll()).status == 201) is gets


async def test_protected_runners_get_jobs_of_protected_refs(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id, access_level="ref_protected")
    await project.pipeline(branch="main", by=forge.root)
    assert (await runner.poll()).status == 201


async def test_runners_of_a_project_and_of_a_group_stay_there(forge: Forge) -> None:
    group = await forge.group()
    inside, outside = await ci_project(forge, namespace_id=group["id"]), await ci_project(forge)
    of_group, of_project = (
        await a_runner(forge, group_id=group["id"]),
        await a_runner(forge, project_id=inside.id),
    )
    await outside.pipeline()
    assert [(await one.poll()).status for one in (of_group, of_project)] == [204, 204]
    await inside.pipeline()
    assert (await of_group.poll()).status == 201
    await inside.pipeline()
    assert (await of_project.poll()).status == 201


async def test_projects_take_turns(forge: Forge) -> None:
    """The project with the fewest running jobs is served first, so that a large pipeline does not block others."""
    group = (await forge.group())["id"]
    runner = await a_runner(forge, group_id=group)
    large, small = [await ci_project(forge, namespace_id=group) for _ in range(2)]
    await large.pipeline("a: {script: 'true'}\nb: {script: 'true'}\nc: {script: 'true'}\n")
    await small.pipeline("d: {script: 'true'}\n")
    names = [(await runner.job()).payload["job_info"]["name"] for _ in range(4)]
    assert names == ["a", "d", "b", "c"]


async def test_jobs_of_a_project_without_ci_wait(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline()
    await forge.root.put(project.url, {"builds_access_level": "disabled"})
    assert (await runner.poll()).status == 204


async def test_a_job_that_cannot_be_described_fails_and_the_next_is_taken(
    forge: Forge, project: CiProject
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline("a: {script: 'true'}\nb: {script: 'true'}\n")
    jobs = await project.jobs(pipeline)
    async with forge.database.transaction() as transaction:
        sealed_elsewhere = {"A": b"sealed under another key, long enough"}
        await job_queries.set_job_variables(transaction, jobs["a"]["id"], sealed_elsewhere)
    assert (await runner.job()).id == jobs["b"]["id"]
    broken = (await project.api.get(f"{project.url}/jobs/{jobs['a']['id']}")).body
    assert (broken["status"], broken["failure_reason"]) == ("failed", "data_integrity_failure")


async def test_jobs_of_who_was_blocked_meanwhile_fail(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    job = await project.job()
    other = await project.job(by=forge.root)
    await forge.root.post(f"/users/{project.developer.id}/block", expect=201)
    assert (await runner.job()).id == other["id"]
    shown = (await forge.root.get(f"{project.url}/jobs/{job['id']}")).body
    assert (shown["status"], shown["failure_reason"]) == ("failed", "user_blocked")


async def test_a_job_with_more_secrets_than_a_log_is_searched_for_fails(
    forge: Forge, project: CiProject
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    for number in range(14):  # of ten thousand bytes each
        value = f"{number:04}" + "s" * 9_996
        variable = {"key": f"SECRET{number}", "value": value, "masked": True}
        await forge.root.post(f"{project.url}/variables", variable, expect=201)
    pipeline = await project.pipeline("a: {script: 'true'}")
    assert (await runner.poll()).status == 204
    (job,) = (await project.jobs(pipeline)).values()
    assert (job["status"], job["failure_reason"]) == ("failed", "data_integrity_failure")
    await forge.root.delete(f"{project.url}/variables/SECRET0")
    await project.pipeline("a: {script: 'true'}")
    assert (await runner.poll()).status == 201


async def test_a_job_that_makes_a_release_is_for_runners_that_take_such_a_step(
    forge: Forge, project: CiProject
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    text = "build: {script: [make], release: {tag_name: v1, description: First}}"
    for features, taken in (({}, False), ({"multi_build_steps": True}, True)):
        pipeline = await project.pipeline(text)
        answer = await runner.poll(info={"features": features})
        (job,) = (await project.jobs(pipeline)).values()
        if taken:
            assert [step["name"] for step in answer.body["steps"]] == ["script", "release"]
            assert answer.body["steps"][1]["script"] == [
                'release-cli create --description "First" --tag-name "v1"'
            ]
        else:
            assert answer.status == 204
            assert (job["status"], job["failure_reason"]) == ("failed", "runner_unsupported")


async def test_variables_given_to_pipeline_and_job_reach_the_runner(forge: Forge, project: CiProject) -> None:
    runner: Runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline(
        "build: {script: 'true', when: manual, variables: {A: file, B: file, C: file}}",
        variables=[{"key": "B", "value": "pipeline"}, {"key": "C", "value": "pipeline"}],
    )
    job_id = (await project.jobs(pipeline))["build"]["id"]
    given = {"job_variables_attributes": [{"key": "C", "value": "play"}]}
    assert (await project.api.post(f"{project.url}/jobs/{job_id}/play", given)).status == 200
    variables = (await runner.job()).variables
    assert [variables[key] for key in "ABC"] == ["file", "pipeline", "play"]


async def test_a_job_already_started_is_nobody_elses(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    job = await project.job()
    await run(forge, job["id"])
    assert (await runner.poll()).status == 204


LOCK_PIPELINE = "SELECT FROM pipelines WHERE id = %(id)s FOR UPDATE"
#: Fails if another transaction has locked a job.
LOCK_JOBS = "SELECT FROM jobs WHERE pipeline_id = %(id)s FOR UPDATE NOWAIT"


async def test_a_hand_out_that_waits_for_the_pipeline_holds_no_job(forge: Forge, project: CiProject) -> None:
    """A request that cancels the job at this moment has locked the pipeline, and needs the job."""
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline("build: {script: 'true', variables: {CI_DEBUG_TRACE: 'true'}}")
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK_PIPELINE, id=pipeline["id"])
        taking = asyncio.create_task(runner.job())
        await until_somebody_waits(forge.database)
        await transaction.run(LOCK_JOBS, id=pipeline["id"])
    assert (await taking).variables["CI_DEBUG_TRACE"] == "true"


async def test_a_job_of_a_tag_knows_what_was_written_to_it(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(ONE_JOB, branch="main")
    runner = await a_runner(forge, project_id=project.id)
    for name, message in (("v1", "One\n\nin lines"), ("light", "")):
        tag = {"tag_name": name, "ref": "main"} | ({"message": message} if message else {})
        await forge.root.post(f"{project.url}/repository/tags", tag, expect=201)
        await project.api.post(f"{project.url}/pipeline", {"ref": name})
        variables = (await runner.job()).variables
        assert (variables["CI_COMMIT_TAG"], variables["CI_COMMIT_TAG_MESSAGE"]) == (name, message)


TWO_STAGES = """
stages: [build, test]
build:
  stage: build
  script: make
  artifacts: {paths: [out/], expire_in: 1 week}
test:
  stage: test
  script: make check
  variables: {GREETING: "hello $CI_JOB_NAME"}
"""


async def test_a_job_goes_from_request_to_success(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline(TWO_STAGES)
    build = await runner.job()
    assert (await project.statuses(pipeline)) == {"build": "running", "test": "created"}
    await build.log(b"made\n")
    assert (
        await build.upload(b"PK\5\6" + 18 * b"\0", artifact_type="archive", artifact_format="zip")
    ).status == 201
    answer = await build.update("success", output=checksum(b"made\n"))
    assert (answer.status, answer.body, answer.headers["Job-Status"]) == (200, "200", "success")
    test = await runner.job()
    assert test.variables["GREETING"] == "hello test"
    assert [one["name"] for one in test.payload["dependencies"]] == ["build"]
    await test.finish()
    assert await project.status(pipeline) == "success"
    log = await project.api.get(f"{project.url}/jobs/{build.id}/trace")
    assert (log.status, log.body) == (200, "made\n")

    shown = await project.api.until(
        f"{project.url}/jobs/{build.id}", lambda shown: len(shown["artifacts"]) == 2
    )
    assert shown["artifacts"] == [
        {"file_type": "archive", "size": 22, "filename": "artifacts.zip", "file_format": "zip"},
        {"file_type": "trace", "size": 5, "filename": "job.log", "file_format": "raw"},
    ]
    assert (await project.api.get(f"{project.url}/jobs/{build.id}/trace")).body == "made\n"


FILE = """
short: {script: make, timeout: 20 minutes}
plain: {script: make}
deep: {script: make, variables: {GIT_DEPTH: '3'}}
"""


def _told(payload: dict[str, Any]) -> dict[str, tuple[int, int, bool]]:
    depth, fetches = payload["git_info"]["depth"], payload["allow_git_fetch"]
    return {payload["job_info"]["name"]: (payload["runner_info"]["timeout"], depth, fetches)}


async def test_jobs_have_what_their_project_says_unless_they_say_otherwise(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    before = await project.pipeline(FILE)
    settings = {"build_timeout": 7200, "ci_default_git_depth": 0, "build_git_strategy": "clone"}
    changed = await forge.root.put(project.url, settings)
    assert {name: changed.body[name] for name in settings} == settings
    told: dict[str, Any] = {}
    for _ in range(3):
        told |= _told((await runner.job()).payload)
    # The fetch settings are those at the start of the job, and the timeout is the one at its creation.
    assert told == {"short": (1200, 0, False), "plain": (3600, 0, False), "deep": (3600, 3, False)}
    (plain,) = [job for name, job in (await project.jobs(before)).items() if name == "plain"]
    await forge.root.post(f"{project.url}/jobs/{plain['id']}/cancel")
    await forge.root.post(f"{project.url}/jobs/{plain['id']}/retry")
    assert _told((await runner.job()).payload) == {"plain": (7200, 0, False)}


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ({"build_timeout": 599}, {"build_timeout": ["needs to be between 10 minutes and 1 month"]}),
        ({"build_timeout": 2_629_746}, {"build_timeout": ["needs to be between 10 minutes and 1 month"]}),
        (
            {"ci_default_git_depth": 1001},
            {"ci_cd_settings.default_git_depth": ["must be less than or equal to 1000"]},
        ),
        (
            {"ci_default_git_depth": -1},
            {"ci_cd_settings.default_git_depth": ["must be greater than or equal to 0"]},
        ),
    ],
)
async def test_numbers_have_bounds(forge: Forge, sent: dict[str, int], problem: dict[str, Any]) -> None:
    project = await forge.project()
    for answer in (
        await forge.root.put(f"/projects/{project['id']}", sent),
        await forge.root.post("/projects", {"name": "bounds"} | sent),
    ):
        assert (answer.status, answer.body) == (400, {"message": problem})
