"""Endpoint 5: which agents the job behind a token may use."""

from typing import Any

import orjson
from aiohttp import web

from api_server.ci.agents import queries as agents
from api_server.ci.config import predefined
from api_server.ci.jobs import queries
from api_server.ci.jobs.access import id_of_calling_job
from api_server.ci.jobs.queries import CallingJob
from api_server.ci.pipelines.job_queries import plan_of
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.access import JOB, Role
from api_server.web.answers import json_value
from api_server.web.routes import Routes
from api_server.web.tiers import Feature

routes = Routes()


@routes.get("/job/allowed_agents", access=JOB, feature=Feature("Agent access for CI jobs", "premium"))
async def show_allowed_agents(request: web.Request) -> web.Response:
    """Endpoint 5. The cluster agents that the calling job may use."""
    return json_value(await describe(context.database(request), id_of_calling_job(request)))


async def describe(database: Executor, job_id: int) -> dict[str, Any]:
    """The document's shape, with GitLab's further keys; `environment` only for jobs that have one."""
    job = await queries.describe_job(database, job_id)
    allowed = await agents.allowed_agents(
        database, job.project_id, environment=job.environment, protected=job.protected
    )
    return {
        "allowed_agents": orjson.Fragment(allowed),
        "job": {"id": job.id},
        "pipeline": {"id": job.pipeline_id},
        "project": {"id": job.project_id, "groups": [{"id": group_id} for group_id in job.group_ids]},
        "user": _user(job),
        **_environment(job),
    }


def _user(job: CallingJob) -> dict[str, Any]:
    roles = (Role.GUEST, Role.REPORTER, Role.DEVELOPER, Role.MAINTAINER, Role.OWNER)
    return {
        "id": job.user_id,
        "name": job.name,
        "username": job.username,
        "state": job.state,
        "avatar_url": None,
        "web_url": job.web_url,
        "roles_in_project": [role.name.lower() for role in roles if job.role >= role],
    }


def _environment(job: CallingJob) -> dict[str, Any]:
    environment = plan_of(job).environment
    if environment is None:
        return {}
    tier = environment.tier or predefined.tier(environment.name)
    return {"environment": {"slug": predefined.environment_slug(environment.name), "tier": tier}}
