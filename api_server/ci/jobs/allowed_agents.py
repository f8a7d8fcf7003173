"""Endpoint 5: which agents the job behind a token may use."""

from typing import Any

import orjson
from aiohttp import web

from api_server.ci.agents import queries as agents
from api_server.ci.config import names
from api_server.ci.pipelines.job_queries import plan_of
from api_server.state.database import Executor, Row
from api_server.web import context
from api_server.web.access import JOB, Role
from api_server.web.answers import json_value
from api_server.web.routes import Routes, caller
from api_server.web.tiers import Feature

routes = Routes()

DESCRIBE_JOB = """
    SELECT jobs.id, jobs.pipeline_id, jobs.project_id, jobs.protected, jobs.environment, jobs.plan,
        CASE WHEN namespaces.kind = 'group' THEN namespaces.lineage ELSE '{}' END AS group_ids,
        users.id AS user_id, users.name, users.username, users.state, web_url(users.username) AS web_url,
        project_role(projects, namespaces, users.id, %(now)s) AS role
    FROM jobs JOIN projects ON projects.id = jobs.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    JOIN users ON users.id = jobs.user_id
    WHERE jobs.id = %(id)s
"""


@routes.get("/job/allowed_agents", access=JOB, feature=Feature("Agent access for CI jobs", "premium"))
async def show_allowed_agents(request: web.Request) -> web.Response:
    """Endpoint 5."""
    return json_value(await describe(context.database(request), caller(request).job_id or 0))


async def describe(database: Executor, job_id: int) -> dict[str, Any]:
    """The document's shape, with GitLab's further keys; `environment` only for jobs that have one."""
    job = await database.row(DESCRIBE_JOB, id=job_id)
    if job is None:
        raise LookupError(job_id)
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


def _user(job: Row) -> dict[str, Any]:
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


def _environment(job: Row) -> dict[str, Any]:
    environment = plan_of(job).environment
    if environment is None:
        return {}
    tier = environment.tier or names.tier(environment.name)
    return {"environment": {"slug": names.environment_slug(environment.name), "tier": tier}}
