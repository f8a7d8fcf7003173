"""`/projects/:id/pipeline(s)` and `/projects/:id/ci/lint` (supporting resources)."""

import datetime
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import queries, transitions
from api_server.ci.pipelines.access import (
    check_may_change,
    check_may_read_variables,
    check_not_archived,
    find_pipeline,
    may_change,
    short_ref,
)
from api_server.ci.pipelines.creation import PipelineRequest, not_allowed_on, pipeline_maker
from api_server.ci.pipelines.lint import LintRequest, lint
from api_server.ci.pipelines.planning import LIMITS
from api_server.ci.pipelines.states import Status
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state import audit_trail
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import Actor
from api_server.web.errors import too_many_requests
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import Name
from api_server.web.routes import Role, Routes

routes = Routes()

Source = Literal[
    "push",
    "web",
    "api",
    "trigger",
    "schedule",
    "pipeline",
    "parent_pipeline",
    "merge_request_event",
    "external",
]


@attrs.frozen(kw_only=True)
class ListPipelines(Paginated):
    id: str
    scope: Literal["running", "pending", "finished", "branches", "tags"] | None = None
    status: Status | None = None
    source: Source | None = None
    ref: str | None = None
    sha: str | None = None
    name: str | None = None
    yaml_errors: bool | None = None
    username: str | None = None
    updated_after: datetime.datetime | None = None
    updated_before: datetime.datetime | None = None
    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None

    @property
    def newest_of(self) -> Literal["branches", "tags"] | None:
        return self.scope if self.scope == "branches" or self.scope == "tags" else None

    @property
    def filters(self) -> dict[str, Any]:
        """The filters of `queries.list_pipelines`; `statuses` are those that both `scope` and `status`
        admit."""
        scoped = {
            "running": ["running"],
            "pending": ["pending"],
            "finished": ["success", "failed", "canceled"],
        }.get(self.scope or "")
        if self.status is not None:
            scoped = [self.status] if scoped is None or self.status in scoped else []
        return {"statuses": scoped} | {name: getattr(self, name) for name in queries.FILTERS}


@attrs.frozen(kw_only=True)
class GivenVariable:
    key: Name = attrs.field(metadata={"present": True})
    value: str
    variable_type: Literal["env_var", "file"] = "env_var"


@attrs.frozen(kw_only=True)
class CreatePipeline:
    id: str
    ref: str = attrs.field(metadata={"present": True})
    variables: list[GivenVariable] = attrs.field(factory=list)
    inputs: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class LatestPipeline:
    id: str
    ref: str | None = None


@attrs.frozen(kw_only=True)
class OnePipeline:
    id: str
    pipeline_id: int


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


@routes.post(
    "/projects/{id}/pipeline", access=project(Role.DEVELOPER, feature="builds"), answers="201 Pipeline"
)
async def create_pipeline(
    services: Services, actor: Actor, params: CreatePipeline, project: Project
) -> web.Response:
    """Run a pipeline on a branch or tag."""
    making = pipeline_maker(services)
    resolved = making.resolve(project.id, params.ref)
    tag = resolved.kind == "tag"
    if not await may_change(services, project, resolved.name, tag=tag):
        raise not_allowed_on(resolved.name)
    pipeline_id = await making.make(
        PipelineRequest(
            project_id=project.id,
            ref=resolved.name,
            tag=tag,
            sha=resolved.commit,
            source="api",
            user_id=actor.user_id,
            variables=tuple(
                Variable(variable.key, variable.value, file=variable.variable_type == "file")
                for variable in params.variables
            ),
            inputs=params.inputs,
        )
    )
    return await _answer(services, project, pipeline_id, status=201)


@routes.get("/projects/{id}/pipelines", access=project(feature="builds"), answers="200 [PipelineInList]")
async def list_pipelines(
    request: web.Request, services: Services, params: ListPipelines, project: Project
) -> web.Response:
    page = requested_page(params, queries.LISTING)
    rows = await queries.list_pipelines(services.database, page, project.id, params.newest_of, params.filters)
    return await paginated(request, page, rows)


@routes.get("/projects/{id}/pipelines/latest", access=project(feature="builds"), answers="200 Pipeline")
async def show_latest_pipeline(services: Services, params: LatestPipeline, project: Project) -> web.Response:
    """Show the latest pipeline of a ref, by default the default branch."""
    ref, tag = short_ref(services, project, params.ref or project.default_branch)
    return json_text(await queries.show_latest_pipeline(services.database, project.id, ref, tag=tag))


