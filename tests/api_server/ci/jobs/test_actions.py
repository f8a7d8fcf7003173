"""Cancel, retry, play and erase in every status (endpoints 8 to 11), and in two processes at the same time."""

import asyncio
import contextlib

import aiohttp
import pytest

from api_server.ci.jobs.queries import find_job
from api_server.ci.pipelines import transitions
from api_server.ci.pipelines.queries import find_pipeline
from api_server.state.database import REMEMBERED_FOR
from api_server.state.errors import NotFound
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, ci_project, give_log, happen, run
from tests.support.forge import Answer, Client, Forge
from tests.support.runner import a_runner
from tests.support.waiting import until, until_somebody_waits
from tests.support.zips import archive

UNPLAYABLE = {"message": "400 Bad request - Unplayable Job"}
NOT_RETRYABLE = {"message": "403 Forbidden - Job is not retryable"}
NOT_ERASABLE = {"message": "403 Forbidden - Job is not erasable!"}
MANUAL = "build:\n  script: echo\n  when: manual\n"
DELAYED = "build:\n  script: echo\n  when: delayed\n  start_in: 1 hour\n"

#: Status -> the status after cancel, and whether retry, play and erase are accepted.
TABLE = {
    "created": ("canceled", False, False, False),
    "waiting_for_resource": ("canceled", False, False, False),
    "preparing": ("canceled", False, False, False),
    "pending": ("canceled", False, False, False),
    "running": ("canceled", False, False, False),
    "canceling": ("canceling", True, False, False),
    "success": ("success", True, False, True),
    "failed": ("failed", True, False, True),
    "canceled": ("canceled", True, False, True),
    "skipped": ("skipped", False, False, True),
    "manual": ("canceled", False, True, False),
    "scheduled": ("canceled", False, True, False),
}


async def act(client: Client, job: dict, action: str, **options):
    return await client.post(f"/projects/{job['project_id']}/jobs/{job['id']}/{action}", **options)


async def in_status(project, status: str, text: str | None = None, *, log: bool = True) -> dict:
    job = await project.job_in(status, *([text] if text else []))
    if log:
        await give_log(project.forge, job["id"])
    return job | {"project_id": project.id}


@pytest.mark.parametrize("status", TABLE)
async def test_cancel(project, status):
    """4.3, cancel: always 201; unfinished jobs are canceled, finished ones do not change."""
    job = await in_status(project, status)
    answer = await act(project.api, job, "cancel")
    assert (answer.status, answer.body["status"]) == (201, TABLE[status][0])
    assert (answer.body["finished_at"] is not None) == (TABLE[status][0] in ("success", "failed", "canceled"))


@pytest.mark.parametrize("status", TABLE)
async def test_retry(project, status):
    """4.3, retry: 201 with a new pending job, or 403."""
    job = await in_status(project, status)
    answer = await act(project.api, job, "retry")
    if not TABLE[status][1]:
        assert (answer.status, answer.body) == (403, NOT_RETRYABLE)
        return
    assert answer.status == 201
    assert answer.body["id"] > job["id"]
    assert answer.body["user"]["id"] == project.developer.id
    nothing_yet = ("started_at", "finished_at", "duration", "erased_at", "runner", "coverage")
    assert {key: answer.body[key] for key in ("status", "name", "stage", "artifacts", *nothing_yet)} == {
        "status": "pending", "name": "build", "stage": "test", "artifacts": []
    } | dict.fromkeys(nothing_yet)  # fmt: skip
    assert answer.body["queued_duration"] >= 0
    old = (await project.api.get(f"{project.url}/jobs/{job['id']}")).body
    assert old["status"] == status
    again = await act(project.api, job, "retry")
    assert (again.status, again.body) == (403, NOT_RETRYABLE)


@pytest.mark.parametrize("status", TABLE)
async def test_play(project, status):
    """4.3, play: 200 with the same job, which is queued, or 400."""
    job = await in_status(project, status)
    answer = await act(project.forge.root, job, "play")
    if not TABLE[status][2]:
        assert (answer.status, answer.body) == (400, UNPLAYABLE)
        return
    assert (answer.status, answer.body["id"], answer.body["status"]) == (200, job["id"], "pending")
    assert answer.body["user"]["username"] == "root"
    assert [answer.body[key] for key in ("started_at", "finished_at", "duration")] == [None] * 3


