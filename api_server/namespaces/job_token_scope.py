"""Changes of job token scopes, which determine the projects whose jobs can access a project; each in the
caller's transaction.

The rule itself is `lets_in_jobs_of` in `state/rights_functions.sql`, which `access.visible_project` calls.
"""

from api_server.namespaces import job_token_scope_queries
from api_server.namespaces.job_token_scope_queries import Kind
from api_server.namespaces.resources import Project
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.web.errors import bad_request

_TOO_MANY = {"project": "project links in this direction", "group": "group links"}


async def limit_access(transaction: Transaction, project: Project, author: Author, *, enabled: bool) -> None:
    """Admit only the jobs of the allow-list or, if not `enabled`, those of every project."""
    if await job_token_scope_queries.set_enabled(transaction, project.id, enabled=enabled):
        event_type = f"secure_ci_job_token_inbound_{'enabled' if enabled else 'disabled'}"
        await audit_trail.record(transaction, event_type, author, project.entity)


async def allow(
    transaction: Transaction, project: Project, kind: Kind, target_id: int, author: Author, *, limit: int
) -> None:
    """Admit the jobs of the target, a project or a whole group. Raise 400, also beyond `limit` targets of that
    kind."""
    if kind == "project" and target_id == project.id:
        raise bad_request("Validation failed: Target project can't be the same as the source project")
    path = await job_token_scope_queries.allow(transaction, kind, project.id, target_id)
    if path is None:
        raise bad_request(f"Target {kind} is already in the job token scope")
    # a limit of 0 allows no target at all
    if not limit or await job_token_scope_queries.QUOTAS[kind].is_exceeded(transaction, project.id, limit):
        raise bad_request(
            f"Validation failed: Source project exceeds the allowable number of {_TOO_MANY[kind]}"
        )
    event_type, target = f"secure_ci_job_token_{kind}_added", project.entity.target(target_id, path)
    await audit_trail.record(transaction, event_type, author, target)


async def disallow(
    transaction: Transaction, project: Project, kind: Kind, target_id: int, author: Author
) -> bool:
    """Remove the target from the list. Return False if it is not on the list. Raise 400 for the project
    itself."""
    if kind == "project" and target_id == project.id:
        raise bad_request("Source project cannot be removed from the job token scope")
    path = await job_token_scope_queries.disallow(transaction, kind, project.id, target_id)
    if path is not None:
        event_type, target = f"secure_ci_job_token_{kind}_removed", project.entity.target(target_id, path)
        await audit_trail.record(transaction, event_type, author, target)
    return path is not None
