"""What a runner is told about one planned job, in the shapes of `POST /jobs/request`."""

from collections.abc import Iterable
from typing import Any

import orjson
from attrs import asdict

from api_server.ci.config import checks
from api_server.ci.config.execution import REPORTS
from api_server.ci.config.plan import Artifacts, Image, PlannedJob, Release, ReleaseLink
from api_server.ci.config.variables import Variable, expand_all, overlay

Shape = dict[str, Any]


def describe(job: PlannedJob, *, timeout: int, protected: bool) -> Shape:
    """The keys `steps`, `hooks`, `image`, `services`, `artifacts` and `cache`.

    `timeout` is the job's effective one in seconds; `protected` says whether its ref is, since such jobs keep
    their caches apart from everyone else's.
    """
    return {
        "steps": steps(job, timeout),
        "hooks": hooks(job),
        "image": None if job.image is None else _image(job.image),
        "services": services(job),
        "artifacts": None if job.artifacts is None else artifacts(job.artifacts),
        "cache": caches(job, protected=protected),
    }


def variables(
    job: PlannedJob, *, predefined: Iterable[Variable], given: Iterable[Variable] = ()
) -> list[Shape]:
    """`variables`: `predefined` below the file's below `given` (project, pipeline, play), expanded."""
    return [one.for_runner() for one in expand_all(overlay(predefined, job.variables, given))]


def dependency(job_id: int, name: str, token: str, filename: str, size: int) -> Shape:
    """An item of `dependencies`: an earlier job with an archive, and the token with which to download it."""
    return {
        "id": job_id,
        "name": name,
        "token": token,
        "artifacts_file": {"filename": filename, "size": size},
    }


def steps(job: PlannedJob, timeout: int) -> list[Shape]:
    """The script, what makes the release, and `after_script` that runs whatever came of it."""
    found = [_step("script", [*job.before_script, *job.script], timeout, "on_success", allow_failure=False)]
    if job.release is not None:
        command = release_command(job.release)
        found.append(_step("release", [command], timeout, "on_success", allow_failure=False))
    if job.after_script:
        found.append(_step("after_script", list(job.after_script), timeout, "always", allow_failure=True))
    return found


def _step(name: str, script: list[str], timeout: int, when: str, *, allow_failure: bool) -> Shape:
    return {"name": name, "script": script, "timeout": timeout, "when": when, "allow_failure": allow_failure}


def hooks(job: PlannedJob) -> list[Shape]:
    script = list(job.pre_get_sources_script)
    return [{"name": "pre_get_sources_script", "script": script}] if script else []


def release_command(release: Release) -> str:
    """The call of release-cli, a program in the job's image; the shell puts variables in."""
    given = {
        "name": release.name,
        "description": release.description,
        "tag-name": release.tag_name,
        "tag-message": release.tag_message,
        "ref": release.ref,
        "released-at": release.released_at,
    }
    options = [(option, value) for option, value in given.items() if value is not None]
    options += [("milestone", milestone) for milestone in release.milestones]
    options += [("assets-link", _link(link)) for link in release.links]
    return " ".join(["release-cli create", *(f"--{option} {_quoted(value)}" for option, value in options)])


def _link(link: ReleaseLink) -> str:
    return orjson.dumps({key: value for key, value in asdict(link).items() if value is not None}).decode()


def _quoted(text: str) -> str:
    """In double quotes, for a shell that is to replace variables in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _image(image: Image) -> Shape:
    return {
        "name": image.name,
        "entrypoint": None if image.entrypoint is None else list(image.entrypoint),
        "ports": [],
        "executor_opts": {"docker": dict(image.docker)} if image.docker else {},
        "pull_policy": list(image.pull_policy) or None,
    }


def services(job: PlannedJob) -> list[Shape]:
    return [
        {
            **_image(service),
            "alias": service.alias,
            "command": None if service.command is None else list(service.command),
            "variables": [variable.for_runner() for variable in service.variables],
        }
        for service in job.services
    ]


def artifacts(planned: Artifacts) -> list[Shape]:
    """One upload for the archive, when it has paths, and one for each report."""
    expire_in = None if planned.expire_in is None else checks.spell_duration(planned.expire_in)
    found: list[Shape] = []
    if planned.paths or planned.untracked:
        archive: Shape = {
            "name": planned.name,
            "untracked": planned.untracked,
            "paths": list(planned.paths),
            "when": planned.when,
            "expire_in": expire_in,
            "artifact_type": "archive",
            "artifact_format": "zip",
        }
        found.append({**archive, "exclude": list(planned.exclude)} if planned.exclude else archive)
    for kind, paths in planned.reports.items():
        filename, form = REPORTS[kind]
        report: Shape = {"name": filename, "paths": list(paths), "when": "always", "expire_in": expire_in}
        found.append({**report, "artifact_type": kind, "artifact_format": form})
    return found


def caches(job: PlannedJob, *, protected: bool) -> list[Shape]:
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
