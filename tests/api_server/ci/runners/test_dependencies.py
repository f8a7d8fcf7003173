"""Jobs that get artifacts of other pipelines and projects: which ones, and with whose rights."""

from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until
from tests.support.zips import archive

ZIP = archive(out=b"made there\n")
NEWER = archive(out=b"newer\n")
BUILD = "build: {script: x, artifacts: {paths: [out]}}"
MISSING = "missing_dependency_failure"


@attrs.frozen
class Worker:
    """A project with a runner of its own."""

    project: CiProject
    runner: Runner

    async def makes(
        self, content: bytes = ZIP, text: str = BUILD, state: str = "success", **fields: str
    ) -> int:
        """Run a pipeline of one job, which uploads this. Return the job's id."""
        await self.project.pipeline(text)
        job = await self.runner.job()
        if content:
            assert (await job.upload(content, **fields)).status == 201
        await job.finish(state)
        return job.id

    async def asks(self, *needs: str, **values: Any) -> RunningJob | str:
        """Run a pipeline with one job that has these needs. Return it, or the reason why it has failed without
        running."""
        text = f"use:\n  script: x\n  variables: {{EMPTY: ''}}\n  needs: [{', '.join(needs)}]\n"
        pipeline = await self.project.pipeline(text, **values)
        return await self.next(pipeline)

    async def next(self, pipeline: dict[str, Any]) -> RunningJob | str:
        answer = await self.runner.poll()
        if answer.status == 201:
            return RunningJob(self.project.forge.anonymous, answer.body)
        (job,) = (await self.project.jobs(pipeline)).values()
        return str(job["failure_reason"])


async def worker(forge: Forge, **values: Any) -> Worker:
    project = await ci_project(forge, **values)
    return Worker(project, await a_runner(forge, project_id=project.id))


async def let_in(there: CiProject, here: CiProject) -> None:
    path = f"{there.url}/job_token_scope/allowlist"
    await there.forge.root.post(path, {"target_project_id": here.id}, expect=201)


def of(there: CiProject, job: str = "build", ref: str = "topic") -> str:
    return f"{{project: {there.path}, ref: {ref}, job: {job}, artifacts: true}}"


def handed_over(job: RunningJob | str) -> list[int] | str:
    """Return the ids of the jobs whose archives a job gets, or the reason why it failed."""
    return job if isinstance(job, str) else [one["id"] for one in job.payload["dependencies"]]


async def download(job: RunningJob, dependency: int) -> tuple[int, bytes]:
    url = f"{job.client.base}/api/v4/jobs/{dependency}/artifacts"
    async with job.client.session.get(url, headers={"JOB-TOKEN": job.token}) as answer:
        return answer.status, await answer.read()


@pytest.fixture
async def here(forge: Forge) -> Worker:
    return await worker(forge)


@pytest.fixture
async def there(forge: Forge) -> Worker:
    return await worker(forge)


@pytest.fixture
async def known(here: Worker, there: Worker) -> Worker:
    """The project `there`, whose artifacts the developer of `here` may read, and therefore her jobs too."""
    await there.project.forge.member("projects", there.project.id, here.project.developer, Role.REPORTER)
    await let_in(there.project, here.project)
    return there


async def test_the_last_success_of_a_job_of_another_project_is_handed_over(
    here: Worker, known: Worker
) -> None:
    assert handed_over(await here.asks(of(known.project))) == MISSING
    await known.makes()
    newer = await known.makes(NEWER)
    await known.makes(state="failed")
    await known.project.pipeline(BUILD)  # this one has not run yet
    job = await here.asks(of(known.project), of(known.project))
    assert isinstance(job, RunningJob)
    assert job.payload["dependencies"] == [
        {
            "id": newer,
            "name": "build",
            "token": job.token,
            "artifacts_file": {"filename": "artifacts.zip", "size": len(NEWER)},
        }
    ]
    assert await download(job, newer) == (200, NEWER)
    await job.finish()
    assert (await download(job, newer))[0] == 403
    assert handed_over(await here.asks(of(known.project, ref="main"))) == MISSING
    assert handed_over(await here.asks(of(known.project, job="test"))) == MISSING


async def test_a_retried_job_counts_by_when_it_ran(here: Worker, known: Worker) -> None:
    older = await known.makes()
    newer = await known.makes()
    assert handed_over(await here.asks(of(known.project))) == [newer]
    await known.project.api.post(f"{known.project.url}/jobs/{older}/retry", expect=201)
    again = await known.runner.job()
    assert handed_over(await here.asks(of(known.project))) == [newer]
    await again.upload(ZIP)
    await again.finish()
    assert handed_over(await here.asks(of(known.project))) == [again.id]


