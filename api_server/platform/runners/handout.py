"""Which job a runner gets, and everything it is told about it (`facts` of `POST /jobs/request`)."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import attrs
import orjson
import structlog

from api_server.git.names import BRANCHES, TAGS
from api_server.platform.ci_config import descriptions, payload
from api_server.platform.ci_config.plan import PlannedJob
from api_server.platform.ci_config.predefined import job_variables, pipeline_variables
from api_server.platform.ci_config.variables import Variable
from api_server.platform.pipelines import changes, lookups, queries
from api_server.platform.pipelines.creation import DIALECT, described_project, described_user
from api_server.platform.runners import choosing
from api_server.platform.runners.failures import FAILURE_REASONS
from api_server.state.database import Database, Row
from api_server.state.secrets import JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN, Vault, digest, new_token

log = structlog.get_logger(__name__)

#: Commits of history a runner fetches when the job's GIT_DEPTH says nothing else.
DEFAULT_DEPTH = 20


@attrs.frozen
class HandOut:
    """Gives jobs to runners."""

    database: Database
    vault: Vault
    base_url: str

    async def next_job(
        self, runner: Row, manager_id: int | None, *, cancels_gracefully: bool
    ) -> dict[str, Any] | None:
        """The payload of a job that is this runner's from now on, or None when there is none for it.

        A job that cannot be described fails, and the next one is tried.
        """
        while True:
            token = new_token(JOB_TOKEN)
            async with self.database.transaction() as transaction:
                job_id = await choosing.choose(transaction, runner.id)
                if job_id is None:
                    return None
                job = await changes.start(
                    transaction,
                    job_id,
                    runner_id=runner.id,
                    runner_manager_id=manager_id,
                    token_digest=digest(token),
                    cancels_gracefully=cancels_gracefully,
                )
            if job is None:
                continue
            try:
                described = await self._describe(job, runner, token)
            except Exception:
                log.exception("a job cannot be handed out", job_id=job.id)
                await self._fail(job.id)
                continue
            async with self.database.transaction() as transaction:
                await changes.refresh(transaction, job.pipeline_id)
            return described

    async def _fail(self, job_id: int) -> None:
        async with self.database.transaction() as transaction:
            await changes.advance(transaction, job_id, "drop", failure_reason="data_integrity_failure")

    async def _describe(self, job: Row, runner: Row, token: str) -> dict[str, Any]:
        planned = queries.plan_of(job)
        pipeline = await choosing.pipeline(self.database, job.pipeline_id)
        subject = await lookups.subject(self.database, job.project_id, job.user_id)
        earlier = await choosing.dependencies(
            self.database, job, None if planned.dependencies is None else list(planned.dependencies)
        )
        timeout = min(job.timeout, runner.maximum_timeout or job.timeout)
        variables = await self._variables(job, runner, token, planned, pipeline, subject, earlier, timeout)
        known = {one["key"]: one["value"] for one in variables}
        if "true" in (known.get("CI_DEBUG_TRACE"), known.get("CI_DEBUG_SERVICES")):
            async with self.database.transaction() as transaction:
                await choosing.mark_debug_trace(transaction, job.id)
        return {
            "id": job.id,
            "token": token,
            "allow_git_fetch": True,
            "job_info": {
                "id": job.id,
                "name": job.name,
                "stage": job.stage,
                "project_id": job.project_id,
                "project_name": subject.name,
            },
            "git_info": self._git_info(pipeline, subject, token, known.get("GIT_DEPTH")),
            "runner_info": {"timeout": timeout, "runner_session_url": None},
            "variables": variables,
            **payload.describe(planned, timeout=timeout, protected=job.protected),
            "credentials": [],
            "dependencies": [
                payload.dependency(one.id, one.name, token, one.filename, one.size)
                for one in earlier
                if one.filename is not None
            ],
            "features": {
                "trace_sections": True,
                "failure_reasons": sorted(FAILURE_REASONS),
                "token_mask_prefixes": [JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN],
            },
        }

    async def _variables(
        self,
        job: Row,
        runner: Row,
        token: str,
        planned: PlannedJob,
        pipeline: Row,
        subject: Row,
        earlier: Iterable[Row],
        timeout: int,
    ) -> list[dict[str, Any]]:
        server = descriptions.Server(url=self.base_url, version=DIALECT)
        project = described_project(subject)
        of_pipeline = pipeline_variables(
            server,
            project,
            _described_pipeline(pipeline),
            _described_commit(pipeline),
            described_user(subject),
        )
        described = descriptions.Job(
            id=job.id,
            pipeline_id=job.pipeline_id,
            token=token,
            started_at=job.started_at,
            timeout=timeout,
            manual=planned.when == "manual",
            runner_id=runner.id,
            runner_description=runner.description or "",
            runner_tags=tuple(runner.tag_list),
        )
        of_job = job_variables(server, project, described, planned, of_pipeline)
        given = await choosing.given_variables(self.database, job, [one.id for one in earlier])
        return payload.variables(
            planned,
            predefined=(*of_pipeline, *of_job),
            given=[
                Variable(one.key, self.vault.decrypt(one.value), public=False, file=one.file, raw=one.raw)
                for one in given
            ],
        )

    def _git_info(self, pipeline: Row, subject: Row, token: str, depth: str | None) -> dict[str, Any]:
        parts = urlsplit(self.base_url)
        url = parts._replace(
            netloc=f"gitlab-ci-token:{token}@{parts.netloc}",
            path=f"{parts.path}/{quote(subject.full_path)}.git",
        )
        kind, local = (TAGS, TAGS) if pipeline.tag else (BRANCHES, "refs/remotes/origin/")
        return {
            "repo_url": urlunsplit(url),
            "ref": pipeline.ref,
            "sha": pipeline.sha,
            "before_sha": pipeline.before_sha,
            "ref_type": "tag" if pipeline.tag else "branch",
            # by the first one the commit is there even when its branch has moved on or is gone
            "refspecs": [
                f"+{pipeline.sha}:refs/pipelines/{pipeline.id}",
                f"+{kind}{pipeline.ref}:{local}{pipeline.ref}",
            ],
            "depth": int(depth) if depth is not None and depth.isdecimal() else DEFAULT_DEPTH,
        }


def _described_pipeline(pipeline: Row) -> descriptions.Pipeline:
    return descriptions.Pipeline(
        iid=pipeline.iid,
        ref=pipeline.ref,
        source=pipeline.source,
        created_at=pipeline.created_at,
        tag=pipeline.tag,
        protected=pipeline.protected,
        before_sha=pipeline.before_sha,
        name=pipeline.name,
    )


def _described_commit(pipeline: Row) -> descriptions.Commit:
    commit = orjson.loads(pipeline.commit)
    return descriptions.Commit(
        sha=pipeline.sha,
        message=commit["message"],
        author=commit["author_name"],
        author_email=commit["author_email"],
        timestamp=pipeline.committed_at,
    )
