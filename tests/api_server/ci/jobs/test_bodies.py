"""What a job looks like (the document's Job table), and the job behind a token (row 4)."""

import asyncio

from tests.support.ci import ci_project, give_log, happen, run
from tests.support.forge import Forge

FAILING = "unit tests:\n  script: make test\n  tags: [linux, arm]\n  artifacts: {paths: [out]}\n"


def _shown(user):
    """A user as jobs show her."""
    return {
        "id": user["id"],
        "username": user["username"],
        "name": user["name"],
        "state": "active",
        "locked": False,
        "avatar_url": None,
        "web_url": user["web_url"],
        "created_at": user["created_at"],
        "bio": "",
        "location": "",
        "public_email": user["public_email"],
        "skype": "",
        "linkedin": "",
        "twitter": "",
        "website_url": "",
        "organization": "",
    }


def _reference(pipeline, project, status):
    """A pipeline as jobs show it."""
    return {
        "id": pipeline["id"],
        "iid": pipeline["iid"],
        "project_id": project.id,
        "sha": pipeline["sha"],
        "ref": "topic",
        "status": status,
        "source": "api",
        "created_at": pipeline["created_at"],
        "updated_at": pipeline["updated_at"],
        "web_url": f"{project.forge.base}/{project.path}/-/pipelines/{pipeline['id']}",
    }


async def test_a_pending_job_with_every_key_of_the_document(forge):
    project = await ci_project(forge)
    pipeline = await project.pipeline(FAILING)
    (job,) = (await project.api.get(f"{project.url}/jobs")).body
    answer = await project.api.get(f"{project.url}/jobs/{job['id']}")
    assert answer.body | {"queued_duration": 0} == job | {"queued_duration": 0}
    commit = job["commit"]
    assert commit["id"] == pipeline["sha"]
    assert commit["short_id"] == commit["id"][:8]
    assert (commit["title"], commit["message"]) == ("Set [ci skip]", "Set [ci skip]")
    assert commit["web_url"] == f"{project.forge.base}/{project.path}/-/commit/{commit['id']}"
    assert set(commit) >= {"id", "short_id", "title", "message", "author_name", "author_email", "created_at"}
    user = (await forge.root.get(f"/users/{project.developer.id}")).body
    assert job == {
        "id": job["id"],
        "status": "pending",
        "stage": "test",
        "name": "unit tests",
        "ref": "topic",
        "tag": False,
        "coverage": None,
        "allow_failure": False,
        "created_at": job["created_at"],
        "started_at": None,
        "finished_at": None,
        "erased_at": None,
        "duration": None,
        "queued_duration": job["queued_duration"],
        "user": _shown(user),
        "commit": commit,
        "pipeline": _reference(pipeline, project, "pending") | {"updated_at": job["pipeline"]["updated_at"]},
        "web_url": f"{forge.base}/{project.path}/-/jobs/{job['id']}",
        "project": {"ci_job_token_scope_enabled": True},
        "artifacts": [],
        "runner": None,
        "runner_manager": None,
        "artifacts_expire_at": None,
        "archived": False,
        "tag_list": ["arm", "linux"],
        "source": "api",
    }
    assert job["queued_duration"] >= 0


async def test_a_running_job_names_its_runner_and_counts_its_seconds(forge):
    project = await ci_project(forge)
    job = await project.job()
    await run(forge, job["id"])
    running = (await project.api.get(f"{project.url}/jobs/{job['id']}")).body
    assert running["status"] == "running"
    assert running["duration"] >= 0
    assert running["queued_duration"] >= 0
    assert running["runner"] | {"id": 0, "created_at": ""} == {
        "id": 0,
        "description": "a runner",
        "ip_address": None,
        "active": True,
        "paused": False,
        "is_shared": True,
        "runner_type": "instance_type",
        "name": None,
        "online": True,
        "created_at": "",
        "status": "online",
    }


async def test_a_failed_job_says_why_and_its_durations_stand_still(forge):
    """1.1: failure_reason is there exactly when the status is failed."""
    project = await ci_project(forge)
    job = await project.job()
    assert "failure_reason" not in job
    await run(forge, job["id"])
    await happen(forge, job["id"], "drop", failure_reason="script_failure")
    failed = (await project.api.get(f"{project.url}/jobs/{job['id']}")).body
    assert (failed["status"], failed["failure_reason"]) == ("failed", "script_failure")
    await asyncio.sleep(0.02)
    assert (await project.api.get(f"{project.url}/jobs/{job['id']}")).body == failed


async def test_failing_without_a_reason_is_an_unknown_failure(forge):
    """4.2, stamps."""
    project = await ci_project(forge)
    job = await project.job()
    await happen(forge, job["id"], "drop")
    assert (await project.api.get(f"{project.url}/jobs/{job['id']}")).body[
        "failure_reason"
    ] == "unknown_failure"


ARCHIVE = """
    INSERT INTO job_artifacts (project_id, job_id, file_type, file_format, filename, size, object_key, sha256,
        expire_at, created_at)
    VALUES (%(project_id)s, %(job_id)s, %(type)s, 'zip', %(filename)s, 1000, 'key', '', %(expire_at)s, %(now)s)
"""


