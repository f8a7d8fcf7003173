"""Area 1: actions on jobs, their logs, and the job of a token."""

from typing import Any

import pytest

from tests.support.ci import MANUAL_JOB, give_log
from tests.support.forge import Client, SharedForges

from .pipelines import Ci
from .statements import says


@says(
    "endpoint 4",
    "| 4 | GET `/job` | none; authenticated by a job token | Job that generated the token |",
    "| Job token | header `Authorization: Bearer <JOB_TOKEN>`, or header `JOB-TOKEN: <JOB_TOKEN>`, or query parameter"
    " `job_token=<JOB_TOKEN>` | `GET /job` (all three forms); `GET /job/allowed_agents` (header `JOB-TOKEN` and query"
    " parameter shown); must be called from within a CI job |",
    "Identify the job behind a job token and the agents that job may use.",
)
async def test_the_job_behind_a_token(ci: Ci) -> None:
    running = ci.taken["running"]
    stranger = ci.forge.anonymous
    for headers, query in (
        ({"Authorization": f"Bearer {running.token}"}, ""),
        ({"JOB-TOKEN": running.token}, ""),
        ({}, f"?job_token={running.token}"),
    ):
        answer = await stranger.get(f"/job{query}", headers=headers)
        assert (answer.status, answer.body["id"]) == (200, running.id)
    over = await stranger.get("/job", headers={"JOB-TOKEN": ci.taken["finished"].token})
    assert over.status == 401


@says(
    "endpoint 5",
    "| 5 | GET `/job/allowed_agents` | `CI_JOB_TOKEN` string required (the job token, sent in header or as query"
    " parameter `job_token`) | Allowed agents response |",
    "| allowed_agents | array of {id: integer, config_project: {id: integer, description: string or null, name: string,"
    " name_with_namespace: string, path: string, path_with_namespace: string, created_at: timestamp}} |",
    "| job | {id: integer} |",
    "| pipeline | {id: integer} |",
    "| project | {id: integer, groups: array of {id: integer}} |",
    "| user | {id, name, username, state, avatar_url, web_url} |",
)
async def test_the_agents_that_a_job_may_use(ci: Ci) -> None:
    made = await ci.forge.root.post(f"{ci.url}/cluster_agents", {"name": "agent"})
    token = ci.taken["running"].token
    for headers, query in (({"JOB-TOKEN": token}, ""), ({}, f"?job_token={token}")):
        shown = (await ci.forge.anonymous.get(f"/job/allowed_agents{query}", headers=headers)).body
        (agent,) = shown["allowed_agents"]
        assert agent["id"] == made.body["id"]
        assert set(agent["config_project"]) >= {
            "id", "description", "name", "name_with_namespace", "path", "path_with_namespace", "created_at",
        }  # fmt: skip
        assert shown["job"]["id"] == ci.taken["running"].id
        assert shown["pipeline"]["id"] == ci.pipeline["id"]
        assert (shown["project"]["id"], shown["project"]["groups"]) == (ci.project.id, [])
        assert set(shown["user"]) >= {"id", "name", "username", "state", "avatar_url", "web_url"}


