"""Keeping grants true to the configuration files of agents, whenever the default branch moves or is
another one."""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from api_server.ci.agents import queries
from api_server.ci.agents.configuration import grants_in, path_of
from api_server.ci.config.yaml_text import MAX_BYTES
from api_server.code.refs import REF_LISTENERS
from api_server.git import files, references
from api_server.git.errors import RepositoryError
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces.projects.events import DEFAULT_BRANCH_LISTENERS
from api_server.state.database import Row, Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE

REFRESH_GRANTS = "refresh_agent_grants"


def setup(app: web.Application) -> None:
    app[REF_LISTENERS].append(react_to_push)
    app[DEFAULT_BRANCH_LISTENERS].append(refresh)

    async def refresh_grants(project_id: int) -> None:
        async with app[DATABASE].transaction() as transaction:
            # read while nobody else can: what is written last was read last
            agents = await queries.lock_agents(transaction, project_id)
            names = [agent.name for agent in agents]
            texts = await asyncio.to_thread(_texts, app[REPOSITORIES], project_id, names)
            for agent in agents:
                await queries.replace_grants(transaction, agent.id, grants_in(texts[agent.name]))

    app[QUEUE].add(REFRESH_GRANTS, refresh_grants, attempts=5)


async def react_to_push(
    transaction: Transaction,
    project: Row,
    user_id: int | None,  # noqa: ARG001
    updates: Sequence[RefUpdate],
) -> None:
    if any(update.ref == BRANCHES + project.default_branch for update in updates):
        await refresh(transaction, project.id)


async def refresh(transaction: Transaction, project_id: int) -> None:
    """Queues reading the configuration files of a project's agents."""
    await enqueue(transaction, REFRESH_GRANTS, project_id=project_id)


def _texts(repositories: Repositories, project_id: int, names: Sequence[str]) -> dict[str, str]:
    """Each agent's file on the default branch; empty without one."""
    try:
        repository = repositories.open(project_id)
    except RepositoryError:
        return dict.fromkeys(names, "")
    branch = references.branch(repository, references.default_branch(repository))
    texts = dict.fromkeys(names, "")
    for name in names if branch is not None else ():
        entry = files.find(repository, branch.commit, path_of(name))  # type: ignore[union-attr]
        if entry is not None and entry.is_blob and (entry.size or 0) <= MAX_BYTES:
            texts[name] = files.read(repository, entry).decode(errors="replace")
    return texts
