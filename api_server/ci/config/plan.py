"""The plan of a pipeline: frozen values that say which jobs it has and how each runs, and their JSON form."""

from typing import Any, Literal

import cattrs
import orjson
from attrs import field, frozen

from api_server.ci.config.variables import Variable

Texts = tuple[str, ...]


@frozen(kw_only=True)
class Need:
    """A job that has to end before; `optional` needs may be missing from the pipeline."""

    job: str
    artifacts: bool = True
    optional: bool = False


@frozen(kw_only=True)
class CrossDependency:
    """A job of another pipeline whose artifacts are wanted: of the last success on a ref of a project, or of a pipeline
    by its id. The texts may hold variables that only the running job knows."""

    job: str
    project: str | None = None
    ref: str | None = None
    pipeline: str | None = None


@frozen(kw_only=True)
class Retry:
    """How often (0 to 2), and after which failure reasons or exit codes, a failed job is started again by itself."""

    max: int = 0
    when: Texts = ("always",)
    exit_codes: tuple[int, ...] = ()

    def wants(self, failure_reason: str, exit_code: int | None) -> bool:
        """Return whether a job that failed for this reason is started again, as long as it has not been too often."""
        return "always" in self.when or failure_reason in self.when or exit_code in self.exit_codes


@frozen(kw_only=True)
class Artifacts:
    """What is uploaded after the script; `expire_in` is seconds, 0 never, None the instance's default."""

    name: str | None = None
    paths: Texts = ()
    exclude: Texts = ()
    untracked: bool = False
    when: str = "on_success"
    expire_in: int | None = None
    #: False is an older word for `access: developer`.
    public: bool = True
    #: Who may download them (of `execution.ACCESS`); the jobs that need them get them all the same.
    access: str | None = None
    #: The name under which merge requests show them.
    expose_as: str | None = None
    #: Kind of report (a key of `execution.REPORTS`) to its paths.
    reports: dict[str, Texts] = field(factory=dict)


@frozen(kw_only=True)
class Cache:
    key: str = "default"
    paths: Texts = ()
    untracked: bool = False
    #: One cache for protected and other refs alike.
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


@frozen(kw_only=True)
class Service(Image):
    alias: str | None = None
    command: Texts | None = None
    variables: tuple[Variable, ...] = ()


@frozen(kw_only=True)
class Environment:
    """`name` is final; `url` may still hold variables that only the running job knows."""

    name: str
    url: str | None = None
    action: str = "start"
    tier: str | None = None
    #: The job that stops it.
    on_stop: str | None = None
    #: A duration in the author's words, variables expanded, after which it stops by itself.
    auto_stop_in: str | None = None


@frozen(kw_only=True)
class IdToken:
    """A token that says who the job is, for the services `aud`; variables are the running job's."""

    aud: Texts
    #: The file has a list, which the token then has too, instead of the one audience alone.
    listed: bool = False


@frozen(kw_only=True)
class ReleaseLink:
    name: str
    url: str
    filepath: str | None = None
    link_type: str | None = None


@frozen(kw_only=True)
class Release:
    """What the runner makes a release from after the script; variables are the running job's."""

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
    """The pipeline that a bridge starts: another project's, or a child from the files that it includes."""

    project: str | None = None
    branch: str | None = None
    #: Paths of this project's files, or entries of `include:` as hashes.
    include: tuple[Any, ...] = ()
    #: The bridge waits for the other pipeline and takes over what became of it (`strategy: depend`).
    depend: bool = False
    #: As `depend`, and the bridge also takes over that the pipeline waits for somebody or was skipped
    #: (`strategy: mirror`).
    mirror: bool = False
    forward_yaml_variables: bool = True
    forward_pipeline_variables: bool = False
    #: Values for the `spec:inputs` of the other project's file.
    inputs: dict[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class PlannedJob:
    """One job with everything the file says about it, all inheritance and rules carried out."""

    name: str
    stage: str
    #: Index into `Plan.stages`.
    stage_index: int
    kind: Literal["build", "bridge"]
    script: Texts = ()
    before_script: Texts = ()
    after_script: Texts = ()
    #: Run before the repository is fetched.
    pre_get_sources_script: Texts = ()
    #: The file's variables for this job, weakest first and merged; values not yet expanded.
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
    #: By the names of the variables that have them.
    id_tokens: dict[str, IdToken] = field(factory=dict)
    release: Release | None = None
    #: What a person is asked before she starts a manual job.
    manual_confirmation: str | None = None
    resource_group: str | None = None
    interruptible: bool = False
    trigger: Trigger | None = None
    #: A bridge without `trigger` mirrors the status of the newest pipeline of the project with this path.
    upstream: str | None = None
    cross_dependencies: tuple[CrossDependency, ...] = ()
    #: `parallel`: the job is number `node_index` of `node_total` (from 1).
    node_index: int | None = None
    node_total: int = 1


@frozen(kw_only=True)
class AutoCancel:
    """When a pipeline is canceled by itself; None: the file does not say."""

    #: A newer commit on its branch cancels it: `conservative` unless a job that has started may not be ended,
    #: `interruptible` those jobs of it that may be ended, `none` nothing.
    on_new_commit: Literal["conservative", "interruptible", "none"] | None = None
    #: A job that fails cancels `all` others, or `none`.
    on_job_failure: Literal["all", "none"] | None = None


@frozen(kw_only=True)
class Plan:
    """What to create. Without jobs, `reason` says in GitLab's words why there is no pipeline."""

    stages: Texts = ()
    #: In the order of their stages, and within a stage in the order of the file.
    jobs: tuple[PlannedJob, ...] = ()
    #: `workflow:name`, expanded.
    name: str | None = None
    auto_cancel: AutoCancel = AutoCancel()
    reason: str | None = None


_converter = cattrs.Converter(omit_if_default=True)


def to_json(job: PlannedJob) -> dict[str, Any]:
    """Return the job as plain values for a jsonb column, without what is at its default."""
    plain: dict[str, Any] = _converter.unstructure(job)
    return plain


def size(job: PlannedJob) -> int:
    """Return the bytes of the job's JSON form."""
    return len(orjson.dumps(to_json(job)))


def from_json(data: dict[str, Any]) -> PlannedJob:
    """Return the job that `to_json` gave; keys that a later version wrote are ignored."""
    return _converter.structure(data, PlannedJob)
