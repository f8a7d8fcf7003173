"""A pipeline that somebody asks for, and that there will be none."""

from typing import Literal

import attrs

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines.merge_request_queries import MergeRequest
from api_server.git.ref_names import NO_COMMIT
from api_server.web.errors import ApiError

PipelineSource = Literal[
    "push", "web", "api", "trigger", "schedule", "pipeline", "parent_pipeline", "merge_request_event"
]


@attrs.frozen(kw_only=True)
class Wanted:
    """A pipeline that somebody asks for. `ref` is a short name, or that of a merge request's head; `origin` makes it
    once however often it is asked."""

    project_id: int
    ref: str
    sha: str
    source: PipelineSource
    user_id: int | None
    tag: bool = False
    before_sha: str = NO_COMMIT
    #: Stronger than the file's own variables.
    variables: tuple[Variable, ...] = ()
    origin: str | None = None
    #: A skipped pipeline will do.
    skip: bool = False
    #: The bridge that starts it, and the pipeline that everything began with.
    source_job_id: int | None = None
    hierarchy_id: int | None = None
    #: What it is made for, as child pipelines of such a one are too.
    merge_request: MergeRequest | None = None
    #: Whose moment has come.
    schedule_id: int | None = None
    #: In the place of the file, for child pipelines.
    configuration: str | None = None

    @property
    def short_ref(self) -> str:
        """The branch or tag that it runs on."""
        return self.ref if self.merge_request is None else self.merge_request.source_branch

    @property
    def changed_since(self) -> str:
        """The commit since which `changes` are asked for."""
        return self.before_sha if self.merge_request is None else self.merge_request.base_sha or NO_COMMIT


class NotMade(ApiError):
    """There is no pipeline; `errors` are sentences for who asked, `reason` is why a bridge fails that did (GitLab's
    name). With `retry_after` (seconds) it is worth another try."""

    def __init__(
        self, *errors: str, reason: str = "downstream_pipeline_creation_failed", retry_after: int = 0
    ) -> None:
        headers = {"Retry-After": str(retry_after)} if retry_after else None
        super().__init__(429 if retry_after else 400, {"message": {"base": list(errors)}}, headers)
        self.errors = errors
        self.reason = reason
