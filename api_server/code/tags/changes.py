"""What protecting and unprotecting tags means, each in the caller's transaction."""

from api_server.code.branches.changes import DESCRIPTIONS, MAX_NAME
from api_server.code.tags import queries
from api_server.code.tags.queries import Protected
from api_server.namespaces.resources import Project
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import invalid


async def protect(transaction: Transaction, project: Project, name: str, level: int, author: Author) -> None:
    """Raises 422 where that name is protected already, and for one that cannot be."""
    if len(name) > MAX_NAME:
        raise invalid([f"Name is too long (maximum is {MAX_NAME} characters)"], status=422)
    try:
        row = await queries.protect(transaction, project.id, name, level)
    except Conflict:
        raise invalid(["Name has already been taken"], status=422) from None
    message = f"Added protected tag with [allowed to create: [{DESCRIPTIONS[level]}]]"
    await _record(transaction, "protected_tag_created", project, name, row, author, message)


async def unprotect(transaction: Transaction, project: Project, name: str, author: Author) -> None:
    """Raises 404."""
    row = await queries.unprotect(transaction, project.id, name)
    await _record(transaction, "protected_tag_deleted", project, name, row, author, "Unprotected tag")


async def _record(
    transaction: Transaction,
    event_type: str,
    project: Project,
    name: str,
    row: Protected,
    author: Author,
    message: str,
) -> None:
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=project.entity,
        target_id=row.id,
        target_details=name,
        message=message,
        create_access_levels=DESCRIPTIONS[row.create_access_level],
    )
