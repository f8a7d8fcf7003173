"""What a configuration would give, without giving it: GitLab's verdict."""

from typing import Any
from urllib.parse import quote

import attrs
import yaml
from yaml.cyaml import CSafeDumper

from api_server.ci.config import configuration, pipeline
from api_server.ci.config.context import Context
from api_server.ci.config.errors import ConfigError
from api_server.ci.config.includes import Included
from api_server.ci.config.plan import PlannedJob
from api_server.ci.pipelines.creation import Maker, NotMade, Wanted
from api_server.git.references import Resolved


@attrs.frozen(kw_only=True)
class Question:
    """A configuration to be tried out: `text`, or without one the project's file as it is on `ref`.

    `plans` also asks what its rules leave of it: on `ref`, or on `plans_on` where that is another one.
    """

    project_id: int
    user_id: int
    ref: str
    text: str | None
    plans: bool
    shows_jobs: bool
    plans_on: str | None = None


async def lint(maker: Maker, question: Question) -> dict[str, Any]:
    """The verdict; a text is judged by itself where the repository has no such ref."""
    try:
        context, text = await _context(maker, question)
        return await maker.in_thread(_judge, text or "", context, question)
    except (NotMade, ConfigError) as refused:
        return _verdict(list(refused.errors))


async def _context(maker: Maker, question: Question) -> tuple[Context, str | None]:
    """Raises `NotMade` and `ConfigError`."""
    try:
        resolved = maker.resolve(question.project_id, question.ref)
    except NotMade:
        if question.text is None:
            raise
        return Context(project_id=question.project_id), question.text
    context, text = await maker.context(_wanted(question, resolved, question.text))
    if not question.plans or question.plans_on is None:
        return context, text
    elsewhere = maker.resolve(question.project_id, question.plans_on)
    if elsewhere == resolved:
        return context, text
    # as if somebody had sent it: on a protected ref its rules are not told what is protected
    return await maker.context(_wanted(question, elsewhere, text))


def _wanted(question: Question, on: Resolved, text: str | None) -> Wanted:
    return Wanted(
        project_id=question.project_id,
        ref=on.name,
        tag=on.kind == "tag",
        sha=on.commit,
        source="push",
        user_id=question.user_id,
        configuration=text,
    )


def _judge(text: str, context: Context, question: Question) -> dict[str, Any]:
    """Raises `ConfigError`."""
    read = configuration.read(text, context)
    plan = pipeline.plan(read, context)
    errors = [plan.reason] if question.plans and plan.reason else []
    return _verdict(errors) | {
        "warnings": list(read.warnings),
        "merged_yaml": yaml.dump(read.merged, Dumper=CSafeDumper, sort_keys=False, allow_unicode=True),
        "includes": [_included(one, context) for one in read.includes],
        **({"jobs": [_job(job) for job in plan.jobs]} if question.shows_jobs else {}),
    }


def _included(one: Included, context: Context) -> dict[str, Any]:
    server = context.known().get("CI_SERVER_URL", "")
    source = one.source
    at = quote(f"{source.sha}/{one.location}") if source is not None else ""
    return {
        "type": one.type,
        "location": one.location,
        "blob": f"{server}/{source.project}/-/blob/{at}" if source is not None else None,
        "raw": f"{server}/{source.project}/-/raw/{at}" if source is not None else one.location,
        "extra": one.extra,
        "context_project": one.context.project or None,
        "context_sha": one.context.sha or None,
    }


def _verdict(errors: list[str]) -> dict[str, Any]:
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
