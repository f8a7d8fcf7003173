"""Jobs and pipelines through python-gitlab, as its users call it."""

import asyncio

import gitlab
import pytest
from gitlab.exceptions import GitlabAuthenticationError, GitlabJobPlayError, GitlabJobRetryError

from tests.support.ci import MANUAL_JOB, ci_project, give_log, happen, run

PIPELINE = """
build: {stage: build, script: make}
release: {stage: deploy, script: echo, when: manual, needs: []}
other: {stage: test, trigger: nowhere/at-all, when: manual, needs: []}
"""


@pytest.fixture(scope="session")
async def project(forge):
    return await ci_project(forge)


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
