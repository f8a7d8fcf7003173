"""The description of a job for its runner: the 201 of `POST /jobs/request`. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import attrs
import orjson
from attrs import asdict

from api_server.ci.config import checks, predefined
from api_server.ci.config.execution import REPORTS
from api_server.ci.config.plan import Artifacts, Image, PlannedJob, Release, ReleaseLink
from api_server.ci.config.predefined import job_variables, pipeline_variables
from api_server.ci.config.variables import Variable, expand_all, overlay, values
from api_server.ci.identity.claims import Identity, audience_of
from api_server.ci.identity.keys import Signer
from api_server.ci.identity.queries import UserRoles
from api_server.ci.runners.job_queries import EarlierJob, StartedJob
from api_server.ci.runners.queries import Runner
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.state.secrets import JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN

#: The reasons that runners may report; any other is recorded as `unknown_failure`.
FAILURE_REASONS: Final = frozenset(
    {
        "unknown_failure", "script_failure", "api_failure", "stuck_or_timeout_failure", "runner_system_failure",
        "missing_dependency_failure", "runner_unsupported", "stale_schedule", "job_execution_timeout",
        "archived_failure", "unmet_prerequisites", "scheduler_failure", "data_integrity_failure",
        "image_pull_failure", "trace_size_exceeded", "environment_creation_failure", "job_token_expired",
    }
)  # fmt: skip


def failure_reason(reported: str | None) -> str:
    """Return `reported` if it is a known reason, otherwise `unknown_failure`."""
    return reported if reported in FAILURE_REASONS else "unknown_failure"


Shape = dict[str, Any]


def plan_shape(job: PlannedJob, *, timeout: int, protected: bool) -> Shape:
    """Return the keys `steps`, `hooks`, `image`, `services`, `artifacts` and `cache`.

    `timeout` is the job's effective one in seconds; `protected` says whether its ref is, since such jobs do
    not share caches with others.
    """
    return {
        "steps": step_shapes(job, timeout),
        "hooks": hook_shapes(job),
        "image": None if job.image is None else _image_shape(job.image),
        "services": service_shapes(job),
        "artifacts": None if job.artifacts is None else artifact_shapes(job.artifacts),
        "cache": cache_shapes(job, protected=protected),
    }


def variable_shapes(
    job: PlannedJob, *, predefined: Iterable[Variable], extra: Iterable[Variable] = ()
) -> list[Shape]:
    """Return `variables`: `predefined`, then the file's, then `extra` (project, pipeline, play), which are
    strongest; expanded."""
    return [variable.for_runner() for variable in expand_all(overlay(predefined, job.variables, extra))]


def dependency_shape(job_id: int, name: str, token: str, filename: str, size: int) -> Shape:
    """Return an item of `dependencies`: an earlier job with an archive, and the token with which to download
    it."""
    return {
        "id": job_id,
        "name": name,
        "token": token,
        "artifacts_file": {"filename": filename, "size": size},
    }


def step_shapes(job: PlannedJob, timeout: int) -> list[Shape]:
    """Return the script, the step that creates the release, and `after_script`, which runs whatever the
    result of the others."""
    steps = [
        _step_shape("script", [*job.before_script, *job.script], timeout, "on_success", allow_failure=False)
    ]
    if job.release is not None:
        command = release_command(job.release)
        steps.append(_step_shape("release", [command], timeout, "on_success", allow_failure=False))
    if job.after_script:
        steps.append(
            _step_shape("after_script", list(job.after_script), timeout, "always", allow_failure=True)
        )
    return steps


def _step_shape(name: str, script: list[str], timeout: int, when: str, *, allow_failure: bool) -> Shape:
    return {"name": name, "script": script, "timeout": timeout, "when": when, "allow_failure": allow_failure}


def hook_shapes(job: PlannedJob) -> list[Shape]:
    script = list(job.pre_get_sources_script)
    return [{"name": "pre_get_sources_script", "script": script}] if script else []


def release_command(release: Release) -> str:
    """Return the call of release-cli, a program in the job's image; the shell replaces variables."""
    values = {
        "name": release.name,
        "description": release.description,
        "tag-name": release.tag_name,
        "tag-message": release.tag_message,
        "ref": release.ref,
        "released-at": release.released_at,
    }
    options = [(option, value) for option, value in values.items() if value is not None]
    options += [("milestone", milestone) for milestone in release.milestones]
    options += [("assets-link", _link(link)) for link in release.links]
    return " ".join(["release-cli create", *(f"--{option} {_quoted(value)}" for option, value in options)])


def _link(link: ReleaseLink) -> str:
    return orjson.dumps({key: value for key, value in asdict(link).items() if value is not None}).decode()