@pytest.mark.parametrize("status", ["success", "failed", "canceled"])
@pytest.mark.parametrize("text", [MANUAL, DELAYED], ids=["manual", "delayed"])
async def test_play_of_a_manual_job_that_has_run_makes_a_fresh_copy(project, status, text):
    """4.3: play of `when: manual/delayed` after the end."""
    job = await in_status(project, status, text)
    answer = await act(project.api, job, "play")
    assert (answer.status, answer.body["status"]) == (200, "pending")
    assert answer.body["id"] > job["id"]
    assert (await act(project.api, job, "play")).body == UNPLAYABLE


@pytest.mark.parametrize("status", TABLE)
async def test_erase(project, status):
    """4.3, erase: 201 for finished jobs with a log or artifacts, 403 otherwise; the second time 403."""
    job = await in_status(project, status)
    answer = await act(project.api, job, "erase")
    if not TABLE[status][3]:
        assert (answer.status, answer.body) == (403, NOT_ERASABLE)
        return
    assert (answer.status, answer.body["status"], answer.body["artifacts"]) == (201, status, [])
    assert answer.body["erased_at"] is not None
    assert answer.body["artifacts_expire_at"] is None
    assert answer.body["download_url"] is None
    assert (await act(project.api, job, "erase")).body == NOT_ERASABLE


async def test_erase_of_a_finished_job_without_log_and_artifacts_is_refused(project):
    job = await in_status(project, "success", log=False)
    assert (await act(project.api, job, "erase")).body == NOT_ERASABLE


async def test_force_ends_the_waiting_for_after_script_and_is_for_maintainers(project):
    """Endpoint 8: force applies only to canceling; below Maintainer 403, even for a finished job."""
    canceling, done = await in_status(project, "canceling"), await in_status(project, "success")
    for job in (canceling, done):
        refused = await act(project.api, job, "cancel", json={"force": True})
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    forced = await act(project.forge.root, canceling, "cancel", json={"force": True})
    assert (forced.status, forced.body["status"]) == (201, "canceled")
    unchanged = await act(project.forge.root, done, "cancel", json={"force": True})
    assert (unchanged.status, unchanged.body["status"]) == (201, "success")


async def test_a_runner_that_knows_how_finishes_after_script_first(project):
    """4.2, cancel: a running job becomes canceling with such a runner, and canceled with the runner's report."""
    job = await project.job()
    await run(project.forge, job["id"], cancels_gracefully=True)
    answer = await act(project.api, job | {"project_id": project.id}, "cancel")
    assert (answer.status, answer.body["status"], answer.body["finished_at"]) == (201, "canceling", None)
    row = await happen(project.forge, job["id"], "success")
    assert row.status == "canceled"


async def test_variables_given_to_play_are_kept_encrypted_and_for_this_job_only(project):
    """Endpoint 11."""
    job = await in_status(project, "manual", MANUAL, log=False)
    variables = [{"key": "TARGET", "value": "staging"}, {"key": "TOKEN", "value": "s3cret"}]
    answer = await act(project.api, job, "play", json={"job_variables_attributes": variables})
    assert answer.status == 200, answer
    rows = await project.forge.database.rows(
        "SELECT key, value FROM job_variables WHERE job_id = %(id)s", id=job["id"]
    )
    vault = project.forge.server.app[SERVICES].vault
    assert {row.key: vault.decrypt(row.value) for row in rows} == {"TARGET": "staging", "TOKEN": "s3cret"}
    assert all(b"s3cret" not in row.value for row in rows)


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ([{"value": "x"}], "job_variables_attributes[0][key] is missing"),
        ([{"key": "A", "value": "x"}, {"key": "B"}], "job_variables_attributes[1][value] is missing"),
        (["key", "value"], "job_variables_attributes[0] is invalid"),
    ],
)
async def test_variables_of_the_wrong_shape_are_refused_and_the_job_stays_manual(project, variables, error):
    """Endpoint 11, and clients 1.3: the broken query of python-gitlab is 400, not 500."""
    job = await in_status(project, "manual", MANUAL, log=False)
    answer = await act(project.api, job, "play", json={"job_variables_attributes": variables})
    assert (answer.status, answer.body) == (400, {"error": error})
    assert (await project.api.get(f"{project.url}/jobs/{job['id']}")).body["status"] == "manual"
    url = f"{project.url}/jobs/{job['id']}/play?job_variables_attributes=key&job_variables_attributes=value"
    assert (await project.api.post(url)).status == 400


async def test_retry_of_a_manual_job_does_not_wait_for_play(project):
    """4.4."""
    job = await in_status(project, "failed", MANUAL)
    assert (await act(project.api, job, "retry")).body["status"] == "pending"


