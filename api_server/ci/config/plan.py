"""The plan of a pipeline: frozen values that describe its jobs and how each runs, and their JSON form."""

from typing import Any, Literal

import cattrs
import orjson
from attrs import field, frozen

from api_server.ci.config.variables import Variable

Texts = tuple[str, ...]


@frozen(kw_only=True)
class Need:
    """A job that has to end first; `optional` needs may be missing from the pipeline."""

    job: str
    artifacts: bool = True
    optional: bool = False


@frozen(kw_only=True)
class CrossDependency:
    """A job of another pipeline whose artifacts are needed: of the last successful one on a ref of a project,
    or of a pipeline by its id. The texts may contain variables that only the running job knows."""

    job: str
    project: str | None = None
    ref: str | None = None
    pipeline: str | None = None


@frozen(kw_only=True)
class Retry:
    """How often (0 to 2), and for which failure reasons or exit codes, a failed job is retried
    automatically."""

    max: int = 0
    when: Texts = ("always",)
    exit_codes: tuple[int, ...] = ()

    def wants(self, failure_reason: str, exit_code: int | None) -> bool:
        """Return whether a job that failed for this reason is retried, unless it has been retried too
        often."""
        return "always" in self.when or failure_reason in self.when or exit_code in self.exit_codes


@frozen(kw_only=True)
class Artifacts:
    """The uploads after the script; `expire_in` is in seconds, 0 means never, None the instance's default."""

    name: str | None = None
    paths: Texts = ()
    exclude: Texts = ()
    untracked: bool = False
    when: str = "on_success"
    expire_in: int | None = None
    #: False is an older notation for `access: developer`.
    public: bool = True
    #: Who may download them (of `execution.ACCESS`); jobs that need them always get them.
    access: str | None = None
    #: The name under which merge requests show them.
    expose_as: str | None = None
    #: Kinds of reports (keys of `execution.REPORTS`) and their paths.
    reports: dict[str, Texts] = field(factory=dict)


@frozen(kw_only=True)
class Cache:
    key: str = "default"
    paths: Texts = ()
    untracked: bool = False
    #: Whether protected and other refs share one cache.
    unprotect: bool = False
    when: str = "on_success"
    policy: str = "pull-push"
    fallback_keys: Texts = ()