@routes.get(
    "/projects/{id}/pipelines/{pipeline_id}", access=project(feature="builds"), answers="200 Pipeline"
)
async def show_pipeline(services: Services, params: OnePipeline, project: Project) -> web.Response:
    return await _answer(services, project, params.pipeline_id)


@routes.get(
    "/projects/{id}/pipelines/{pipeline_id}/variables",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="200 [PipelineVariable]",
)
async def list_pipeline_variables(
    services: Services, actor: Actor, params: OnePipeline, project: Project
) -> web.Response:
    """List the variables that the pipeline was given when it was started."""
    pipeline = await find_pipeline(services, project, params.pipeline_id)
    await check_may_read_variables(services, actor, project, pipeline)
    rows = await queries.pipeline_variables(services.database, pipeline.id)
    vault = services.vault
    return json_value(
        [
            {
                "variable_type": row.variable_type,
                "key": row.key,
                "value": vault.decrypt(row.value),
                "raw": False,
            }
            for row in rows
        ]
    )


@routes.post(
    "/projects/{id}/pipelines/{pipeline_id}/cancel",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="200 Pipeline",
)
async def cancel_pipeline(services: Services, params: OnePipeline, project: Project) -> web.Response:
    """Cancel all jobs of a pipeline that have not finished."""
    pipeline = await find_pipeline(services, project, params.pipeline_id)
    await check_may_change(services, project, pipeline.ref, tag=pipeline.tag)
    async with services.database.transaction() as transaction:
        await transitions.cancel_pipeline(transaction, pipeline.id)
    return await _answer(services, project, pipeline.id)


@routes.post(
    "/projects/{id}/pipelines/{pipeline_id}/retry",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="201 Pipeline",
)
async def retry_pipeline(
    services: Services, actor: Actor, params: OnePipeline, project: Project
) -> web.Response:
    """Run the failed and canceled jobs of a pipeline again."""
    pipeline = await find_pipeline(services, project, params.pipeline_id)
    await check_may_change(services, project, pipeline.ref, tag=pipeline.tag)
    check_not_archived(services, pipeline.created_at)
    async with services.database.transaction() as transaction:
        await transitions.retry_pipeline(transaction, pipeline.id, actor.user_id)
    return await _answer(services, project, pipeline.id, status=201)


@routes.delete(
    "/projects/{id}/pipelines/{pipeline_id}", access=project(Role.OWNER, feature="builds"), answers="204"
)
async def delete_pipeline(
    services: Services, actor: Actor, params: OnePipeline, project: Project
) -> web.Response:
    """Delete a pipeline with its jobs, their logs and artifacts."""
    pipeline = await find_pipeline(services, project, params.pipeline_id)
    async with services.database.transaction() as transaction:
        await transitions.delete_pipeline(transaction, pipeline.id)
        target = project.entity.target(pipeline.id, str(pipeline.id))
        await audit_trail.record(transaction, "destroy_pipeline", actor.author, target)
    return no_content()


@routes.post("/projects/{id}/ci/lint", access=project(Role.DEVELOPER, feature="builds"), answers="200 Lint")
async def lint_text(services: Services, actor: Actor, params: LintText, project: Project) -> web.Response:
    """Check a text as if it were the project's file on `ref` (the default branch); `dry_run` also applies its
    rules."""
    _count_lint(services, actor)
    lint_request = LintRequest(
        project_id=project.id,
        user_id=actor.user_id,
        ref=params.ref or project.default_branch,
        text=params.content,
        plans=params.dry_run,
        shows_jobs=params.include_jobs,
    )
    return json_value(await lint(pipeline_maker(services), lint_request))


@routes.get("/projects/{id}/ci/lint", access=project(Role.REPORTER, feature="builds"), answers="200 Lint")
async def lint_file(services: Services, actor: Actor, params: LintFile, project: Project) -> web.Response:
    """Check the project's file on `content_ref`; with `dry_run`, also apply its rules on `dry_run_ref` (the
    default of both is the default branch)."""
    _count_lint(services, actor)
    lint_request = LintRequest(
        project_id=project.id,
        user_id=actor.user_id,
        ref=params.content_ref or project.default_branch,
        text=None,
        plans=params.dry_run,
        plans_on=params.dry_run_ref or project.default_branch,
        shows_jobs=params.include_jobs,
    )
    return json_value(await lint(pipeline_maker(services), lint_request))


def _count_lint(services: Services, actor: Actor) -> None:
    if wait := services[LIMITS].lint.retry_after(actor.user_id):
        raise too_many_requests(wait)


async def _answer(services: Services, project: Project, pipeline_id: int, status: int = 200) -> web.Response:
    entity = await queries.show_pipeline(services.database, project.id, pipeline_id)
    return json_text(entity, status=status)