async def test_bridges_are_404_but_for_retry_and_play(project):
    """Endpoints 6, 8 and 10, and 4.3 on bridges."""
    pipeline = await project.pipeline(
        "other:\n  trigger: {project: nowhere/at-all}\n  when: manual\nbuild:\n  script: echo\n"
    )
    bridge = (await project.bridges(pipeline))["other"]
    where = f"{project.url}/jobs/{bridge['id']}"
    missing = {"message": "404 Not found"}
    assert (await project.api.get(where)).body == missing
    for action in ("cancel", "erase"):
        assert (await project.api.post(f"{where}/{action}")).body == missing
    assert (await project.api.post(f"{where}/retry")).body == NOT_RETRYABLE
    played = await project.api.post(f"{where}/play")
    assert (played.status, played.body["id"], played.body["downstream_pipeline"]) == (200, bridge["id"], None)
    assert "runner" not in played.body


@pytest.mark.parametrize("action", ["cancel", "retry", "play", "erase"])
async def test_a_job_that_goes_while_something_is_done_to_it_is_not_there(forge: Forge, action: str) -> None:
    project = await ci_project(forge)
    pipeline = await project.pipeline()
    (job,) = (await project.jobs(pipeline)).values()
    async with forge.database.transaction() as transaction:
        await transitions.delete_pipeline(transaction, pipeline["id"])
        asked = asyncio.create_task(forge.root.post(f"{project.url}/jobs/{job['id']}/{action}"))
        await until_somebody_waits(forge.database)
    answer = await asked
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_no_duration_is_negative_where_clocks_differ(forge):
    """The clock was set back while the job waited and ran, or another machine's is slow."""
    project = await ci_project(forge)
    job = await project.job()
    await run(forge, job["id"])
    path = f"{project.url}/jobs/{job['id']}"
    for ended in ("NULL", "started_at - interval '1 hour'"):
        await forge.execute(
            "UPDATE jobs SET queued_at = %(now)s::timestamptz + interval '2 days', "
            f"started_at = %(now)s::timestamptz + interval '1 day', finished_at = {ended} WHERE id = %(id)s",
            id=job["id"],
        )
        shown = (await project.api.get(path)).body
        assert (shown["duration"], shown["queued_duration"]) == (0, 0)
    await forge.execute(
        "UPDATE pipelines SET started_at = created_at - interval '1 day' WHERE id = %(id)s",
        id=job["pipeline"]["id"],
    )
    shown = (await project.api.get(f"{project.url}/pipelines/{job['pipeline']['id']}")).body
    assert (shown["duration"], shown["queued_duration"]) == (None, 0)


#: Routes that read a job, and routes that change it.
READS = ("", "/trace", "/artifacts", "/artifacts/out.txt")
ACTIONS = ("cancel", "retry", "play", "erase", "artifacts/keep")
ROUNDS = 10


async def finished_job(forge: Forge) -> tuple[CiProject, int, int]:
    """Return a project, and the ids of a pipeline and of its job, which has a log and an archive."""
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline()
    job = await runner.job()
    await job.log(b"a log\n")
    assert (await job.upload(archive(**{"out.txt": b"out\n"}))).status == 201
    await job.finish()
    return project, pipeline["id"], job.id


async def reads(client: Client, url: str) -> list[int]:
    return [(await client.get(url + path)).status for path in READS]


async def test_an_erased_job_has_no_log_and_no_artifacts_anywhere(two_forges: tuple[Forge, Forge]) -> None:
    one, other = two_forges
    project, _, job_id = await finished_job(one)
    url = f"{project.url}/jobs/{job_id}"
    assert await reads(other.root, url) == [200] * 4
    assert (await one.root.post(f"{url}/erase")).status == 201
    assert await reads(other.root, url) == [200, 404, 404, 404]
    assert (await other.root.get(url)).body["erased_at"] is not None


async def test_a_job_goes_with_its_pipeline_everywhere_at_once(two_forges: tuple[Forge, Forge]) -> None:
    one, other = two_forges
    project, pipeline_id, job_id = await finished_job(one)
    url = f"{project.url}/jobs/{job_id}"
    assert await reads(other.root, url) == [200] * 4
    assert (await one.root.delete(f"{project.url}/pipelines/{pipeline_id}")).status == 204
    assert await reads(other.root, url) == [404] * 4
    for action in ACTIONS:
        answer = await other.root.post(f"{url}/{action}")
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    for path in ("", "/jobs", "/bridges"):
        answer = await other.root.get(f"{project.url}/pipelines/{pipeline_id}{path}")
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert (await other.root.get(f"{project.url}/jobs")).body == []


