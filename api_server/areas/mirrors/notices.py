"""What is told of a mirror that has failed: an event in the audit trail, and mail to the maintainers."""

from api_server.areas.mirrors import queries
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Row, Transaction
from api_server.state.queue import enqueue

_SYSTEM = Author(id=-1, name="(System)")

_MAIL = """\
The push mirror of {project} to {target} could not be updated:

{last_error}

It is tried again after the next push, or when somebody asks for it:
{url}
"""


async def failed(transaction: Transaction, mirror: Row, last_error: str, *, by_mail: bool) -> None:
    """Records the failure of the mirror; `by_mail` also sends it to everybody who can mend it."""
    project = await queries.project_of(transaction, mirror.project_id)
    await audit_trail.record(
        transaction,
        "remote_mirror_update_failed",
        author=_SYSTEM,
        entity=Entity(type="Project", id=project.id, path=project.full_path),
        target_type="RemoteMirror",
        target_id=mirror.id,
        target_details=mirror.shown_url,
        message=f"Push mirror failed: {last_error}",
    )
    if not by_mail:
        return
    text = _MAIL.format(
        project=project.full_path, target=mirror.shown_url, last_error=last_error, url=project.url
    )
    for maintainer in await queries.maintainers(transaction, mirror.project_id):
        await enqueue(
            transaction,
            "send_mail",
            to=maintainer.email,
            subject=f"{project.full_path}: push mirror failed",
            text=text,
        )
