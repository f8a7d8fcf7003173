"""Keeping grants true to the configuration files of agents, whenever the default branch moves or is another one."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from api_server.ci.agents import queries
from api_server.ci.agents.configuration import grants_in, path_of
from api_server.ci.config.errors import ConfigError
from api_server.ci.pipelines.repository import read_text
from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import references
from api_server.git.errors import RepositoryError
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces.projects import DEFAULT_BRANCH_LISTENERS
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE

REFRESH_GRANTS = "refresh_agent_grants"


def setup(app: web.Application) -> None:
    app[REF_LISTENERS].append(react_to_push)
    app[DEFAULT_BRANCH_LISTENERS].append(refresh_grants)

    async def replace_grants(project_id: int) -> None:
        async with app[DATABASE].transaction() as transaction:
            # read while nobody else can: what is written last was read last
            agents = await queries.lock_agents(transaction, project_id)
            branch = await queries.default_branch(transaction, project_id)
            names = [agent.name for agent in agents]
            grants = await asyncio.to_thread(_grants, app[REPOSITORIES], project_id, branch, names)
            for agent in agents:
                await queries.replace_grants(transaction, agent.id, grants.get(agent.name, []))

    app[QUEUE].add(REFRESH_GRANTS, replace_grants, attempts=5)


async def react_to_push(
    transaction: Transaction,
    project: MovedProject,
    user_id: int | None,  # noqa: ARG001
    updates: Sequence[RefUpdate],
) -> None:
    if any(update.ref == BRANCHES + project.default_branch for update in updates):
        await refresh_grants(transaction, project.id)


async def refresh_grants(transaction: Transaction, project_id: int) -> None:
    """Has the grants of a project's agents read again from what is then its default branch, once this has committed:
    for whoever moves that branch, makes another one the default, or registers an agent."""
    await enqueue(transaction, REFRESH_GRANTS, project_id=project_id)


def _grants(
    repositories: Repositories, project_id: int, default_branch: str, names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """What the file says of each agent that has one on the default branch."""
    try:
        repository = repositories.open(project_id)
    except RepositoryError:
        return {}
    branch = references.branch(repository, default_branch)
    if branch is None:
        return {}
    found = {}
    for name in names:
        with contextlib.suppress(ConfigError):  # of a file that is too large
            found[name] = read_text(repository, branch.commit, path_of(name))
    return {name: grants_in(text) for name, text in found.items() if text is not None}
