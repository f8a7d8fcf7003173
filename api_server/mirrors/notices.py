"""What is told of a mirror that has failed: an event in the audit trail, and mail to the maintainers."""

from api_server.mirrors import queries
from api_server.mirrors.queries import Maintainer, Mirror, MirroredProject
from api_server.outbound.mail import Letter, queue_letter
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Entity
from api_server.state.database import Transaction


async def failed(transaction: Transaction, mirror: Mirror, last_error: str, *, by_mail: bool) -> None:
    """Records the failure of the mirror; `by_mail` also sends it to everybody who can mend it."""
    project = await queries.project_of(transaction, mirror.project_id)
    await audit_trail.record(
        transaction,
        "remote_mirror_update_failed",
        author=SYSTEM,
        entity=Entity(type="Project", id=mirror.project_id, path=project.full_path),
        target_id=mirror.id,
        target_details=mirror.shown_url,
        message="Push mirror failed",
        reason=last_error,
    )
    if by_mail:
        for maintainer in await queries.maintainers(transaction, mirror.project_id):
            await queue_letter(transaction, letter(mirror, project, maintainer, last_error))


def letter(mirror: Mirror, project: MirroredProject, maintainer: Maintainer, last_error: str) -> Letter:
    """The mail to one maintainer; each run of a mirror that is told of has a letter of its own."""
    return Letter(
        id=f"remote-mirror-{mirror.id}-{mirror.run}-{maintainer.id}",
        to=maintainer.email,
        subject=f"The push mirror of {project.full_path} failed",
        paragraphs=[
            f"The push mirror of {project.full_path} to {mirror.shown_url} could not be updated:",
            *(line for line in last_error.splitlines() if line.strip()),
            "It is tried again after the next push, or when somebody asks for it. "
            "You get no further mail about it until it has worked again.",
        ],
        links=[(project.full_path, project.url)],
    )
