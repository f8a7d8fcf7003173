"""Everything that a runner is told about the job it has got: the 201 of `POST /jobs/request`. Pure."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import attrs
import orjson

from api_server.ci.config import payload, predefined
from api_server.ci.config.plan import PlannedJob
from api_server.ci.config.predefined import job_variables, pipeline_variables
from api_server.ci.config.variables import Variable
from api_server.ci.runners.failure_reasons import FAILURE_REASONS
from api_server.ci.runners.hand_out_queries import EarlierJob, StartedJob
from api_server.ci.runners.queries import Runner
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.state.secrets import JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN

#: git's number for all of it, and its greatest.
INFINITE_DEPTH = 2**31 - 1


@attrs.frozen(kw_only=True)
class JobResponse:
    """A job in a runner's hands, and all that it was given."""

    server: predefined.Server
    token: str
    job: StartedJob
    planned: PlannedJob
    runner: Runner
    project: predefined.Project
    user: predefined.User | None
    merge_request: predefined.MergeRequest | None
    #: From the job's branch.
    open_merge_requests: str
    #: Jobs whose results it gets.
    earlier: Sequence[EarlierJob]
    #: What earlier jobs reported, and what was given to the pipeline and to the job, weakest first.
    given: Sequence[Variable]

    @property
    def seconds(self) -> int:
        """How long the job may run."""
        return min(self.job.timeout, self.runner.maximum_timeout or self.job.timeout)

    def payload(self) -> dict[str, Any]:
        variables = self.variables()
        default = self.job.default_depth
        depth = next(
            (_depth(one["value"], default) for one in variables if one["key"] == "GIT_DEPTH"), default
        )
        return {
            "id": self.job.id,
            "token": self.token,
            "allow_git_fetch": self.job.git_strategy == "fetch",
            "job_info": {
                "id": self.job.id,
                "name": self.job.name,
                "stage": self.job.stage,
                "project_id": self.job.project_id,
                "project_name": self.project.title,
            },
            "git_info": self._git_info(depth),
            "runner_info": {"timeout": self.seconds, "runner_session_url": None},
            "variables": variables,
            **payload.describe(self.planned, timeout=self.seconds, protected=self.job.protected),
            "credentials": [],
            "dependencies": [
                payload.dependency(one.id, one.name, self.token, one.filename, one.size)
                for one in self.earlier
                if one.filename is not None and one.size is not None
            ],
            "features": {
                "trace_sections": True,
                "failure_reasons": sorted(FAILURE_REASONS),
                "token_mask_prefixes": [JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN],
            },
        }

    def variables(self) -> list[dict[str, Any]]:
        """In the runner's words; of one key the strongest."""
        of_pipeline = pipeline_variables(
            self.server, self.project, self._pipeline(), self._commit(), self.user, self.merge_request
        )
        of_job = job_variables(self.server, self.project, self._job(), self.planned, of_pipeline)
        return payload.variables(self.planned, predefined=(*of_pipeline, *of_job), given=self.given)

    def _git_info(self, depth: int) -> dict[str, Any]:
        parts = urlsplit(self.server.url)
        url = parts._replace(
            netloc=f"gitlab-ci-token:{self.token}@{parts.netloc}",
            path=f"{parts.path}/{quote(self.project.full_path)}.git",
        )
        return {
            "repo_url": urlunsplit(url),
            "ref": self.job.ref,
            "sha": self.job.sha,
            "before_sha": self.job.before_sha,
            "ref_type": "tag" if self.job.tag else "branch",
            # by the first one the commit is fetched even when its branch has moved on or is gone
            "refspecs": [f"+{self.job.sha}:refs/pipelines/{self.job.pipeline_id}", *self._branch_or_tag()],
            "depth": depth,
        }

    def _branch_or_tag(self) -> list[str]:
        """What is fetched beside the commit: nothing for a merge request."""
        ref = self.job.ref
        if ref != self.job.short_ref:
            return []
        return [
            f"+{TAGS}{ref}:{TAGS}{ref}" if self.job.tag else f"+{BRANCHES}{ref}:refs/remotes/origin/{ref}"
        ]

    def _job(self) -> predefined.Job:
        return predefined.Job(
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

    def _pipeline(self) -> predefined.Pipeline:
        return predefined.Pipeline(
            iid=self.job.pipeline_iid,
            ref=self.job.short_ref,
            source=self.job.source,
            created_at=self.job.pipeline_created_at,
            tag=self.job.tag,
            tag_message=self.job.tag_message,
            protected=self.job.protected,
            before_sha=self.job.before_sha,
            name=self.job.pipeline_name,
            open_merge_requests=self.open_merge_requests,
        )

    def _commit(self) -> predefined.Commit:
        commit = orjson.loads(self.job.commit)
        return predefined.Commit(
            sha=self.job.sha,
            message=commit["message"],
            author=commit["author_name"],
            author_email=commit["author_email"],
            timestamp=self.job.committed_at,
        )


def _depth(said: str, default: int) -> int:
    """What `GIT_DEPTH` means; 0 is all of the history, too."""
    digits = said.lstrip("0")[: len(str(INFINITE_DEPTH)) + 1]
    return min(int(digits or "0"), INFINITE_DEPTH) if said.isdecimal() else default
