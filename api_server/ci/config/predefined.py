"""The predefined `CI_*` and `GITLAB_*` variables, made from plain descriptions of a pipeline and a job."""

import hashlib
import re
from datetime import datetime
from urllib.parse import urlsplit

from attrs import frozen

from api_server.ci.config.plan import PlannedJob
from api_server.ci.config.variables import Variable, expand, values

_NO_SHA = "0" * 40


@frozen(kw_only=True)
class Server:
    """The service; `url` is the configured external URL, without a trailing slash."""

    url: str
    version: str
    name: str = "forgelet"
    revision: str = ""


@frozen(kw_only=True)
class Project:
    """A project; `full_path` is `group/sub/app`, `title` the name that people read."""

    id: int
    full_path: str
    title: str
    namespace_id: int
    visibility: str
    default_branch: str
    description: str = ""
    config_path: str = ".gitlab-ci.yml"


@frozen(kw_only=True)
class Commit:
    sha: str
    message: str
    author: str
    #: `CI_COMMIT_AUTHOR` is made of both: `Name <address>`.
    author_email: str
    timestamp: datetime


@frozen(kw_only=True)
class MergeRequest:
    id: int
    iid: int
    title: str
    source_branch: str
    source_project_id: int
    source_project_path: str
    target_branch: str
    source_sha: str = ""
    source_protected: bool = False
    target_sha: str = ""
    target_protected: bool = False
    diff_base_sha: str = ""
    description: str = ""
    description_is_truncated: bool = False
    draft: bool = False
    labels: tuple[str, ...] = ()


@frozen(kw_only=True)
class User:
    """The user who started the pipeline, or this job of it."""

    id: int
    username: str
    name: str
    email: str


@frozen(kw_only=True)
class Pipeline:
    """A pipeline; `ref` is a short name (of a merge request its source branch), `source` one of GitLab's
    sources (`push`, `web`, `api`, `merge_request_event`, ...). `open_merge_requests` are those from the
    branch: `group/app!1,group/app!2`."""

    iid: int
    ref: str
    source: str
    created_at: datetime
    tag: bool = False
    tag_message: str = ""
    protected: bool = False
    before_sha: str = _NO_SHA
    name: str | None = None
    open_merge_requests: str = ""


@frozen(kw_only=True)
class Job:
    """The data of a job that are known when it is handed to a runner."""

    id: int
    pipeline_id: int
    token: str
    started_at: datetime
    timeout: int
    manual: bool = False
    runner_id: int | None = None
    runner_description: str = ""
    runner_tags: tuple[str, ...] = ()


MAX_SLUG = 63
MAX_ENVIRONMENT_SLUG = 24

#: First match wins; GitLab's guess if a job has no `deployment_tier`.
_TIERS = (
    ("development", r"(?i)(dev|review|trunk)"),
    ("testing", r"(?i)(test|tst|int|ac(ce|)pt|qa|qc|control|quality)"),
    ("staging", r"(?i)(st(a|)g|mod(e|)l|pre|demo|non)"),
    ("production", r"(?i)(pr(o|)d|live)"),
)


def slug(text: str) -> str:
    """Return `text` as part of a host name: lower case, digits, dashes, at most 63 characters
    (`CI_COMMIT_REF_SLUG`)."""
    return re.sub(r"[^a-z0-9]", "-", text.lower())[:MAX_SLUG].strip("-")


def environment_slug(name: str) -> str:
    """Return a part of a host name, of at most 24 characters; names that do not fit end in a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())
    if not plain[:1].isalpha():
        plain = re.sub(r"-+", "-", f"env-{plain}")
    if plain == name and len(plain) <= MAX_ENVIRONMENT_SLUG and not plain.endswith("-"):
        return plain
    return f"{plain[: MAX_ENVIRONMENT_SLUG - 7].rstrip('-')}-{_suffix(name)}"


def _suffix(name: str) -> str:
    """Return the last six digits, to base 36, of the name's SHA-256."""
    number, digits = int.from_bytes(hashlib.sha256(name.encode()).digest()), ""
    while len(digits) < 6:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def tier(name: str) -> str:
    """Return `production`, `staging`, `testing`, `development` or `other`."""
    return next((kind for kind, pattern in _TIERS if re.search(pattern, name)), "other")


_PORTS = {"http": 80, "https": 443}


def pipeline_variables(
    server: Server,
    project: Project,
    pipeline: Pipeline,
    commit: Commit,
    user: User | None = None,
    merge_request: MergeRequest | None = None,
) -> tuple[Variable, ...]:
    """Return all variables that are known before the pipeline is created, for `Context.predefined`."""
    predefined = {
        **_of_server(server),
        **_of_project(server, project),
        **_of_pipeline(pipeline),
        **_of_commit(pipeline, commit),
        **(_of_user(user) if user else {}),
    }
    if merge_request is not None:
        del predefined["CI_COMMIT_BRANCH"]
        predefined |= _of_merge_request(server, project, merge_request)
    return _public(predefined)


