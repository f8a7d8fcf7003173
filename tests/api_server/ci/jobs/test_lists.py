"""Jobs in lists and alone: selection, order and content, also through python-gitlab."""

import asyncio
import re

import gitlab
import pytest
from gitlab.exceptions import GitlabAuthenticationError, GitlabJobPlayError, GitlabJobRetryError

from api_server.ci.pipelines.states import STATUSES
from tests.support.ci import MANUAL_JOB, ci_project, give_log, happen, run
from tests.support.forge import Forge, new_name

NO_SCOPE = {"error": "scope does not have a valid value"}
MATRIX = "".join(f"job {number}:\n  script: echo\n" for number in range(5))
BRIDGE = "build:\n  script: echo\nother:\n  trigger: {project: nowhere/at-all}\n  when: manual\n"


@pytest.fixture(scope="session")
async def five(forge):
    """A project with five pending jobs."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(MATRIX)
    return project, pipeline


def ids(answer) -> list[int]:
    return [job["id"] for job in answer.body]


async def test_jobs_of_a_project_come_newest_first_with_the_retried_ones_and_without_bridges(forge):
    """Endpoint 1."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(BRIDGE)
    first = (await project.jobs(pipeline))["build"]["id"]
    await happen(forge, first, "drop")
    second = (await project.api.post(f"{project.url}/jobs/{first}/retry")).body["id"]
    assert ids(await project.api.get(f"{project.url}/jobs")) == [second, first]


async def test_jobs_of_a_pipeline_hide_retried_ones_unless_asked(forge):
    """Endpoint 2."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(BRIDGE)
    first = (await project.jobs(pipeline))["build"]["id"]
    await happen(forge, first, "drop")
    second = (await project.api.post(f"{project.url}/jobs/{first}/retry")).body["id"]
    where = f"{project.url}/pipelines/{pipeline['id']}/jobs"
    assert ids(await project.api.get(where)) == [second]
    assert ids(await project.api.get(f"{where}?include_retried=false")) == [second]
    assert ids(await project.api.get(f"{where}?include_retried=True")) == [second, first]
    refused = await project.api.get(f"{where}?include_retried=maybe")
    assert (refused.status, refused.body) == (400, {"error": "include_retried is invalid"})


async def test_bridges_of_a_pipeline(forge):
    """Endpoint 3: downstream_pipeline is null if not created; only bridges; the keys of a bridge."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(BRIDGE)
    answer = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/bridges?scope=manual")
    assert answer.headers["X-Total"] == "1"
    (bridge,) = answer.body
    assert set(bridge) == {
        "id", "status", "stage", "name", "ref", "tag", "coverage", "allow_failure", "created_at", "started_at",
        "finished_at", "erased_at", "duration", "queued_duration", "user", "commit", "pipeline", "web_url",
        "project", "archived", "downstream_pipeline",
    }  # fmt: skip
    assert (bridge["name"], bridge["status"], bridge["downstream_pipeline"]) == ("other", "manual", None)
    assert set(bridge["pipeline"]) >= {"created_at", "updated_at", "web_url"}
    assert (
        await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/bridges?scope=failed")
    ).body == []


@pytest.mark.parametrize("query", ["scope=pending", "scope[]=pending", "scope[]=failed&scope[]=pending"])
async def test_scope_is_a_text_or_a_list(five, query):
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs"):
        assert len((await project.api.get(f"{project.url}/{path}?{query}")).body) == 5
        assert (await project.api.get(f"{project.url}/{path}?scope[]=failed")).body == []


async def test_an_empty_scope_is_none(five):
    """As in GitLab."""
    project, pipeline = five
    for path in (f"{project.url}/jobs", f"{project.url}/pipelines/{pipeline['id']}/jobs"):
        answer = await project.api.request("GET", path, json={"scope": []})
        assert (answer.status, len(answer.body)) == (200, 5)


async def test_scope_as_a_hash_counts_by_its_values_in_the_projects_list_only(five):
    """Endpoints 1 and 2."""
    project, pipeline = five
    assert len((await project.api.get(f"{project.url}/jobs?scope[0]=pending&scope[1]=failed")).body) == 5
    for list_of in ("jobs", "bridges"):
        refused = await project.api.get(
            f"{project.url}/pipelines/{pipeline['id']}/{list_of}?scope[0]=pending"
        )
        assert (refused.status, refused.body) == (400, NO_SCOPE)