async def test_without_an_archive_a_job_gets_nothing_and_runs(
    forge: Forge, here: Worker, known: Worker
) -> None:
    nothing = await known.makes(b"")
    assert handed_over(await here.asks(of(known.project))) == []
    expired = await known.makes()
    await forge.execute(
        "UPDATE job_artifacts SET expire_at = now() - interval '1 s' WHERE job_id = %(id)s", id=expired
    )
    job = await here.asks(of(known.project))
    assert isinstance(job, RunningJob)
    assert handed_over(job) == []
    assert (await download(job, expired))[0] == 404
    assert (await download(job, nothing))[0] == 404


async def test_texts_are_expanded_with_all_variables_of_the_job(here: Worker, known: Worker) -> None:
    made = await known.makes()
    hidden = {"key": "WHERE", "value": known.project.path, "masked": len(known.project.path) >= 8}
    await here.project.forge.root.post(f"{here.project.url}/variables", hidden, expect=201)
    need = "{project: $WHERE$EMPTY, ref: $CI_COMMIT_BRANCH, job: 'b${WHAT}d'}"
    found = await here.asks(need, variables=[{"key": "WHAT", "value": "uil"}])
    assert handed_over(found) == [made]
    assert handed_over(await here.asks(need)) == MISSING


async def test_what_the_other_job_reports_are_variables_of_this_one(here: Worker, known: Worker) -> None:
    await known.project.pipeline(BUILD)
    job = await known.runner.job()
    assert (await job.upload(b"VERSION=1.2\n", ".env", artifact_type="dotenv")).status == 201
    await job.finish()
    found = await here.asks(of(known.project))
    assert isinstance(found, RunningJob)
    assert (found.variables["VERSION"], handed_over(found)) == ("1.2", [])


@pytest.mark.parametrize(
    ("visibility", "role", "lets_in", "public_jobs", "access", "may"),
    [
        ("private", None, True, True, "all", False),
        ("private", Role.GUEST, True, True, "all", True),
        ("private", Role.GUEST, True, False, "all", False),
        ("private", Role.REPORTER, True, False, "all", True),
        ("private", Role.OWNER, False, True, "all", False),
        ("private", Role.REPORTER, True, True, "developer", False),
        ("private", Role.DEVELOPER, True, True, "developer", True),
        ("private", Role.DEVELOPER, True, True, "maintainer", False),
        ("private", Role.OWNER, True, True, "none", False),
        ("internal", None, True, True, "all", True),
        ("internal", None, False, True, "all", False),
        ("public", None, False, True, "all", True),
        ("public", None, True, False, "all", False),
        ("public", Role.DEVELOPER, False, True, "developer", False),
        ("public", Role.DEVELOPER, True, False, "developer", True),
    ],
)
async def test_role_allow_list_and_visibility_decide_together(
    forge: Forge,
    here: Worker,
    visibility: str,
    role: Role | None,
    lets_in: bool,
    public_jobs: bool,
    access: str,
    may: bool,
) -> None:
    there = await worker(forge, visibility=visibility, public_jobs=public_jobs)
    made = await there.makes(text=BUILD.replace("paths", f"access: {access}, paths"))
    if role is not None:
        await forge.member("projects", there.project.id, here.project.developer, role)
    if lets_in:
        await let_in(there.project, here.project)
    assert handed_over(await here.asks(of(there.project))) == ([made] if may else MISSING)


async def test_administrators_have_no_more_rights_than_others(
    forge: Forge, here: Worker, there: Worker
) -> None:
    await there.makes()
    await let_in(there.project, here.project)
    admin = await forge.user("admin", admin=True)
    assert handed_over(await here.asks(of(there.project), by=admin.api)) == MISSING


@pytest.mark.parametrize(
    ("takes_away", "reason"),
    [
        ("DELETE FROM members WHERE project_id = %(there)s AND user_id = %(user)s", MISSING),
        ("DELETE FROM job_token_allowed_projects WHERE project_id = %(there)s", MISSING),
        ("UPDATE users SET state = 'blocked' WHERE id = %(user)s", "user_blocked"),
        ("UPDATE projects SET builds_access_level = 'disabled' WHERE id = %(there)s", MISSING),
    ],
)
async def test_a_right_that_is_taken_away_is_gone_at_once(
    forge: Forge, here: Worker, known: Worker, takes_away: str, reason: str
) -> None:
    made = await known.makes()
    job = await here.asks(of(known.project))
    assert isinstance(job, RunningJob)
    assert await download(job, made) == (200, ZIP)
    await here.project.pipeline(here.project.texts["topic"])
    await forge.execute(takes_away, there=known.project.id, user=here.project.developer.id)
    assert (await download(job, made))[0] == 403
    pipelines = (await forge.root.get(f"{here.project.url}/pipelines")).body
    assert handed_over(await here.next(pipelines[0])) == reason


