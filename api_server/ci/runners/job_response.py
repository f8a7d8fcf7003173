"""Everything that a runner is told about the job it has got: the 201 of `POST /jobs/request`. Pure."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import attrs
import orjson

from api_server.ci.config import descriptions, payload
from api_server.ci.config.plan import PlannedJob
from api_server.ci.config.predefined import job_variables, pipeline_variables
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines.creation import DIALECT, described_project, described_user
from api_server.ci.runners.failures import FAILURE_REASONS
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.state.database import Row
from api_server.state.secrets import JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN

#: Commits of history a runner fetches when the job's GIT_DEPTH says nothing else.
DEFAULT_DEPTH = 20


@attrs.frozen(kw_only=True)
class JobResponse:
    """A job in a runner's hands, as rows of jobs, runners, pipelines and `creation_queries.subject`."""

    base_url: str
    token: str
    job: Row
    planned: PlannedJob
    runner: Row
    pipeline: Row
    subject: Row
    #: Jobs whose results it gets: rows of `choosing.dependencies`.
    earlier: Sequence[Row]
    #: What earlier jobs reported, and what was given to the pipeline and to the job, weakest first.
    given: Sequence[Variable]

    @property
    def seconds(self) -> int:
        """How long the job may run."""
        return int(min(self.job.timeout, self.runner.maximum_timeout or self.job.timeout))

    def payload(self) -> dict[str, Any]:
        variables = self.variables()
        depth = next((one["value"] for one in variables if one["key"] == "GIT_DEPTH"), "")
        return {
            "id": self.job.id,
            "token": self.token,
            "allow_git_fetch": True,
            "job_info": {
                "id": self.job.id,
                "name": self.job.name,
                "stage": self.job.stage,
                "project_id": self.job.project_id,
                "project_name": self.subject.name,
            },
            "git_info": self._git_info(int(depth) if depth.isdecimal() else DEFAULT_DEPTH),
            "runner_info": {"timeout": self.seconds, "runner_session_url": None},
            "variables": variables,
            **payload.describe(self.planned, timeout=self.seconds, protected=self.job.protected),
            "credentials": [],
            "dependencies": [
                payload.dependency(one.id, one.name, self.token, one.filename, one.size)
                for one in self.earlier
                if one.filename is not None
            ],
            "features": {
                "trace_sections": True,
                "failure_reasons": sorted(FAILURE_REASONS),
                "token_mask_prefixes": [JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN],
            },
        }

    def variables(self) -> list[dict[str, Any]]:
        """In the runner's words; of one key the strongest."""
        server = descriptions.Server(url=self.base_url, version=DIALECT)
        project = described_project(self.subject)
        of_pipeline = pipeline_variables(
            server, project, self._pipeline(), self._commit(), described_user(self.subject)
        )
        of_job = job_variables(server, project, self._job(), self.planned, of_pipeline)
        return payload.variables(self.planned, predefined=(*of_pipeline, *of_job), given=self.given)

    def _git_info(self, depth: int) -> dict[str, Any]:
        parts = urlsplit(self.base_url)
        url = parts._replace(
            netloc=f"gitlab-ci-token:{self.token}@{parts.netloc}",
            path=f"{parts.path}/{quote(self.subject.full_path)}.git",
        )
        ref, sha = self.pipeline.ref, self.pipeline.sha
        branch_or_tag = (
            f"+{TAGS}{ref}:{TAGS}{ref}"
            if self.pipeline.tag
            else f"+{BRANCHES}{ref}:refs/remotes/origin/{ref}"
        )
        return {
            "repo_url": urlunsplit(url),
            "ref": ref,
            "sha": sha,
            "before_sha": self.pipeline.before_sha,
            "ref_type": "tag" if self.pipeline.tag else "branch",
            # by the first one the commit is fetched even when its branch has moved on or is gone
            "refspecs": [f"+{sha}:refs/pipelines/{self.pipeline.id}", branch_or_tag],
            "depth": depth,
        }

    def _job(self) -> descriptions.Job:
        return descriptions.Job(
            id=self.job.id,
            pipeline_id=self.job.pipeline_id,
            token=self.token,
            started_at=self.job.started_at,
            timeout=self.seconds,
            manual=self.planned.when == "manual",
            runner_id=self.runner.id,
            runner_description=self.runner.description or "",
            runner_tags=tuple(self.runner.tag_list),
        )

    def _pipeline(self) -> descriptions.Pipeline:
        return descriptions.Pipeline(
            iid=self.pipeline.iid,
            ref=self.pipeline.ref,
            source=self.pipeline.source,
            created_at=self.pipeline.created_at,
            tag=self.pipeline.tag,
            protected=self.pipeline.protected,
            before_sha=self.pipeline.before_sha,
            name=self.pipeline.name,
        )

    def _commit(self) -> descriptions.Commit:
        commit = orjson.loads(self.pipeline.commit)
        return descriptions.Commit(
            sha=self.pipeline.sha,
            message=commit["message"],
            author=commit["author_name"],
            author_email=commit["author_email"],
            timestamp=self.pipeline.committed_at,
        )
