"""`/projects/:id/cluster_agents` (supporting resource)."""

import attrs
from aiohttp import web

from api_server.ci.agents import agents, queries
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web.answers import json_text, no_content
from api_server.web.auth import Actor
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import Name
from api_server.web.routes import Role, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class ListAgents(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class CreateAgent:
    id: str
    name: Name = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class OneAgent:
    id: str
    agent_id: int


@routes.get("/projects/{id}/cluster_agents", access=project(Role.DEVELOPER), answers="200 [ClusterAgent]")
async def list_agents(
    request: web.Request, services: Services, params: ListAgents, project: Project
) -> web.Response:
    page = requested_page(params, queries.LISTING, default_sort="asc")
    return await paginated(request, page, await queries.list_agents(services.database, page, project.id))


@routes.get(
    "/projects/{id}/cluster_agents/{agent_id}", access=project(Role.DEVELOPER), answers="200 ClusterAgent"
)
async def show_agent(services: Services, params: OneAgent, project: Project) -> web.Response:
    return json_text(await queries.show_agent(services.database, project.id, params.agent_id))


@routes.post("/projects/{id}/cluster_agents", access=project(Role.MAINTAINER), answers="201 ClusterAgent")
async def create_agent(
    services: Services, actor: Actor, params: CreateAgent, project: Project
) -> web.Response:
    """Register an agent. Its file in the project's repository says whose jobs may use it."""
    async with services.database.transaction() as transaction:
        limit = services.settings.agents_limit
        agent = await agents.register(transaction, project, params.name, actor.author, limit)
    return json_text(agent.entity, status=201)


@routes.delete("/projects/{id}/cluster_agents/{agent_id}", access=project(Role.MAINTAINER), answers="204")
async def delete_agent(services: Services, actor: Actor, params: OneAgent, project: Project) -> web.Response:
    async with services.database.transaction() as transaction:
        await agents.remove(transaction, project, params.agent_id, actor.author)
    return no_content()