@frozen(kw_only=True)
class Image:
    name: str
    entrypoint: Texts | None = None
    pull_policy: Texts = ()
    docker: dict[str, str] = field(factory=dict)
    kubernetes: dict[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Service(Image):
    alias: str | None = None
    command: Texts | None = None
    variables: tuple[Variable, ...] = ()


@frozen(kw_only=True)
class Environment:
    """The environment of a job. `name` is final; `url` may still contain variables that only the running job
    knows."""

    name: str
    url: str | None = None
    action: str = "start"
    tier: str | None = None
    #: The job that stops it.
    on_stop: str | None = None
    #: A duration in the author's words, with variables expanded, after which it stops automatically.
    auto_stop_in: str | None = None


@frozen(kw_only=True)
class IdToken:
    """A token that identifies the job to the services `aud`; variables are those of the running job."""

    aud: Texts
    #: Whether the file has a list of audiences; then the token has a list too, instead of a single audience.
    listed: bool = False


@frozen(kw_only=True)
class ReleaseLink:
    name: str
    url: str
    filepath: str | None = None
    link_type: str | None = None


@frozen(kw_only=True)
class Release:
    """The release that the runner creates after the script; variables are those of the running job."""

    tag_name: str
    description: str
    name: str | None = None
    tag_message: str | None = None
    ref: str | None = None
    milestones: Texts = ()
    released_at: str | None = None
    links: tuple[ReleaseLink, ...] = ()


@frozen(kw_only=True)
class Trigger:
    """The pipeline that a bridge starts: of another project, or a child from the files that it includes."""

    project: str | None = None
    branch: str | None = None
    #: Paths of this project's files, or entries of `include:` as hashes.
    include: tuple[Any, ...] = ()
    #: Whether the bridge waits for the other pipeline and takes over its result (`strategy: depend`).
    depend: bool = False
    #: Like `depend`, but the bridge also takes over the states in which the pipeline is manual or skipped
    #: (`strategy: mirror`).
    mirror: bool = False
    forward_yaml_variables: bool = True
    forward_pipeline_variables: bool = False
    #: Values for the `spec:inputs` of the other project's file.
    inputs: dict[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class PlannedJob:
    """One job with everything that the file says about it, with all inheritance and rules applied."""

    name: str
    stage: str
    #: Index into `Plan.stages`.
    stage_index: int
    kind: Literal["build", "bridge"]
    script: Texts = ()
    before_script: Texts = ()
    after_script: Texts = ()
    #: Commands to run before the repository is fetched.
    pre_get_sources_script: Texts = ()
    #: The file's variables for this job, merged by precedence; values are not yet expanded.
    variables: tuple[Variable, ...] = ()
    #: None: the job waits for all earlier stages. Empty: it waits for nothing.
    needs: tuple[Need, ...] | None = None
    #: Jobs whose artifacts it downloads. None: those of all earlier stages.
    dependencies: Texts | None = None
    tags: Texts = ()
    when: Literal["on_success", "on_failure", "always", "manual", "delayed"] = "on_success"
    #: Seconds; set exactly when `when` is `delayed`.
    start_in: int | None = None
    allow_failure: bool = False
    #: Exit codes that count as allowed failures although `allow_failure` is false.
    allow_failure_exit_codes: tuple[int, ...] = ()
    retry: Retry = Retry()
    #: Seconds; None: the service's default.
    timeout: int | None = None
    #: RE2 expression without its slashes (flags, if any, as a leading `(?i)`).
    coverage: str | None = None
    artifacts: Artifacts | None = None
    cache: tuple[Cache, ...] = ()
    image: Image | None = None
    services: tuple[Service, ...] = ()
    environment: Environment | None = None
    #: By the names of the variables that contain them.
    id_tokens: dict[str, IdToken] = field(factory=dict)
    release: Release | None = None
    #: The question to confirm before a manual job is started.
    manual_confirmation: str | None = None
    resource_group: str | None = None
    interruptible: bool = False
    trigger: Trigger | None = None
    #: The path of a project; a bridge without `trigger` mirrors the status of the project's newest pipeline.
    upstream: str | None = None
    cross_dependencies: tuple[CrossDependency, ...] = ()
    #: `parallel`: the job is number `node_index` of `node_total` (from 1).
    node_index: int | None = None
    node_total: int = 1


@frozen(kw_only=True)
class AutoCancel:
    """When a pipeline is canceled automatically; None: the file does not say."""

    #: The effect of a newer commit on its branch: `conservative` cancels the pipeline unless a job has
    #: started that is not interruptible, `interruptible` cancels its interruptible jobs, `none` cancels
    #: nothing.
    on_new_commit: Literal["conservative", "interruptible", "none"] | None = None
    #: A job that fails cancels `all` others, or `none`.
    on_job_failure: Literal["all", "none"] | None = None


@frozen(kw_only=True)
class Plan:
    """The jobs to create. Without jobs, `reason` says in GitLab's words why there is no pipeline."""

    stages: Texts = ()
    #: In the order of their stages, and within a stage in the order of the file.
    jobs: tuple[PlannedJob, ...] = ()
    #: `workflow:name`, expanded.
    name: str | None = None
    auto_cancel: AutoCancel = AutoCancel()
    reason: str | None = None


_converter = cattrs.Converter(omit_if_default=True)


def to_json(job: PlannedJob) -> dict[str, Any]:
    """Return the job as plain values for a jsonb column, without those that equal their defaults."""
    plain: dict[str, Any] = _converter.unstructure(job)
    return plain


def size(job: PlannedJob) -> int:
    """Return the bytes of the job's JSON form."""
    return len(orjson.dumps(to_json(job)))


def from_json(data: dict[str, Any]) -> PlannedJob:
    """Return the job from the result of `to_json`; keys written by a later version are ignored."""
    return _converter.structure(data, PlannedJob)
