"""`/projects/:id/pipeline(s)` (supporting resource)."""

import datetime
from typing import Literal

import attrs
from aiohttp import web

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import actions, queries, repository
from api_server.ci.pipelines.access import (
    check_may_change,
    check_not_archived,
    find_pipeline,
    find_readable_project,
    may_change,
)
from api_server.ci.pipelines.creation import NotMade, Wanted, maker
from api_server.ci.pipelines.states import Status
from api_server.git.repositories import repositories
from api_server.namespaces.projects.access import Project, project
from api_server.state import audit_trail
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.authorship import author
from api_server.web.errors import invalid, record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes, caller

routes = Routes()

Source = Literal[
    "push", "web", "api", "trigger", "schedule", "pipeline", "parent_pipeline", "merge_request_event"
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
    def statuses(self) -> list[str] | None:
        """The statuses that `scope` and `status` leave; None for all."""
        scoped = {
            "running": ["running"],
            "pending": ["pending"],
            "finished": ["success", "failed", "canceled"],
        }.get(self.scope or "")
        if self.status is None:
            return scoped
        return [self.status] if scoped is None or self.status in scoped else []


@attrs.frozen(kw_only=True)
class PipelineVariable:
    key: str = attrs.field(metadata={"present": True})
    value: str
    variable_type: Literal["env_var", "file"] = "env_var"


@attrs.frozen(kw_only=True)
class CreatePipeline:
    id: str
    ref: str = attrs.field(metadata={"present": True})
    variables: list[PipelineVariable] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class LatestPipeline:
    id: str
    ref: str | None = None


@attrs.frozen(kw_only=True)
class OnePipeline:
    id: str
    pipeline_id: int


@routes.post("/projects/{id}/pipeline", access=project(Role.DEVELOPER))
async def create_pipeline(request: web.Request) -> web.Response:
    """Runs a pipeline on a branch or tag."""
    wanted = await parse(request, CreatePipeline)
    found = await find_readable_project(request, wanted.id)
    resolved = repository.resolve_ref(repositories(request), found.id, wanted.ref)
    if resolved is None:
        raise _refused("Reference not found")
    tag = resolved.kind == "tag"
    if not await may_change(request, found, resolved.name, tag=tag):
        raise _refused(f"You do not have sufficient permission to run a pipeline on '{resolved.name}'.")
    try:
        pipeline_id = await maker(request.config_dict).make(
            Wanted(
                project_id=found.id,
                ref=resolved.name,
                tag=tag,
                sha=resolved.commit,
                source="api",
                user_id=caller(request).user_id,
                variables=tuple(
                    Variable(one.key, one.value, file=one.variable_type == "file") for one in wanted.variables
                ),
            )
        )
    except NotMade as reason:
        raise _refused(*reason.errors) from None
    return await _answer(request, found, pipeline_id, status=201)


@routes.get("/projects/{id}/pipelines", access=project())
async def list_pipelines(request: web.Request) -> web.Response:
    wanted = await parse(request, ListPipelines)
    found = await find_readable_project(request, wanted.id)
    page = wanted_page(wanted, queries.LISTING)
    names = ("source", "ref", "sha", "name", "yaml_errors", "username")
    moments = ("updated_after", "updated_before", "created_after", "created_before")
    listed = await queries.list_pipelines(
        context.database(request),
        page,
        wanted.scope if wanted.scope == "branches" or wanted.scope == "tags" else None,
        project_id=found.id,
        statuses=wanted.statuses,
        **{name: getattr(wanted, name) for name in (*names, *moments)},
    )
    return await paginated(request, page, listed)


@routes.get("/projects/{id}/pipelines/latest", access=project())
async def show_latest_pipeline(request: web.Request) -> web.Response:
    """Of a ref, by default the default branch."""
    wanted = await parse(request, LatestPipeline)
    found = await find_readable_project(request, wanted.id)
    pipeline_id = await queries.latest_pipeline(
        context.database(request), found.id, wanted.ref or found.default_branch
    )
    return await _answer(request, found, pipeline_id or 0)


@routes.get("/projects/{id}/pipelines/{pipeline_id}", access=project())
async def show_pipeline(request: web.Request) -> web.Response:
    wanted = await parse(request, OnePipeline)
    found = await find_readable_project(request, wanted.id)
    return await _answer(request, found, wanted.pipeline_id)


@routes.get("/projects/{id}/pipelines/{pipeline_id}/variables", access=project(Role.DEVELOPER))
async def list_pipeline_variables(request: web.Request) -> web.Response:
    """What was given to the pipeline when it was started."""
    wanted = await parse(request, OnePipeline)
    found = await find_readable_project(request, wanted.id)
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    rows = await queries.pipeline_variables(context.database(request), pipeline.id)
    vault = context.vault(request)
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


@routes.post("/projects/{id}/pipelines/{pipeline_id}/cancel", access=project(Role.DEVELOPER))
async def cancel_pipeline(request: web.Request) -> web.Response:
    """Cancels all jobs that have not finished."""
    wanted = await parse(request, OnePipeline)
    found = await find_readable_project(request, wanted.id)
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    await check_may_change(request, found, pipeline.ref, tag=pipeline.tag)
    async with context.database(request).transaction() as transaction:
        await actions.cancel_pipeline(transaction, pipeline.id)
    return await _answer(request, found, pipeline.id)


@routes.post("/projects/{id}/pipelines/{pipeline_id}/retry", access=project(Role.DEVELOPER))
async def retry_pipeline(request: web.Request) -> web.Response:
    """Runs again what failed or was canceled."""
    wanted = await parse(request, OnePipeline)
    found = await find_readable_project(request, wanted.id)
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    await check_may_change(request, found, pipeline.ref, tag=pipeline.tag)
    check_not_archived(request, pipeline.created_at)
    async with context.database(request).transaction() as transaction:
        await actions.retry_pipeline(transaction, pipeline.id, caller(request).user_id)
    return await _answer(request, found, pipeline.id, status=201)


@routes.delete("/projects/{id}/pipelines/{pipeline_id}", access=project(Role.OWNER))
async def delete_pipeline(request: web.Request) -> web.Response:
    """With its jobs, their logs and artifacts."""
    wanted = await parse(request, OnePipeline)
    found = await find_readable_project(request, wanted.id)
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    async with context.database(request).transaction() as transaction:
        await actions.delete_pipeline(transaction, pipeline.id)
        await audit_trail.record(
            transaction,
            "destroy_pipeline",
            author=author(request),
            entity=found.entity,
            target_id=pipeline.id,
            target_details=str(pipeline.id),
            message="Deleted pipeline",
            remove="pipeline",
        )
    return no_content()


def _refused(*reasons: str) -> Exception:
    return invalid({"base": list(reasons)})


async def _answer(request: web.Request, found: Project, pipeline_id: int, status: int = 200) -> web.Response:
    entity = await queries.show_pipeline(context.database(request), found.id, pipeline_id)
    if entity is None:
        raise record_not_found()
    return json_text(entity, status=status)
