"""Registering and removing agents, and the grants to jobs of other projects in their configuration files."""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Any

from api_server.ci.agents import queries
from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.yaml_text import load
from api_server.ci.pipelines.repository import read_text
from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import references
from api_server.git.errors import RepositoryError
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces.projects import DEFAULT_BRANCH_LISTENERS
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import EntityRow, Transaction
from api_server.state.errors import Conflict
from api_server.state.queue import enqueue
from api_server.web.errors import bad_request

#: The keys of a grant that GitLab keeps.
_KEPT = ("default_namespace", "environments", "protected_branches_only")
MAX_GRANTS = 500
#: Limits of the file, which contains more than grants.
MAX_BYTES = 128 * 1024
MAX_NODES = 25_000


def path_of(agent: str) -> str:
    """Return the path of the configuration file of the agent of this name."""
    return f".gitlab/agents/{agent}/config.yaml"


def grants_in(text: str) -> list[dict[str, Any]]:
    """Return kind (`projects` or `groups`), path and configuration of each entry of `ci_access`; [] if the
    file cannot be read."""
    try:
        document = load(text, Budget(MAX_NODES), max_bytes=MAX_BYTES)
    except CiConfigError:
        return []
    access = document.get("ci_access")
    if not isinstance(access, dict):
        return []
    grants = [
        {"kind": kind, "path": entry["id"].strip("/"), "configuration": _configuration(entry)}
        for kind in ("projects", "groups")
        for entry in _list(access.get(kind))
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    return grants[:MAX_GRANTS]


def _configuration(entry: dict[str, Any]) -> dict[str, Any]:
    settings = {key: entry[key] for key in _KEPT if entry.get(key) is not None}
    if "environments" in settings:
        settings["environments"] = [str(name) for name in _list(settings["environments"])]
    if "protected_branches_only" in settings:
        # every value except `false` protects
        settings["protected_branches_only"] = settings["protected_branches_only"] is not False
    return settings


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


REFRESH_GRANTS = "refresh_agent_grants"


def setup(services: Services) -> None:
    services[REF_LISTENERS].append(react_to_push)
    services[DEFAULT_BRANCH_LISTENERS].append(refresh_grants)

    async def replace_grants(project_id: int) -> None:
        async with services.database.transaction() as transaction:
            # read under the lock, so that the last transaction to write has read the latest files
            agents = await queries.lock_agents(transaction, project_id)
            branch = await queries.default_branch(transaction, project_id)
            names = [agent.name for agent in agents]
            grants = await asyncio.to_thread(_grants, services[REPOSITORIES], project_id, branch, names)
            for agent in agents:
                await queries.replace_grants(transaction, agent.id, grants.get(agent.name, []))

    services.queue.add(REFRESH_GRANTS, replace_grants, attempts=5)


async def react_to_push(
    transaction: Transaction,
    project: MovedProject,
    user_id: int | None,  # noqa: ARG001
    updates: Sequence[RefUpdate],
) -> None:
    if any(update.ref == BRANCHES + project.default_branch for update in updates):
        await refresh_grants(transaction, project.id)


async def refresh_grants(transaction: Transaction, project_id: int) -> None:
    """Queue a task that reads the grants of a project's agents again from its default branch, after the
    commit.

    It is needed when that branch moves, when another branch becomes the default, and when an agent is
    registered.
    """
    await enqueue(transaction, REFRESH_GRANTS, project_id=project_id)


def _grants(
    repositories: Repositories, project_id: int, default_branch: str, names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the grants in the file of each agent that has one on the default branch."""
    try:
        repository = repositories.open(project_id)
    except RepositoryError:
        return {}
    branch = references.branch(repository, default_branch)
    if branch is None:
        return {}
    contents = {}
    for name in names:
        with contextlib.suppress(CiConfigError):  # the file is too large
            contents[name] = read_text(repository, branch.commit, path_of(name))
    return {name: grants_in(text) for name, text in contents.items() if text is not None}


_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


async def register(
    transaction: Transaction, project: Project, name: str, author: Author, limit: int
) -> EntityRow:
    """Register an agent; the project may have up to `limit`. Raise 400 in GitLab's words."""
    if not _NAME.fullmatch(name):
        raise bad_request(
            "Name can contain only lowercase letters, digits, and '-', but cannot start or end with '-'"
        )
    try:
        agent = await queries.create_agent(transaction, project.id, name, author.id)
    except Conflict:
        raise bad_request("Name has already been taken") from None
    if await queries.QUOTA.is_exceeded(transaction, project.id, limit):
        raise bad_request(f"Maximum number of agents ({limit}) exceeded")
    await refresh_grants(transaction, project.id)
    await audit_trail.record(
        transaction, "cluster_agent_created", author, project.entity.target(agent.id, name)
    )
    return agent


async def remove(transaction: Transaction, project: Project, agent_id: int, author: Author) -> None:
    """Remove an agent. Raise NotFound."""
    agent = await queries.delete_agent(transaction, project.id, agent_id)
    target = project.entity.target(agent.id, agent.name)
    await audit_trail.record(transaction, "cluster_agent_deleted", author, target)