@says(
    "tiers",
    "Tier availability: job list/read/cancel/retry/erase/play, remote mirrors and invitations: all tiers; `GET"
    " /job/allowed_agents`: Premium and Ultimate;",
)
async def test_which_tiers_have_them(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    project = await forge.project()
    for rest in ("jobs", "remote_mirrors", "invitations"):
        assert (await forge.root.get(f"/projects/{project['id']}/{rest}")).status == 200
    for verb in ("cancel", "retry", "erase", "play"):
        assert (await forge.root.post(f"/projects/{project['id']}/jobs/1/{verb}")).status == 404


@says(
    "endpoint 7",
    "| 7 | GET `/projects/:id/jobs/:job_id/trace` | `id`, `job_id` required | 200 with the job log; 404 |",
    "| 7 job trace | 200 | log served | the log |",
    "| 7 job trace | 404 | job does not exist or has no log | |",
)
async def test_the_log_of_a_job(ci: Ci) -> None:
    served = await ci.project.api.get(f"{ci.url}/jobs/{ci.jobs['finished']}/trace")
    assert (served.status, served.body) == (200, "hello\n")
    for job in (ci.jobs["manual"], 999_999):
        assert (await ci.project.api.get(f"{ci.url}/jobs/{job}/trace")).status == 404


@says(
    "endpoint 8",
    "| any job of the project | POST cancel | job exists | `canceled` | response shows `finished_at` null in the"
    " example |",
    "| 8 | POST `/projects/:id/jobs/:job_id/cancel` | `id`, `job_id` required | Job |",
)
async def test_a_job_is_canceled(ci: Ci) -> None:
    path = await ci.another("pending")
    answer = await ci.project.api.post(f"{path}/cancel")
    assert (answer.status, answer.body["status"]) == (201, "canceled")


@says(
    "endpoint 9",
    "| job | POST retry | job exists | `pending` | response has `started_at`, `finished_at`, `duration` null; since"
    " release 17.0 trigger jobs are supported |",
    "| 9 | POST `/projects/:id/jobs/:job_id/retry` | `id`, `job_id` required | Job |",
)
async def test_a_job_is_retried(ci: Ci) -> None:
    path = await ci.another("failed")
    answer = await ci.project.api.post(f"{path}/retry")
    assert (answer.status, answer.body["status"]) == (201, "pending")
    assert [answer.body[name] for name in ("started_at", "finished_at", "duration")] == [None] * 3
    trigger = "build: {trigger: {include: .gitlab-ci.yml}}\n"
    pipeline = await ci.project.pipeline(trigger, branch="triggers")
    (bridge,) = (await ci.project.bridges(pipeline)).values()
    async with ci.forge.database.transaction() as transaction:
        await transaction.run("UPDATE jobs SET status = 'failed' WHERE id = %(id)s", id=bridge["id"])
    again = await ci.project.api.post(f"{ci.url}/jobs/{bridge['id']}/retry")
    assert (again.status, again.body["name"]) == (201, "build")


@says(
    "endpoint 10",
    "| finished job (e.g. `failed`) | POST erase | job exists | status unchanged | job artifacts and log removed,"
    " `erased_at` set |",
    "| 10 | POST `/projects/:id/jobs/:job_id/erase` | `id`, `job_id` required | Job with `erased_at` set |",
)
async def test_a_job_is_erased(ci: Ci) -> None:
    path = await ci.another("failed")
    await give_log(ci.forge, int(path.rpartition("/")[2]))
    answer = await ci.project.api.post(f"{path}/erase")
    assert (answer.status, answer.body["status"], answer.body["artifacts"]) == (201, "failed", [])
    assert answer.body["erased_at"] is not None
    assert answer.body["download_url"] is None
    assert (await ci.project.api.get(f"{path}/trace")).status == 404


@says(
    "endpoint 11",
    "| `manual` | POST play | job is in `manual` | `pending` | optional custom variables become available to the job;"
    " `started_at`, `finished_at`, `duration` null |",
    "| 11 | POST `/projects/:id/jobs/:job_id/play` | `id`, `job_id` required; `job_variables_attributes` array of"
    " objects, optional, each with `key` string and `value` string, sent as a JSON body | Job |",
)
async def test_a_manual_job_is_played(ci: Ci) -> None:
    path = await ci.another("manual", text=MANUAL_JOB)
    given = {"job_variables_attributes": [{"key": "DEPTH", "value": "7"}]}
    answer = await ci.project.api.post(f"{path}/play", given)
    assert (answer.status, answer.body["status"]) == (200, "pending")
    assert [answer.body[name] for name in ("started_at", "finished_at", "duration")] == [None] * 3
    taken = await ci.runner.job()
    while taken.id != answer.body["id"]:  # other pipelines of this file may have waited before it
        taken = await ci.runner.job()
    assert taken.variables["DEPTH"] == "7"
    refused = await ci.project.api.post(f"{path}/play")
    assert refused.status == 400


@says(
    "jobs",
    "List jobs of a project or pipeline, list trigger (bridge) jobs of a pipeline, read one job, read a job log,"
    " cancel, retry, erase, and start a manual job.",
)
@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("GET", "/trace"),
        *(("POST", f"/{verb}") for verb in ("cancel", "retry", "erase", "play")),
    ],
)
async def test_a_job_belongs_to_its_project(ci: Ci, method: str, rest: str) -> None:
    async def ask(client: Client, project: Any, job: Any) -> int:
        return (await client.request(method, f"/projects/{project}/jobs/{job}{rest}")).status

    other = await ci.forge.project()
    assert await ask(ci.forge.root, other["id"], ci.jobs["finished"]) == 404
    assert await ask(ci.forge.root, ci.project.id, 999_999) == 404
    assert await ask(ci.forge.root, ci.project.id, "x") in (400, 404)


@says(
    "jobs",
    "Archived jobs cannot be deleted with the API; artifacts and logs of jobs completed before a given date can be"
    " removed.",
)
async def test_jobs_are_not_deleted(ci: Ci) -> None:
    """Removal by operators is tested in `tests/api_server/ci/runners/`."""
    answer = await ci.forge.root.delete(f"{ci.url}/jobs/{ci.jobs['finished']}")
    assert (answer.status, "DELETE" in answer.headers["Allow"]) == (405, False)