@pytest.mark.parametrize("query", ["scope=unknown", "scope[]=pending&scope[]=unknown", "scope[][a]=pending"])
async def test_an_unknown_scope_is_refused_in_all_three_lists(five, query):
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs", f"pipelines/{pipeline['id']}/bridges"):
        refused = await project.api.get(f"{project.url}/{path}?{query}")
        assert (refused.status, refused.body) == (400, NO_SCOPE)


async def test_all_thirteen_statuses_are_accepted_as_scope(five):
    """4.1 and decision D4."""
    project, _ = five
    assert len(STATUSES) == 13
    query = "&".join(f"scope[]={status}" for status in STATUSES)
    assert len((await project.api.get(f"{project.url}/jobs?{query}")).body) == 5


async def test_offset_pages_have_all_headers(five):
    """2.1: endpoints 1 to 3."""
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs"):
        answer = await project.api.get(f"{project.url}/{path}?per_page=2&page=2&scope[]=pending")
        assert len(answer.body) == 2
        assert {name: answer.headers[f"X-{name}"] for name in ("Page", "Next-Page", "Prev-Page", "Per-Page")} == {
            "Page": "2", "Next-Page": "3", "Prev-Page": "1", "Per-Page": "2"
        }  # fmt: skip
        assert (answer.headers["X-Total"], answer.headers["X-Total-Pages"]) == ("5", "3")
        assert re.findall(r'rel="(\w+)"', answer.headers["Link"]) == ["prev", "next", "first", "last"]
        assert "scope%5B%5D=pending" in answer.headers["Link"]


@pytest.mark.parametrize("query", ["", "&scope[]=pending", "&scope[]=pending&scope[]=running"])
async def test_keyset_walks_all_jobs_once_without_counting(five, query):
    """2.2; beyond GitLab also for the pipeline's jobs (decision D3)."""
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs"):
        url, found = f"{project.url}/{path}?pagination=keyset&per_page=2{query}", []
        while url:
            answer = await project.api.get(url)
            assert "X-Total" not in answer.headers
            found += ids(answer)
            following = re.fullmatch(r'<(.*)>; rel="next"', answer.headers.get("Link", ""))
            url = following[1] if following else ""
            assert not url.rpartition("&")[2].startswith("cursor=")
        assert found == sorted(found, reverse=True)
        assert len(set(found)) == len(found) == 5


@pytest.mark.parametrize("query", ["order_by=name&sort=asc", "order_by=id&sort=asc", "sort=asc"])
async def test_keyset_in_another_order_is_405_and_offset_passes_it_over(five, query):
    """2.2."""
    project, _ = five
    refused = await project.api.get(f"{project.url}/jobs?pagination=keyset&{query}")
    text = "Keyset pagination is not yet available for this type of request"
    assert (refused.status, refused.body) == (405, {"error": text})
    assert len((await project.api.get(f"{project.url}/jobs?{query}")).body) == 5


async def test_a_broken_cursor_is_400(five):
    project, _ = five
    refused = await project.api.get(f"{project.url}/jobs?pagination=keyset&cursor=broken")
    assert (refused.status, refused.body) == (400, {"error": "cursor is invalid"})


async def test_lists_of_pipelines_of_other_projects_are_404(five, forge):
    project, _ = five
    other = await ci_project(forge)
    pipeline = await other.pipeline()
    for path in ("jobs", "bridges", ""):
        answer = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/{path}".rstrip("/"))
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_ids_that_are_no_numbers_are_400(five):
    project, _ = five
    bad = {"jobs/x": "job_id", "pipelines/x/jobs": "pipeline_id", "pipelines/x/bridges": "pipeline_id"}
    for path, name in bad.items():
        answer = await project.api.get(f"{project.url}/{path}")
        assert (answer.status, answer.body) == (400, {"error": f"{name} is invalid"})


async def test_a_project_is_addressed_by_its_encoded_path_too(five):
    project, _ = five
    assert len((await project.api.get(f"/projects/{project.path.replace('/', '%2F')}/jobs")).body) == 5