async def test_artifacts_are_listed_and_the_archive_is_shown_until_it_expires(forge):
    """1.1: artifacts_file only with an archive that has not expired; the log is one of the artifacts."""
    project = await ci_project(forge)
    for expire_at, shown in ((None, True), ("2999-01-01", True), ("2001-01-01", False)):
        job = await project.job()
        await run(forge, job["id"])
        await happen(forge, job["id"], "success")
        await give_log(forge, job["id"], size=7)
        await forge.execute(
            ARCHIVE,
            project_id=project.id,
            job_id=job["id"],
            type="archive",
            filename="artifacts.zip",
            expire_at=expire_at,
        )
        found = (await project.api.get(f"{project.url}/jobs/{job['id']}")).body
        assert found["artifacts"] == [
            {"file_type": "archive", "size": 1000, "filename": "artifacts.zip", "file_format": "zip"},
            {"file_type": "trace", "size": 7, "filename": "job.log", "file_format": "raw"},
        ]
        assert found.get("artifacts_file") == ({"filename": "artifacts.zip", "size": 1000} if shown else None)
        assert ("artifacts_file" in found) == shown


async def test_the_job_behind_a_token_in_all_three_forms(forge):
    """Row 4 and the document's table of authentication."""
    project = await ci_project(forge)
    job = await project.job()
    token = await run(forge, job["id"])
    for options in (
        {"headers": {"JOB-TOKEN": token}},
        {"headers": {"Authorization": f"Bearer {token}"}},
        {"params": {"job_token": token}},
    ):
        answer = await forge.anonymous.get("/job", headers=options.get("headers", {})) if "headers" in options else (
            await forge.anonymous.get(f"/job?job_token={token}")
        )  # fmt: skip
        assert (answer.status, answer.body["id"], answer.body["status"]) == (200, job["id"], "running")
    assert (await forge.anonymous.get(f"/job?token={token}")).status == 200


async def test_a_job_token_ends_with_its_job(forge):
    """Row 4 and 4.6: 401 without a token, with an unknown one, and the moment the job has finished."""
    project = await ci_project(forge)
    job = await project.job()
    token = await run(forge, job["id"])
    refused = (401, {"message": "401 Unauthorized"})
    for path in ("/job", "/job/allowed_agents"):
        for headers in ({}, {"JOB-TOKEN": "fljob-unknown"}):
            answer = await forge.anonymous.get(path, headers=headers)
            assert (answer.status, answer.body) == refused
        assert (await forge.anonymous.get(path, headers={"JOB-TOKEN": token})).status == 200
    await happen(forge, job["id"], "success")
    for path in ("/job", "/job/allowed_agents"):
        answer = await forge.anonymous.get(path, headers={"JOB-TOKEN": token})
        assert (answer.status, answer.body) == refused


async def test_a_job_whose_user_is_gone_or_blocked_has_no_token(forge):
    """Row 5 and 4.6."""
    project = await ci_project(forge)
    token = await run(forge, (await project.job())["id"])
    await forge.execute("UPDATE users SET state = 'blocked' WHERE id = %(id)s", id=project.developer.id)
    assert (await forge.anonymous.get("/job", headers={"JOB-TOKEN": token})).status == 401
    await forge.execute("DELETE FROM users WHERE id = %(id)s", id=project.developer.id)
    assert (await forge.anonymous.get("/job", headers={"JOB-TOKEN": token})).status == 401


async def test_a_personal_token_has_no_job_and_wins_over_a_job_token(forge):
    """Rows 4 and 5: 404; 3.1: both together."""
    project = await ci_project(forge)
    token = await run(forge, (await project.job())["id"])
    for path in ("/job", "/job/allowed_agents"):
        for headers in ({}, {"JOB-TOKEN": token}):
            answer = await project.api.get(path, headers=headers)
            assert (answer.status, answer.body) == (404, {"message": "404 Job Not Found"})


async def test_a_job_token_opens_nothing_else(forge):
    """3.1: on other routes it is not looked at."""
    project = await ci_project(forge)
    token = await run(forge, (await project.job())["id"])
    answer = await forge.anonymous.get(f"{project.url}/jobs", headers={"JOB-TOKEN": token})
    assert answer.status == 401


async def test_archived_jobs_can_be_read_and_canceled_but_not_run_again_or_erased(forge: Forge):
    """4.6 and decision D4."""
    with forge.changed_settings(archive_builds_older_than=3600):
        project = await ci_project(forge)
        done, manual, pending = [await project.job_in(status) for status in ("success", "manual", "pending")]
        await forge.execute(
            "UPDATE jobs SET created_at = now() - interval '2 hours' WHERE project_id = %(id)s",
            id=project.id,
        )
        await give_log(forge, done["id"])
        assert (await project.api.get(f"{project.url}/jobs/{done['id']}")).body["archived"] is True
        assert {job["archived"] for job in (await project.api.get(f"{project.url}/jobs")).body} == {True}
        for job, action in ((done, "retry"), (done, "erase"), (manual, "play")):
            answer = await forge.root.post(f"{project.url}/jobs/{job['id']}/{action}")
            assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})
        assert (await project.api.post(f"{project.url}/jobs/{pending['id']}/cancel")).body[
            "status"
        ] == "canceled"
