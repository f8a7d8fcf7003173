"""CI lint: GitLab's verdict on a configuration, without creating a pipeline."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import attrs

from api_server.ci.config import configuration, pipeline
from api_server.ci.config.context import Context
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.includes import Included
from api_server.ci.config.plan import PlannedJob
from api_server.ci.config.yaml_text import dump
from api_server.ci.pipelines import other_files
from api_server.ci.pipelines.creation import PipelineMaker, PipelineRefused, PipelineRequest
from api_server.git.references import Resolved


@attrs.frozen(kw_only=True)
class LintRequest:
    """A configuration to check: `text`, or else the project's file on `ref`.

    `plans` also applies its rules: on `ref`, or on `plans_on` if that is another ref. `shows_jobs` shows the
    jobs of that pipeline, or else all jobs of the file.
    """

    project_id: int
    user_id: int
    ref: str
    text: str | None
    plans: bool
    shows_jobs: bool
    plans_on: str | None = None


async def lint(maker: PipelineMaker, lint_request: LintRequest) -> dict[str, Any]:
    """Return the answer. If the repository has no such ref, a text is checked without it."""
    try:
        context, text = await _context(maker, lint_request)
        return await maker.in_thread(_judge, text or "", context, lint_request)
    except (PipelineRefused, CiConfigError) as refused:
        return _lint_answer(list(refused.errors))


async def _context(maker: PipelineMaker, lint_request: LintRequest) -> tuple[Context, str | None]:
    """Return the context and the text. Raise `PipelineRefused` and `CiConfigError`."""
    try:
        resolved = maker.resolve(lint_request.project_id, lint_request.ref)
    except PipelineRefused:
        if lint_request.text is None:
            raise
        template = other_files.templates(maker.settings.ci_templates_dir)
        return Context(project_id=lint_request.project_id, template=template), lint_request.text
    context, text = await maker.context(_pipeline_request(lint_request, resolved, lint_request.text))
    if not lint_request.plans or lint_request.plans_on is None:
        return context, text
    elsewhere = maker.resolve(lint_request.project_id, lint_request.plans_on)
    if elsewhere == resolved:
        return context, text
    # as if somebody had sent it: its rules must not see protected variables even on a protected ref
    return await maker.context(_pipeline_request(lint_request, elsewhere, text))


def _pipeline_request(lint_request: LintRequest, on: Resolved, text: str | None) -> PipelineRequest:
    return PipelineRequest(
        project_id=lint_request.project_id,
        ref=on.name,
        tag=on.kind == "tag",
        sha=on.commit,
        source="push",
        user_id=lint_request.user_id,
        configuration=text,
    )


def _judge(text: str, context: Context, lint_request: LintRequest) -> dict[str, Any]:
    """Return the answer for a text that can be read. Raise `CiConfigError`."""
    read = configuration.read(text, context)
    errors: list[str] = []
    jobs: Iterable[PlannedJob] = ()
    if lint_request.plans:
        plan = pipeline.plan(read, context)
        errors, jobs = [plan.reason] if plan.reason else [], plan.jobs
    elif lint_request.shows_jobs:
        jobs = pipeline.every_job(read, context)
    return _lint_answer(errors) | {
        "warnings": list(read.warnings),
        "merged_yaml": dump(read.merged),
        "includes": [_included(included, context) for included in read.includes],
        **({"jobs": [_job(job) for job in jobs]} if lint_request.shows_jobs else {}),
    }


def _included(included: Included, context: Context) -> dict[str, Any]:
    server = context.values().get("CI_SERVER_URL", "")
    source = included.source
    base = f"{server}/{source.project}/-" if source is not None else ""
    file_path = quote(f"{source.sha}/{included.path}") if source is not None else ""
    raw = {"remote": included.location, "component": None, "template": None}
    return {
        "type": included.type,
        "location": included.location,
        "blob": f"{base}/blob/{file_path}" if source is not None else None,
        "raw": raw.get(included.type, f"{base}/raw/{file_path}"),
        "extra": included.extra,
        "context_project": included.context.project or None,
        "context_sha": included.context.sha or None,
    }


def _lint_answer(errors: list[str]) -> dict[str, Any]:
    return {"valid": not errors, "errors": errors, "warnings": [], "merged_yaml": None, "includes": []}


def _job(job: PlannedJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "stage": job.stage,
        "before_script": list(job.before_script),
        "script": list(job.script),
        "after_script": list(job.after_script),
        "tag_list": list(job.tags),
        "only": None,
        "except": None,
        "environment": None if job.environment is None else job.environment.name,
        "when": job.when,
        "allow_failure": job.allow_failure,
        "needs": None if job.needs is None else [{"name": need.job} for need in job.needs],
    }