async def test_the_list_of_jobs_is_limited_for_each_user(forge: Forge):
    """Endpoint 1: 429 with the text and Retry-After."""
    with forge.changed_settings(jobs_rate_limit=2):
        project = await ci_project(forge)
        answers = [await project.api.get(f"{project.url}/jobs") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        text = "This endpoint has been requested too many times. Try again later."
        assert answers[2].body == {"message": {"error": text}}
        assert 0 < int(answers[2].headers["Retry-After"]) <= 60
        other = await forge.user("other", admin=True)
        assert (await other.api.get(f"{project.url}/jobs")).status == 200


async def test_an_empty_list_is_one_page(forge):
    project = await forge.project(name=new_name("empty"))
    answer = await forge.root.get(f"/projects/{project['id']}/jobs")
    assert (answer.body, answer.headers["X-Total"], answer.headers["X-Total-Pages"]) == ([], "0", "1")


FAILING = "unit tests:\n  script: make test\n  tags: [linux, arm]\n  artifacts: {paths: [out]}\n"


def _shown(user):
    """Return a user in the format of jobs."""
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
    """Return a pipeline in the format of jobs."""
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
    """1.1: failure_reason exists exactly if the status is failed."""
    project = await ci_project(forge)
    job = await project.job()
    assert "failure_reason" not in job
    await run(forge, job["id"])
    await happen(forge, job["id"], "drop", failure_reason="script_failure")
    failed = (await project.api.get(f"{project.url}/jobs/{job['id']}")).body
    assert (failed["status"], failed["failure_reason"]) == ("failed", "script_failure")
    await asyncio.sleep(0.02)
    assert (await project.api.get(f"{project.url}/jobs/{job['id']}")).body == failed


async def test_texts_of_a_job_are_shown_as_they_were_written(forge):
    odd = 'say "hi" \\ é 😀 <&>'
    quoted = f"'{odd}'"
    project = await ci_project(forge)
    pipeline = await project.pipeline(
        f"stages: [{quoted}]\n{quoted}: {{stage: {quoted}, tags: [{quoted}], script: echo}}"
    )
    (listed,) = (await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/jobs")).body
    read = (await project.api.get(f"{project.url}/jobs/{listed['id']}")).body
    for job in (listed, read):
        assert (job["name"], job["stage"], job["tag_list"]) == (odd, odd, [odd])


async def test_failing_without_a_reason_is_an_unknown_failure(forge):
    """4.2, timestamps."""
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
    """Endpoint 4 and the document's table of authentication."""
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
    """Endpoint 4 and 4.6: 401 without a token, with an unknown one, and as soon as the job has finished."""
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
    """Endpoint 5 and 4.6."""
    project = await ci_project(forge)
    token = await run(forge, (await project.job())["id"])
    await forge.execute("UPDATE users SET state = 'blocked' WHERE id = %(id)s", id=project.developer.id)
    assert (await forge.anonymous.get("/job", headers={"JOB-TOKEN": token})).status == 401
    await forge.execute("DELETE FROM users WHERE id = %(id)s", id=project.developer.id)
    assert (await forge.anonymous.get("/job", headers={"JOB-TOKEN": token})).status == 401


async def test_a_personal_token_has_no_job_and_wins_over_a_job_token(forge):
    """Endpoints 4 and 5: 404; 3.1: both together."""
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


PIPELINE = """
build: {stage: build, script: make}
release: {stage: deploy, script: echo, when: manual, needs: []}
other: {stage: test, trigger: nowhere/at-all, when: manual, needs: []}
"""


def connected(project, **options):
    api = gitlab.Gitlab(project.forge.base, private_token=project.developer.token, **options)
    return api.projects.get(project.path)


async def test_a_pipeline_is_created_listed_canceled_retried_and_read(project):
    await project.commit(PIPELINE)

    def use() -> None:
        mine = connected(project)
        made = mine.pipelines.create({"ref": "topic", "variables": [{"key": "A", "value": "b"}]})
        assert made.project_id == project.id
        assert made.id in [one.id for one in mine.pipelines.list(ref="topic", status="pending")]
        assert mine.pipelines.latest(ref="topic").id == made.id
        assert [variable.key for variable in made.variables.list()] == ["A"]
        assert [job.name for job in made.jobs.list(scope="pending")] == ["build"]
        assert [job.name for job in made.jobs.list(scope=["manual", "pending"])] == ["release", "build"]
        assert [bridge.name for bridge in made.bridges.list()] == ["other"]
        assert [bridge.name for bridge in made.bridges.list(scope="failed")] == []
        assert made.cancel()["status"] == "canceled"
        assert made.retry()["status"] in ("pending", "running", "manual")
        names = [job.name for job in made.jobs.list(include_retried=True, get_all=True)]
        assert sorted(names) == ["build", "build", "release", "release"]

    await asyncio.to_thread(use)


async def test_a_job_is_read_canceled_retried_played_and_erased(project):
    pipeline = await project.pipeline(PIPELINE)
    jobs = await project.jobs(pipeline)

    def use() -> None:
        mine = connected(project)
        build = mine.jobs.get(jobs["build"]["id"])
        assert (build.status, build.pipeline["id"]) == ("pending", pipeline["id"])
        assert build.cancel()["status"] == "canceled"
        again = build.retry()
        assert again["id"] > build.id
        with pytest.raises(GitlabJobRetryError) as refused:
            build.retry()
        assert (refused.value.response_code, refused.value.error_message) == (
            403, "403 Forbidden - Job is not retryable"
        )  # fmt: skip
        release = mine.jobs.get(jobs["release"]["id"], lazy=True)
        release.play(post_data={"job_variables_attributes": [{"key": "TARGET", "value": "staging"}]})
        assert release.status == "pending"
        with pytest.raises(GitlabJobPlayError) as unplayable:
            release.play()
        assert unplayable.value.response_code == 400
        other = mine.jobs.get(jobs["release"]["id"])
        with pytest.raises(GitlabJobPlayError) as broken:
            other.play(job_variables_attributes=[{"key": "A", "value": "b"}])
        assert broken.value.response_code == 400

    await asyncio.to_thread(use)
    await run(project.forge, jobs["release"]["id"])
    await happen(project.forge, jobs["release"]["id"], "success")
    await give_log(project.forge, jobs["release"]["id"])

    def erase() -> None:
        job = connected(project).jobs.get(jobs["release"]["id"])
        job.erase()
        job.refresh()
        assert job.erased_at is not None

    await asyncio.to_thread(erase)


async def test_lists_are_walked_by_offset_and_by_keyset(forge):
    project = await ci_project(forge)
    text = "".join(f"job {number}:\n  script: echo\n" for number in range(7))
    await project.pipeline(text)

    def use() -> None:
        mine = connected(project)
        everything = [job.id for job in mine.jobs.list(get_all=True)]
        assert len(everything) == 7
        pages = mine.jobs.list(iterator=True, per_page=3)
        assert (pages.total, pages.total_pages, pages.current_page, pages.next_page) == (7, 3, 1, 2)
        assert [job.id for job in pages] == everything
        keyset = mine.jobs.list(
            iterator=True,
            pagination="keyset",
            order_by="id",
            sort="desc",
            per_page=2,
            scope=["pending", "failed"],
        )
        assert [job.id for job in keyset] == everything
        always = connected(project, pagination="keyset", order_by="id", per_page=2)
        assert [job.id for job in always.jobs.list(get_all=True)] == everything

    await asyncio.to_thread(use)


async def test_the_job_behind_a_token(project):
    job = await project.job()
    token = await run(project.forge, job["id"])

    def use() -> None:
        for client in (
            gitlab.Gitlab(project.forge.base, job_token=token),
            gitlab.Gitlab(project.forge.base, oauth_token=token),
        ):
            assert client.http_get("/job")["id"] == job["id"]
            assert client.http_get("/job/allowed_agents")["job"] == {"id": job["id"]}
        nobody = gitlab.Gitlab(project.forge.base)
        assert nobody.http_get("/job", query_data={"job_token": token})["id"] == job["id"]
        with pytest.raises(GitlabAuthenticationError):
            nobody.http_get("/job")

    await asyncio.to_thread(use)


async def test_lint(project):
    def use() -> None:
        mine = connected(project)
        assert mine.ci_lint.create({"content": MANUAL_JOB}).valid is True
        with pytest.raises(gitlab.exceptions.GitlabCiLintError):
            mine.ci_lint.validate({"content": "build: 1"})

    await asyncio.to_thread(use)
