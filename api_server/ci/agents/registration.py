"""Registering and removing agents, each in the caller's transaction."""

import re

from api_server.ci.agents import queries, tasks
from api_server.namespaces.resources import Project
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Shown, Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import bad_request

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


async def register(transaction: Transaction, project: Project, name: str, author: Author, most: int) -> Shown:
    """The project may have up to `most`. Raises 400 as GitLab words it."""
    if not _NAME.fullmatch(name):
        raise bad_request(
            "Name can contain only lowercase letters, digits, and '-', but cannot start or end with '-'"
        )
    try:
        made = await queries.create_agent(transaction, project.id, name, author.id)
    except Conflict:
        raise bad_request("Name has already been taken") from None
    if await queries.QUOTA.is_exceeded(transaction, project.id, most):
        raise bad_request(f"Maximum number of agents ({most}) exceeded")
    await tasks.refresh_grants(transaction, project.id)
    await audit_trail.record(
        transaction,
        "cluster_agent_created",
        author=author,
        entity=project.entity,
        target_id=made.id,
        target_details=name,
        message=f"Created cluster agent '{name}' with id {made.id}",
        add="cluster_agent",
    )
    return made


async def remove(transaction: Transaction, project: Project, agent_id: int, author: Author) -> None:
    """Raises NotFound."""
    gone = await queries.delete_agent(transaction, project.id, agent_id)
    await audit_trail.record(
        transaction,
        "cluster_agent_deleted",
        author=author,
        entity=project.entity,
        target_id=gone.id,
        target_details=gone.name,
        message=f"Deleted cluster agent '{gone.name}' with id {gone.id}",
        remove="cluster_agent",
    )