def _quoted(text: str) -> str:
    """Return the text in double quotes, for a shell that replaces variables in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _image_shape(image: Image) -> Shape:
    options = {"docker": image.docker, "kubernetes": image.kubernetes}
    return {
        "name": image.name,
        "entrypoint": None if image.entrypoint is None else list(image.entrypoint),
        "ports": [],
        "executor_opts": {executor: given for executor, given in options.items() if given},
        "pull_policy": list(image.pull_policy) or None,
    }


def service_shapes(job: PlannedJob) -> list[Shape]:
    return [
        {
            **_image_shape(service),
            "alias": service.alias,
            "command": None if service.command is None else list(service.command),
            "variables": [variable.for_runner() for variable in service.variables],
        }
        for service in job.services
    ]


def artifact_shapes(artifacts: Artifacts) -> list[Shape]:
    """Return one upload for the archive, if it has paths, and one for each report."""
    expire_in = None if artifacts.expire_in is None else checks.spell_duration(artifacts.expire_in)
    uploads: list[Shape] = []
    if artifacts.paths or artifacts.untracked:
        archive: Shape = {
            "name": artifacts.name,
            "untracked": artifacts.untracked,
            "paths": list(artifacts.paths),
            "when": artifacts.when,
            "expire_in": expire_in,
            "artifact_type": "archive",
            "artifact_format": "zip",
        }
        uploads.append({**archive, "exclude": list(artifacts.exclude)} if artifacts.exclude else archive)
    for kind, paths in artifacts.reports.items():
        filename, form = REPORTS[kind]
        report: Shape = {"name": filename, "paths": list(paths), "when": "always", "expire_in": expire_in}
        uploads.append({**report, "artifact_type": kind, "artifact_format": form})
    return uploads


def cache_shapes(job: PlannedJob, *, protected: bool) -> list[Shape]:
    suffix = "-protected" if protected else "-non_protected"
    return [
        {
            "key": cache.key if cache.unprotect else cache.key + suffix,
            "untracked": cache.untracked,
            "unprotect": cache.unprotect,
            "paths": list(cache.paths),
            "policy": cache.policy,
            "when": cache.when,
            "fallback_keys": list(cache.fallback_keys),
        }
        for cache in job.cache
    ]


#: The refspecs of a job that fetches the whole history.
_ALL_REFS = (f"+{BRANCHES}*:refs/remotes/origin/*", f"+{TAGS}*:{TAGS}*")
#: git's value for unlimited depth, which is also the maximum.
INFINITE_DEPTH = 2**31 - 1


@attrs.frozen(kw_only=True)
class JobResponse:
    """A job that a runner has got, with everything that it is given."""

    server: predefined.Server
    token: str
    job: StartedJob
    plan: PlannedJob
    runner: Runner
    project: predefined.Project
    user: predefined.User | None
    merge_request: predefined.MergeRequest | None
    #: Those from the job's branch.
    open_merge_requests: str
    #: Earlier jobs whose results this job gets.
    earlier: Sequence[EarlierJob]
    #: The variables reported by earlier jobs and given to the pipeline and to the job, weakest first.
    given_variables: Sequence[Variable]
    id_tokens: Sequence[Variable] = ()

    @property
    def seconds(self) -> int:
        """The maximum duration of the job in seconds."""
        return min(self.job.timeout, self.runner.maximum_timeout or self.job.timeout)

    def payload(self) -> dict[str, Any]:
        variables = self.variables()
        default = self.job.default_depth
        depth = next(
            (_depth(variable["value"], default) for variable in variables if variable["key"] == "GIT_DEPTH"),
            default,
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
            **plan_shape(self.plan, timeout=self.seconds, protected=self.job.protected),
            "credentials": [],
            "dependencies": [
                dependency_shape(job.id, job.name, self.token, job.filename, job.size)
                for job in self.earlier
                if job.filename is not None and job.size is not None
            ],
            "features": {
                "trace_sections": True,
                "failure_reasons": sorted(FAILURE_REASONS),
                "token_mask_prefixes": [JOB_TOKEN, PERSONAL_ACCESS_TOKEN, RUNNER_TOKEN],
            },
        }

    def variables(self) -> list[dict[str, Any]]:
        """Return the variables in the runner's terms; of each key the strongest."""
        predefined = (*self._predefined(), *self.id_tokens)
        return variable_shapes(self.plan, predefined=predefined, extra=self.given_variables)

    def with_id_tokens(self, roles: UserRoles | None, signer: Signer) -> "JobResponse":
        """Return a copy with the job's identity tokens; signing each takes a millisecond. Raise
        `TooManyBytes`."""
        public = [variable for variable in self._predefined() if variable.public]
        variables = values(expand_all(overlay(public, self.plan.variables, self.given_variables)))
        identity = self._identity(roles)
        tokens = [
            Variable(
                name, signer.sign(identity.claims(audience_of(token, variables))), public=False, masked=True
            )
            for name, token in self.plan.id_tokens.items()
        ]
        return attrs.evolve(self, id_tokens=tokens)

    def _identity(self, roles: UserRoles | None) -> Identity:
        return Identity(
            server=self.server,
            project=self.project,
            pipeline=self._pipeline(),
            commit=self._commit(),
            job=self._job(),
            plan=self.plan,
            user=self.user,
            roles=roles,
            subject=self.job.ci_id_token_sub_claim_components,
        )

    def _predefined(self) -> tuple[Variable, ...]:
        of_pipeline = pipeline_variables(
            self.server, self.project, self._pipeline(), self._commit(), self.user, self.merge_request
        )
        of_job = job_variables(self.server, self.project, self._job(), self.plan, of_pipeline)
        return (*of_pipeline, *of_job)

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
            # the first one fetches the commit even if its branch has moved on or has been deleted
            "refspecs": [
                f"+{self.job.sha}:refs/pipelines/{self.job.pipeline_id}",
                *(self._branch_or_tag() if depth else _ALL_REFS),
            ],
            "depth": depth,
        }

    def _branch_or_tag(self) -> list[str]:
        """Return the refspecs in addition to the commit: none for a merge request."""
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
            manual=self.plan.when == "manual",
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


def _depth(text: str, default: int) -> int:
    """Return the depth for a value of `GIT_DEPTH`; 0 means the whole history."""
    digits = text.lstrip("0")[: len(str(INFINITE_DEPTH)) + 1]
    return min(int(digits or "0"), INFINITE_DEPTH) if text.isdecimal() else default
