# mypy: disable-error-code="empty-body"
"""Statements about agents and their grants."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from api_server.state.database import EntityRow, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Quota, entity_statement, read_sql

AGENT = read_sql(__package__)["agent"]

LISTING = ListQuery(
    AGENT, "SELECT cluster_agents.* FROM cluster_agents WHERE cluster_agents.project_id = %(project_id)s"
)


async def list_agents(database: Executor, page: Page, project_id: int) -> ListPage:
    return await LISTING.read(database, page, project_id=project_id)


@statement(
    entity_statement(
        AGENT,
        "SELECT cluster_agents.* FROM cluster_agents"
        " WHERE cluster_agents.project_id = %(project_id)s AND cluster_agents.id = %(agent_id)s",
    )
)
async def show_agent(database: Executor, project_id: int, agent_id: int) -> str: ...


QUOTA = Quota("cluster_agents", "project_id")


@statement(
    entity_statement(
        AGENT,
        """
    INSERT INTO cluster_agents (project_id, name, created_by_id, created_at)
    VALUES (%(project_id)s, %(name)s, %(created_by_id)s, %(now)s) RETURNING *
    """,
    )
)
async def create_agent(transaction: Transaction, project_id: int, name: str, created_by_id: int) -> EntityRow:
    """Create an agent. Raise Conflict on `cluster_agents_name`."""


@attrs.frozen
class Agent:
    id: int
    name: str


@statement(
    "DELETE FROM cluster_agents WHERE project_id = %(project_id)s AND id = %(agent_id)s RETURNING id, name"
)
async def delete_agent(transaction: Transaction, project_id: int, agent_id: int) -> Agent:
    """Delete an agent and return it. Raise NotFound."""


@statement("""
    SELECT cluster_agents.id, cluster_agents.name FROM cluster_agents
    WHERE cluster_agents.project_id = %(project_id)s ORDER BY cluster_agents.id FOR UPDATE
    """)
async def lock_agents(transaction: Transaction, project_id: int) -> list[Agent]:
    """Return a project's agents, and prevent others from changing their grants until the transaction ends."""


DEFAULT_BRANCH = """
    SELECT projects.default_branch FROM projects WHERE projects.id = %(id)s
"""


async def default_branch(database: Executor, project_id: int) -> str:
    """Return the branch whose configuration files count; an empty text if the project no longer exists."""
    return str(await database.value(DEFAULT_BRANCH, id=project_id) or "")


#: An agent can be granted only to projects and groups with the same top-level namespace as its own project.
REPLACE_GRANTS = """
    WITH old AS (DELETE FROM cluster_agent_grants WHERE agent_id = %(agent_id)s),
    home AS (
        SELECT namespaces.lineage[1] AS root
        FROM cluster_agents JOIN projects ON projects.id = cluster_agents.project_id
        JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE cluster_agents.id = %(agent_id)s
    )
    INSERT INTO cluster_agent_grants (agent_id, project_id, namespace_id, configuration)
    SELECT %(agent_id)s, projects.id, granted.id, wanted.configuration
    FROM jsonb_to_recordset(%(grants)s::jsonb) AS wanted (kind text, path text, configuration jsonb)
    CROSS JOIN home
    JOIN routes ON routes.path = lower(wanted.path)
    LEFT JOIN projects ON projects.id = routes.project_id AND wanted.kind = 'projects'
    LEFT JOIN namespaces granted ON granted.id = routes.namespace_id AND wanted.kind = 'groups'
    JOIN namespaces around ON around.id = coalesce(granted.id, projects.namespace_id)
    WHERE around.lineage[1] = home.root
"""


async def replace_grants(transaction: Transaction, agent_id: int, grants: Sequence[dict[str, Any]]) -> None:
    """Replace the grants; each has kind (projects, groups), path and configuration. Leave out unknown
    paths."""
    await transaction.run(REPLACE_GRANTS, agent_id=agent_id, grants=orjson.dumps(list(grants)).decode())


#: An agent that is granted in several ways counts once: as a grant to the project itself, else to the closest
#: group, else as the project's own.
@statement(
    """
    WITH here AS (
        SELECT projects.id, namespaces.lineage
        FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id WHERE projects.id = %(project_id)s
    ), granted AS (
        SELECT DISTINCT ON (agent_id) agent_id, configuration FROM (
            SELECT grants.agent_id, grants.configuration, 1000 AS closeness
            FROM cluster_agent_grants grants JOIN here ON here.id = grants.project_id
            UNION ALL
            SELECT grants.agent_id, grants.configuration, array_position(here.lineage, grants.namespace_id)
            FROM cluster_agent_grants grants JOIN here ON grants.namespace_id = ANY (here.lineage)
            UNION ALL
            SELECT cluster_agents.id, '{}', 0 FROM cluster_agents JOIN here ON here.id = cluster_agents.project_id
        ) ways
        WHERE (configuration -> 'environments' IS NULL OR EXISTS (
                SELECT FROM jsonb_array_elements_text(configuration -> 'environments') AS pattern
                WHERE wildcard_matches(pattern, %(environment)s::text)))
            AND (NOT coalesce((configuration ->> 'protected_branches_only')::boolean, false) OR %(protected)s)
        ORDER BY agent_id, closeness DESC
    )
    SELECT coalesce(json_agg(json_build_object(
        'id', cluster_agents.id,
        'config_project', config_project(projects, namespaces),
        'configuration', granted.configuration
    ) ORDER BY cluster_agents.id), '[]')::text AS agents
    FROM granted JOIN cluster_agents ON cluster_agents.id = granted.agent_id
    JOIN projects ON projects.id = cluster_agents.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    """,
    prepared=True,
)
async def allowed_agents(
    database: Executor, project_id: int, *, environment: str | None, protected: bool
) -> str:
    """Return a JSON array of the agents that a project's job in this environment may use; `protected` says
    whether its ref is."""