async def test_a_removed_project_has_nothing(forge: Forge, here: Worker, known: Worker) -> None:
    await known.makes()
    await forge.root.delete(known.project.url, expect=202)
    assert handed_over(await here.asks(of(known.project))) == MISSING


async def test_only_who_names_other_pipelines_may_ask_for_theirs(here: Worker, known: Worker) -> None:
    made = await known.makes()
    job = await here.asks()
    assert isinstance(job, RunningJob)
    assert (await download(job, made))[0] == 403


async def test_another_branch_of_the_same_project(here: Worker) -> None:
    """The list of allowed projects does not matter within a project."""
    made = await here.makes()
    job = await here.asks(of(here.project), branch="other")
    assert isinstance(job, RunningJob)
    assert (handed_over(job), await download(job, made)) == ([made], (200, ZIP))


PARENT = """
stages: [build, child]
build: {stage: build, script: x, artifacts: {paths: [out], access: none}}
child:
  stage: child
  variables: {PARENT_PIPELINE_ID: $CI_PIPELINE_ID}
  trigger: {include: child.yml}
sister:
  stage: child
  variables: {PARENT_PIPELINE_ID: $CI_PIPELINE_ID}
  trigger: {include: sister.yml}
"""


async def children(project: CiProject, pipeline: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pipelines that the bridges of a pipeline have started."""

    async def all_started() -> dict[str, dict[str, Any]]:
        bridges = await project.bridges(pipeline)
        found = {name: one["downstream_pipeline"] for name, one in bridges.items()}
        return found if all(found.values()) else {}

    return dict(await until(all_started))


async def test_child_pipelines_get_artifacts_of_their_parent_and_of_each_other(
    forge: Forge, here: Worker
) -> None:
    need = "{pipeline: $PARENT_PIPELINE_ID, job: build}"
    await here.project.commit(f"use: {{script: x, needs: [{need}]}}", path="child.yml")
    await here.project.commit("made: {script: x, when: manual}", path="sister.yml")
    pipeline = await here.project.pipeline(PARENT)
    build = await here.runner.job()
    await build.upload(ZIP)
    await build.finish()
    started = await children(here.project, pipeline)
    job = await here.runner.job()
    assert job.variables["PARENT_PIPELINE_ID"] == str(pipeline["id"])
    assert job.payload["dependencies"] == [
        {
            "id": build.id,
            "name": "build",
            "token": job.token,
            "artifacts_file": {"filename": "artifacts.zip", "size": len(ZIP)},
        }
    ]
    assert await download(job, build.id) == (200, ZIP)
    (made,) = (await here.project.jobs(started["sister"])).values()
    await here.project.api.post(f"{here.project.url}/jobs/{made['id']}/play", expect=200)
    sister = await here.runner.job()
    await sister.upload(ZIP)
    for state, status in (("running", 200), ("success", 200)):
        if state == "success":
            await sister.finish()
        assert (await download(job, sister.id))[0] == status
    await job.finish()


@pytest.mark.parametrize(
    "need",
    [
        "{pipeline: $CI_PIPELINE_ID, job: use}",
        "{pipeline: $OTHER, job: build}",
        "{pipeline: $NOTHING, job: build}",
        "{pipeline: '-1', job: build}",
        "{pipeline: '99999999999999999999', job: build}",
        "{pipeline: '1 OR 1=1', job: build}",
    ],
)
async def test_pipelines_that_are_no_relatives_have_nothing(here: Worker, need: str) -> None:
    made = await here.makes()
    other = (await here.project.api.get(f"{here.project.url}/jobs/{made}")).body["pipeline"]["id"]
    variables = [{"key": "OTHER", "value": str(other)}]
    assert handed_over(await here.asks(need, variables=variables)) == MISSING


async def test_a_job_of_a_relative_has_to_have_succeeded(here: Worker) -> None:
    need = "{pipeline: $PARENT_PIPELINE_ID, job: build}"
    await here.project.commit(f"use: {{script: x, needs: [{need}]}}", path="child.yml")
    await here.project.commit("made: {script: x, when: manual}", path="sister.yml")
    pipeline = await here.project.pipeline(PARENT.replace("script: x,", "script: x, allow_failure: true,"))
    build = await here.runner.job()
    await build.upload(ZIP)
    await build.finish("failed")
    started = await children(here.project, pipeline)
    assert handed_over(await here.next(started["child"])) == MISSING
