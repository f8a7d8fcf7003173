"""`/projects/:id/ci/lint` (supporting resource): what a configuration would give, without giving it."""

import asyncio
from typing import Any

import attrs
import yaml
from aiohttp import web

from api_server.ci.config import configuration, pipeline
from api_server.ci.config.context import Context
from api_server.ci.config.errors import ConfigError
from api_server.ci.config.plan import PlannedJob
from api_server.ci.pipelines import repository
from api_server.ci.pipelines.access import find_readable_project
from api_server.ci.pipelines.creation import NotMade, Wanted, maker
from api_server.git.repositories import repositories
from api_server.namespaces.projects.access import Project, project
from api_server.web.access import Role
from api_server.web.answers import json_value
from api_server.web.params import parse
from api_server.web.routes import Routes, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class LintText:
    id: str
    content: str
    dry_run: bool = False
    include_jobs: bool = False
    ref: str | None = None


@attrs.frozen(kw_only=True)
class LintFile:
    id: str
    content_ref: str | None = None
    dry_run: bool = False
    include_jobs: bool = False
    dry_run_ref: str | None = None


@routes.post("/projects/{id}/ci/lint", access=project(Role.DEVELOPER))
async def lint_text(request: web.Request) -> web.Response:
    """Tries out a text as if it were the project's file on `ref` (the default branch); `dry_run` obeys rules too."""
    wanted = await parse(request, LintText)
    found = await find_readable_project(request, wanted.id)
    context, _ = await _context(request, found, wanted.ref, wanted.content)
    return json_value(
        await asyncio.to_thread(
            lint, wanted.content, context, plans=wanted.dry_run, shows_jobs=wanted.include_jobs
        )
    )


@routes.get("/projects/{id}/ci/lint", access=project(Role.REPORTER))
async def lint_file(request: web.Request) -> web.Response:
    """Tries out the project's file as it is on `content_ref` (the default branch)."""
    wanted = await parse(request, LintFile)
    found = await find_readable_project(request, wanted.id)
    try:
        context, text = await _context(request, found, wanted.content_ref, None)
    except NotMade as reason:
        return json_value(_verdict(list(reason.errors)))
    return json_value(
        await asyncio.to_thread(
            lint, text or "", context, plans=wanted.dry_run, shows_jobs=wanted.include_jobs
        )
    )


async def _context(
    request: web.Request, found: Project, ref: str | None, text: str | None
) -> tuple[Context, str | None]:
    """Of the ref, or of nothing where the repository has no such ref. Raises `NotMade` where there is no file."""
    resolved = repository.resolve_ref(repositories(request), found.id, ref or found.default_branch)
    if resolved is None:
        if text is None:
            raise NotMade("Please provide content of .gitlab-ci.yml")
        return Context(), text
    return await maker(request.config_dict).context(
        Wanted(
            project_id=found.id,
            ref=resolved.name,
            tag=resolved.kind == "tag",
            sha=resolved.commit,
            source="push",
            user_id=caller(request).user_id,
            configuration=text,
        )
    )


def lint(text: str, context: Context, *, plans: bool, shows_jobs: bool) -> dict[str, Any]:
    """GitLab's verdict on a configuration; `plans` also says what its rules leave of it."""
    try:
        read = configuration.read(text, context)
        plan = pipeline.plan(read, context)
    except ConfigError as refused:
        return _verdict(list(refused.errors))
    errors = [plan.reason] if plans and plan.reason else []
    return _verdict(errors) | {
        "merged_yaml": yaml.safe_dump(read.merged, sort_keys=False, allow_unicode=True),
        "includes": [{"type": "local", "location": path} for path in read.includes],
        **({"jobs": [_job(job) for job in plan.jobs]} if shows_jobs else {}),
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