def job_variables(
    server: Server, project: Project, job: Job, plan: PlannedJob, of_pipeline: tuple[Variable, ...]
) -> tuple[Variable, ...]:
    """Return the further variables of one job. `of_pipeline` are the pipeline's, which the environment's URL may
    refer to."""
    base = f"{server.url}/{project.full_path}/-"
    predefined = {
        "CI_PIPELINE_ID": str(job.pipeline_id),
        "CI_PIPELINE_URL": f"{base}/pipelines/{job.pipeline_id}",
        "CI_JOB_ID": str(job.id),
        "CI_JOB_URL": f"{base}/jobs/{job.id}",
        "CI_JOB_NAME": plan.name,
        "CI_JOB_NAME_SLUG": slug(plan.name),
        "CI_JOB_STAGE": plan.stage,
        "CI_JOB_STARTED_AT": _iso(job.started_at),
        "CI_JOB_TIMEOUT": str(job.timeout),
        "CI_NODE_TOTAL": str(plan.node_total),
        **({"CI_NODE_INDEX": str(plan.node_index)} if plan.node_index is not None else {}),
        **({"CI_JOB_MANUAL": "true"} if job.manual else {}),
        **({"CI_JOB_IMAGE": plan.image.name} if plan.image is not None else {}),
        **_of_runner(job),
    }
    predefined |= _of_environment(plan, {**values(of_pipeline), **values(plan.variables), **predefined})
    return (*_public(predefined), *_secret(server, project, job))


def _public(predefined: dict[str, str]) -> tuple[Variable, ...]:
    """Return public variables. Predefined values are data, not templates: a dollar sign in a commit message
    is kept."""
    return tuple(Variable(key, value, raw="$" in value) for key, value in predefined.items())


def _secret(server: Server, project: Project, job: Job) -> tuple[Variable, ...]:
    scheme, _, rest = server.url.partition("://")
    return (
        Variable("CI_JOB_TOKEN", job.token, public=False, masked=True),
        Variable(
            "CI_REPOSITORY_URL",
            f"{scheme}://gitlab-ci-token:{job.token}@{rest}/{project.full_path}.git",
            public=False,
        ),
    )


def _of_server(server: Server) -> dict[str, str]:
    url = urlsplit(server.url)
    port = url.port or _PORTS.get(url.scheme, 0)
    major, minor, patch = (*server.version.split("-")[0].split("."), "0", "0")[:3]
    return {
        "CI": "true",
        "GITLAB_CI": "true",
        "GITLAB_FEATURES": "",
        "CI_SERVER": "yes",
        "CI_SERVER_URL": server.url,
        "CI_SERVER_HOST": url.hostname or "",
        "CI_SERVER_FQDN": url.netloc,
        "CI_SERVER_PORT": str(port),
        "CI_SERVER_PROTOCOL": url.scheme,
        "CI_SERVER_NAME": server.name,
        "CI_SERVER_VERSION": server.version,
        "CI_SERVER_VERSION_MAJOR": major,
        "CI_SERVER_VERSION_MINOR": minor,
        "CI_SERVER_VERSION_PATCH": patch,
        "CI_SERVER_REVISION": server.revision,
        "CI_API_V4_URL": f"{server.url}/api/v4",
    }


def _of_project(server: Server, project: Project) -> dict[str, str]:
    namespace, _, path = project.full_path.rpartition("/")
    return {
        "CI_PROJECT_ID": str(project.id),
        "CI_PROJECT_NAME": path,
        "CI_PROJECT_TITLE": project.title,
        "CI_PROJECT_DESCRIPTION": project.description,
        "CI_PROJECT_PATH": project.full_path,
        "CI_PROJECT_PATH_SLUG": slug(project.full_path),
        "CI_PROJECT_NAMESPACE": namespace,
        "CI_PROJECT_NAMESPACE_ID": str(project.namespace_id),
        "CI_PROJECT_NAMESPACE_SLUG": slug(namespace),
        "CI_PROJECT_ROOT_NAMESPACE": namespace.partition("/")[0],
        "CI_PROJECT_URL": f"{server.url}/{project.full_path}",
        "CI_PROJECT_VISIBILITY": project.visibility,
        "CI_PROJECT_REPOSITORY_LANGUAGES": "",
        "CI_DEFAULT_BRANCH": project.default_branch,
        "CI_CONFIG_PATH": project.config_path,
    }


