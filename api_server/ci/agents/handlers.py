"""`/projects/:id/cluster_agents` (supporting resource)."""

import re

import attrs
from aiohttp import web

from api_server.ci.agents import queries, tasks
from api_server.namespaces.projects.access import find_project, project
from api_server.state import audit_trail
from api_server.state.database import Conflict
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, no_content
from api_server.web.authorship import author
from api_server.web.errors import bad_request, record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes, caller

routes = Routes()

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@attrs.frozen(kw_only=True)
class ListAgents(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class CreateAgent:
    id: str
    name: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class OneAgent:
    id: str
    agent_id: int


@routes.get("/projects/{id}/cluster_agents", access=project(Role.DEVELOPER))
async def list_agents(request: web.Request) -> web.Response:
    wanted = await parse(request, ListAgents)
    found = await find_project(request, wanted.id)
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    return await paginated(
        request, page, await queries.list_agents(context.database(request), page, found.id)
    )


@routes.get("/projects/{id}/cluster_agents/{agent_id}", access=project(Role.DEVELOPER))
async def show_agent(request: web.Request) -> web.Response:
    wanted = await parse(request, OneAgent)
    found = await find_project(request, wanted.id)
    entity = await queries.show_agent(context.database(request), found.id, wanted.agent_id)
    if entity is None:
        raise record_not_found()
    return json_text(entity)


@routes.post("/projects/{id}/cluster_agents", access=project(Role.MAINTAINER))
async def create_agent(request: web.Request) -> web.Response:
    """Registers an agent; whose jobs may use it is said in its file in the project's repository."""
    wanted = await parse(request, CreateAgent)
    found = await find_project(request, wanted.id)
    if not _NAME.fullmatch(wanted.name):
        raise bad_request(
            "Name can contain only lowercase letters, digits, and '-', but cannot start or end with '-'"
        )
    try:
        async with context.database(request).transaction() as transaction:
            made = await queries.create_agent(transaction, found.id, wanted.name, caller(request).user_id)
            await tasks.refresh(transaction, found.id)
            await audit_trail.record(
                transaction,
                "cluster_agent_created",
                author=author(request),
                entity=found.entity,
                target_id=made.id,
                target_details=wanted.name,
                message=f"Created cluster agent '{wanted.name}' with id {made.id}",
                add="cluster_agent",
            )
    except Conflict:
        raise bad_request("Name has already been taken") from None
    return json_text(made.entity, status=201)


@routes.delete("/projects/{id}/cluster_agents/{agent_id}", access=project(Role.MAINTAINER))
async def delete_agent(request: web.Request) -> web.Response:
    wanted = await parse(request, OneAgent)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        gone = await queries.delete_agent(transaction, found.id, wanted.agent_id)
        if gone is None:
            raise record_not_found()
        await audit_trail.record(
            transaction,
            "cluster_agent_deleted",
            author=author(request),
            entity=found.entity,
            target_id=gone.id,
            target_details=gone.name,
            message=f"Deleted cluster agent '{gone.name}' with id {gone.id}",
            remove="cluster_agent",
        )
    return no_content()