async def test_a_job_goes_with_its_project_everywhere_at_once(two_forges: tuple[Forge, Forge]) -> None:
    """The other process may cache the project for less than a second, but nothing that is in it."""
    one, other = two_forges
    project, pipeline_id, job_id = await finished_job(one)
    url = f"{project.url}/jobs/{job_id}"
    assert await reads(other.root, url) == [200] * 4
    assert (await one.root.delete(project.url)).status == 202
    assert await reads(other.root, url) == [404] * 4
    assert [(await other.root.post(f"{url}/{action}")).status for action in ACTIONS] == [404] * 5
    assert (await other.root.get(f"{project.url}/pipelines/{pipeline_id}/jobs")).status == 404
    gone = (404, {"message": "404 Project Not Found"})
    listed = await other.root.get(f"{project.url}/jobs")
    assert (listed.status, listed.body) in (gone, (200, []))
    await asyncio.sleep(REMEMBERED_FOR)
    listed = await other.root.get(f"{project.url}/jobs")
    assert (listed.status, listed.body) == gone


async def test_what_a_removed_project_leaves_for_a_while_is_not_found(new_forge) -> None:
    """The other process may cache the project, and the task that removes pipelines and jobs takes its time."""
    async with new_forge(work=False) as forge:
        project, pipeline_id, job_id = await finished_job(forge)
        assert (await forge.root.delete(project.url)).status == 202
        assert await forge.database.value("SELECT count(*) FROM jobs") == 1
        assert await find_job(forge.database, project.id, job_id) is None
        with pytest.raises(NotFound):
            await find_pipeline(forge.database, project.id, pipeline_id)


async def test_reading_a_job_while_it_is_deleted_gives_all_of_it_or_404(
    two_forges: tuple[Forge, Forge],
) -> None:
    one, other = two_forges
    project = await ci_project(one)
    for _ in range(ROUNDS):
        pipeline = await project.pipeline()
        (job,) = (await project.jobs(pipeline)).values()
        where = f"{project.url}/pipelines/{pipeline['id']}"
        stop = asyncio.Event()
        seen: list[set[int]] = []
        readers = [
            asyncio.create_task(_read(client, path, expected, stop, seen))
            for client in (one.root, other.root)
            for path, expected in (
                (f"{project.url}/jobs/{job['id']}", job["id"]),
                (where, pipeline["id"]),
                (f"{where}/jobs", [job["id"]]),
            )
            for _ in range(2)
        ]
        await _until_seen(seen, [{200}] * len(readers))
        assert (await one.root.delete(where)).status == 204
        await _until_seen(seen, [{200, 404}] * len(readers))
        stop.set()
        await asyncio.gather(*readers)


async def _until_seen(seen: list[set[int]], expected: list[set[int]]) -> None:
    await until(lambda: seen == expected)


async def _read(
    client: Client, path: str, expected: int | list[int], stop: asyncio.Event, all_seen: list[set[int]]
) -> None:
    """Read again and again until the event is set, and check the answers; add the statuses to a set of `all_seen`."""
    seen: set[int] = set()
    all_seen.append(seen)
    while not stop.is_set():
        answer = await client.get(path)
        seen.add(answer.status)
        if answer.status == 200:
            assert _ids(answer) in (expected, []), answer
        else:
            assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


def _ids(answer: Answer) -> int | list[int]:
    """Return the id of an entity, or the ids in a list (which is empty at the end)."""
    return [one["id"] for one in answer.body] if isinstance(answer.body, list) else answer.body["id"]


async def test_a_log_that_is_erased_while_it_is_read_is_whole_or_cut_off(
    two_forges: tuple[Forge, Forge],
) -> None:
    one, other = two_forges
    log = b"a line of the log\n" * 50_000
    for _ in range(ROUNDS):
        project = await ci_project(one)
        runner = await a_runner(one, project_id=project.id)
        await project.pipeline()
        job = await runner.job()
        await job.log(log)
        await job.finish()
        url = f"{project.url}/jobs/{job.id}"
        reading = [asyncio.create_task(_read_log(other, f"{url}/trace")) for _ in range(3)]
        await asyncio.sleep(0.005)
        assert (await one.root.post(f"{url}/erase")).status == 201
        assert set(await asyncio.gather(*reading)) <= {log.decode(), None}


async def _read_log(forge: Forge, path: str) -> str | None:
    """Return the log, or None if it no longer exists or the connection ends too early."""
    with contextlib.suppress(aiohttp.ClientError):
        answer = await forge.root.get(path)
        if answer.status == 200:
            return str(answer.body)
        assert answer.status == 404
    return None