def _of_pipeline(pipeline: Pipeline) -> dict[str, str]:
    return {
        "CI_PIPELINE_IID": str(pipeline.iid),
        "CI_PIPELINE_SOURCE": pipeline.source,
        "CI_PIPELINE_CREATED_AT": _iso(pipeline.created_at),
        **({"CI_PIPELINE_TRIGGERED": "true"} if pipeline.source == "trigger" else {}),
        **({"CI_PIPELINE_NAME": pipeline.name} if pipeline.name else {}),
        **({"CI_OPEN_MERGE_REQUESTS": pipeline.open_merge_requests} if pipeline.open_merge_requests else {}),
    }


def _of_commit(pipeline: Pipeline, commit: Commit) -> dict[str, str]:
    title, _, description = commit.message.partition("\n")
    kind = "CI_COMMIT_TAG" if pipeline.tag else "CI_COMMIT_BRANCH"
    return {
        "CI_COMMIT_SHA": commit.sha,
        "CI_COMMIT_SHORT_SHA": commit.sha[:8],
        "CI_COMMIT_BEFORE_SHA": pipeline.before_sha,
        "CI_COMMIT_REF_NAME": pipeline.ref,
        "CI_COMMIT_REF_SLUG": slug(pipeline.ref),
        "CI_COMMIT_REF_PROTECTED": _bool(pipeline.protected),
        kind: pipeline.ref,
        **({"CI_COMMIT_TAG_MESSAGE": pipeline.tag_message} if pipeline.tag else {}),
        "CI_COMMIT_MESSAGE": commit.message,
        "CI_COMMIT_TITLE": title,
        "CI_COMMIT_DESCRIPTION": description.lstrip("\n"),
        "CI_COMMIT_TIMESTAMP": commit.timestamp.isoformat(timespec="seconds"),
        "CI_COMMIT_AUTHOR": f"{commit.author} <{commit.author_email}>",
    }


def _of_user(user: User) -> dict[str, str]:
    return {
        "GITLAB_USER_ID": str(user.id),
        "GITLAB_USER_EMAIL": user.email,
        "GITLAB_USER_LOGIN": user.username,
        "GITLAB_USER_NAME": user.name,
    }


def _of_merge_request(server: Server, project: Project, request: MergeRequest) -> dict[str, str]:
    prefix = "CI_MERGE_REQUEST_"
    predefined = {
        "ID": str(request.id),
        "IID": str(request.iid),
        "REF_PATH": f"refs/merge-requests/{request.iid}/head",
        "EVENT_TYPE": "detached",
        "TITLE": request.title,
        "DESCRIPTION": request.description,
        "DESCRIPTION_IS_TRUNCATED": _bool(request.description_is_truncated),
        "DRAFT": _bool(request.draft),
        **({"LABELS": ",".join(request.labels)} if request.labels else {}),
        "PROJECT_ID": str(project.id),
        "PROJECT_PATH": project.full_path,
        "PROJECT_URL": f"{server.url}/{project.full_path}",
        "SOURCE_BRANCH_NAME": request.source_branch,
        "SOURCE_BRANCH_SHA": request.source_sha,
        "SOURCE_BRANCH_PROTECTED": _bool(request.source_protected),
        "SOURCE_PROJECT_ID": str(request.source_project_id),
        "SOURCE_PROJECT_PATH": request.source_project_path,
        "SOURCE_PROJECT_URL": f"{server.url}/{request.source_project_path}",
        "TARGET_BRANCH_NAME": request.target_branch,
        "TARGET_BRANCH_SHA": request.target_sha,
        "TARGET_BRANCH_PROTECTED": _bool(request.target_protected),
        "DIFF_BASE_SHA": request.diff_base_sha,
    }
    return {prefix + key: value for key, value in predefined.items()}


def _of_runner(job: Job) -> dict[str, str]:
    if job.runner_id is None:
        return {}
    return {
        "CI_RUNNER_ID": str(job.runner_id),
        "CI_RUNNER_DESCRIPTION": job.runner_description,
        "CI_RUNNER_TAGS": "[" + ", ".join(f'"{tag}"' for tag in job.runner_tags) + "]",
    }


def _of_environment(plan: PlannedJob, variables: dict[str, str]) -> dict[str, str]:
    environment = plan.environment
    if environment is None:
        return {}
    predefined = {
        "CI_ENVIRONMENT_NAME": environment.name,
        "CI_ENVIRONMENT_SLUG": environment_slug(environment.name),
        "CI_ENVIRONMENT_ACTION": environment.action,
        "CI_ENVIRONMENT_TIER": environment.tier or tier(environment.name),
    }
    if environment.url is not None:
        predefined["CI_ENVIRONMENT_URL"] = expand(environment.url, {**variables, **predefined})
    return predefined


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
