"""Functions that create pipelines and jobs in every state, through the real API and the real transitions."""

import asyncio
import secrets
from typing import Any

import attrs

from api_server.ci.pipelines import job_queries, transitions
from api_server.ci.pipelines.states import Event
from api_server.state.secrets import JOB_TOKEN, digest, new_token
from api_server.web.routes import Role
from tests.support.forge import Client, Forge, Person

#: A job that does nothing.
ONE_JOB = "build:\n  script: echo\n"
#: A job that waits to be played.
MANUAL_JOB = "build:\n  script: echo\n  when: manual\n  allow_failure: false\n"


#: Whether a push to the project, or a merge request of it, has a pipeline that is not yet created.
PIPELINES_UNDER_WAY = """
    SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND CASE task_name
        WHEN 'create_pushed_pipeline' THEN args ->> 'project_id' = %(id)s::text
        WHEN 'create_merge_request_pipeline' THEN (args ->> 'merge_request_id')::bigint IN (
            SELECT merge_requests.id FROM merge_requests WHERE merge_requests.project_id = %(id)s)
        ELSE false END)
"""


@attrs.frozen
class CiProject:
    """A project with a developer, whose pipelines run on an unprotected branch `topic`."""

    forge: Forge
    id: int
    path: str
    developer: Person
    #: The text of the CI file of each branch.
    texts: dict[str, str] = attrs.field(factory=dict)

    @property
    def api(self) -> Client:
        return self.developer.api

    @property
    def url(self) -> str:
        return f"/projects/{self.id}"

    async def commit(
        self,
        text: str,
        *,
        path: str = ".gitlab-ci.yml",
        branch: str = "topic",
        message: str = "Set [ci skip]",
    ) -> None:
        """Write a file to a branch, which begins at the default branch if it is new. Wait until the skipped pipeline
        of the push is created."""
        where = f"{self.url}/repository/files/{path.replace('/', '%2F').replace('.', '%2E')}"
        body = {"branch": branch, "content": text, "commit_message": message}
        begun = body | {"start_branch": "main"}
        # Mostly the branch is new. A request that does not fit is refused, and this costs less than asking first.
        attempts = [("POST", body), ("PUT", body)]
        if branch != "main":
            attempts = [("POST", begun), *reversed(attempts), ("PUT", begun)]
        for method, wanted in attempts:
            answer = await self.forge.root.request(method, where, json=wanted)
            if answer.status != 400:
                break
        assert answer.status in (200, 201), answer
        await self.settled()

    async def settled(self) -> None:
        """Wait until all pipelines of pushes and merge requests are created."""
        async with asyncio.timeout(20):
            while self.forge.settings.work and await self.forge.database.value(
                PIPELINES_UNDER_WAY, id=self.id
            ):
                await asyncio.sleep(0.005)

    async def pipeline(
        self, text: str = ONE_JOB, *, branch: str = "topic", by: Client | None = None, **values: Any
    ) -> dict[str, Any]:
        """Create a pipeline from this configuration; return it."""
        if self.texts.get(branch) != text:
            await self.commit(text, branch=branch)
            self.texts[branch] = text
        answer = await (by or self.api).post(f"{self.url}/pipeline", {"ref": branch} | values)
        assert answer.status == 201, answer
        return dict(answer.body)

    async def jobs(self, pipeline: dict[str, Any], query: str = "") -> dict[str, dict[str, Any]]:
        """Return the pipeline's builds by name, as the API shows them."""
        answer = await self.forge.root.get(f"{self.url}/pipelines/{pipeline['id']}/jobs?per_page=100&{query}")
        assert answer.status == 200, answer
        return {job["name"]: job for job in answer.body}

    async def bridges(self, pipeline: dict[str, Any], query: str = "") -> dict[str, dict[str, Any]]:
        answer = await self.forge.root.get(f"{self.url}/pipelines/{pipeline['id']}/bridges?{query}")
        assert answer.status == 200, answer
        return {job["name"]: job for job in answer.body}

    async def statuses(self, pipeline: dict[str, Any]) -> dict[str, str]:
        """Return the statuses of the latest builds and bridges by name."""
        rows = await job_queries.latest_jobs(self.forge.database, pipeline["id"])
        return {row.name: row.status for row in rows}

    async def status(self, pipeline: dict[str, Any]) -> str:
        """Return the status of the pipeline."""
        return str((await self.forge.root.get(f"{self.url}/pipelines/{pipeline['id']}")).body["status"])

    async def job(self, text: str = ONE_JOB, **options: Any) -> dict[str, Any]:
        """Return the only build of a new pipeline."""
        (job,) = (await self.jobs(await self.pipeline(text, **options))).values()
        return job

    async def job_in(self, status: str, text: str = ONE_JOB, **options: Any) -> dict[str, Any]:
        """Return a build that has been set to this status."""
        job = await self.job(text, **options)
        await bring(self.forge, job["id"], status)
        return dict((await self.forge.root.get(f"{self.url}/jobs/{job['id']}")).body)


async def ci_project(forge: Forge, **values: Any) -> CiProject:
    """Return a new project with a first commit on the protected default branch `main`."""
    developer = await forge.user("developer")
    made = await forge.project(members={Role.DEVELOPER: developer}, initialize_with_readme=True, **values)
    project = CiProject(forge, made["id"], made["path_with_namespace"], developer)
    await project.settled()
    return project


async def happen(forge: Forge, job_id: int, event: Event, **values: Any) -> Any:
    """Apply the event to the job, with all its consequences."""
    async with forge.database.transaction() as transaction:
        return await transitions.advance(transaction, job_id, event, **values)


async def run(
    forge: Forge, job_id: int, *, runner_id: int | None = None, cancels_gracefully: bool = False
) -> str:
    """Hand a pending build out, as to a runner; return the job's token."""
    token = new_token(JOB_TOKEN)
    async with forge.database.transaction() as transaction:
        row = await transitions.start_job(
            transaction,
            job_id,
            runner_id=runner_id or await a_runner(forge),
            runner_manager_id=None,
            token_digest=digest(token),
            cancels_gracefully=cancels_gracefully,
        )
    assert row is not None
    async with forge.database.transaction() as transaction:
        await transitions.refresh(transaction, row.pipeline_id)
    return token


CREATE_RUNNER = """
    INSERT INTO runners (runner_type, token_digest, description, contacted_at, created_at)
    VALUES ('instance_type', %(digest)s, 'a runner', %(now)s, %(now)s) RETURNING id
"""


async def a_runner(forge: Forge) -> int:
    async with forge.database.transaction() as transaction:
        return int(await transaction.value(CREATE_RUNNER, digest=secrets.token_bytes(32)))


PUT_INTO = """
    UPDATE jobs SET status = %(status)s,
        started_at = CASE WHEN %(status)s IN ('running', 'canceling', 'success', 'failed') THEN %(now)s END,
        finished_at = CASE WHEN %(status)s IN ('success', 'failed', 'canceled') THEN %(now)s END
    WHERE id = %(id)s
"""


async def bring(forge: Forge, job_id: int, status: str) -> None:
    """Set the status of the job's row, without the transitions to it."""
    async with forge.database.transaction() as transaction:
        await transaction.run(PUT_INTO, id=job_id, status=status)


async def give_log(forge: Forge, job_id: int, size: int = 5) -> None:
    """Insert the row of a log of this size; the log has no content."""
    async with forge.database.transaction() as transaction:
        await transaction.run(
            "INSERT INTO job_logs (job_id, size, updated_at) VALUES (%(id)s, %(size)s, %(now)s)",
            id=job_id,
            size=size,
        )
