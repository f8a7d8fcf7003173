"""The mails about invitations: the invitation, its reminders, and the answer to who made it."""

from api_server.invitations import queries
from api_server.invitations.queries import Invitation
from api_server.outbound.mail import Letter, queue_letter, send
from api_server.services import Services
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.state.secrets import INVITATION_TOKEN

TASK = "mail_invitation"
_LONGEST_DESCRIPTION = 200
_REMINDERS = (
    "{inviter}'s invitation to forgelet is pending",
    "{inviter} is waiting for you to join forgelet",
    "{inviter} is still waiting for you to join forgelet",
)


async def queue_invitation(transaction: Transaction, invitation_id: int, reminder: int = 0) -> None:
    """Mails the invitation once the transaction has committed; `reminder` counts from 1, 0 is the first mail.

    The queue holds its id only: the token is made when the mail is.
    """
    await enqueue(transaction, TASK, invitation_id=invitation_id, reminder=reminder)


async def mail_invitation(services: Services, invitation_id: int, reminder: int) -> None:
    """Send the invitation's mail, as a queued task, unless it has been answered or withdrawn meanwhile."""
    invitation = await queries.find(services.database, invitation_id)
    if invitation is None:
        return
    token = services.vault.derived_token(INVITATION_TOKEN, invitation.token_seed)
    await send(services, letter(invitation, f"{services.settings.base_url}/-/invites/{token}", reminder))


def letter(invitation: Invitation, url: str, reminder: int) -> Letter:
    inviter = invitation.inviter_name
    paragraphs = [
        f"{f'{inviter} invited you' if inviter else 'You are invited'} to join the {invitation.kind}"
        f" {invitation.source_name} as {invitation.role.title.lower()}.",
        _cut(invitation.source_description),
        f"The membership ends on {invitation.expires_at}." if invitation.expires_at else "",
        "Both links lead to a page where you choose; opening it answers nothing.",
    ]
    return Letter(
        id=f"invitation-{invitation.id}-{reminder}",
        to=invitation.email,
        subject=_subject(inviter, f"{invitation.source_name} {invitation.kind}", reminder),
        paragraphs=[paragraph for paragraph in paragraphs if paragraph],
        links=[("Join now", url), ("Decline", f"{url}#decline")],
    )


def _subject(inviter: str | None, source: str, reminder: int) -> str:
    if not inviter:
        return f"Invitation to join the {source}"
    if reminder:
        return _REMINDERS[reminder - 1].format(inviter=inviter)
    return f"{inviter} invited you to join forgelet"


async def queue_answer(
    transaction: Transaction, invitation: Invitation, name: str, *, accepted: bool
) -> None:
    """Tell the inviter, where she still is."""
    if not invitation.inviter_email:
        return
    verb = "accepted" if accepted else "declined"
    await queue_letter(
        transaction,
        Letter(
            id=f"invitation-{invitation.id}-{verb}",
            to=invitation.inviter_email,
            subject=f"Invitation {verb}",
            paragraphs=[
                f"{name} {verb} your invitation to join the {invitation.kind} {invitation.source_name}"
                f" ({invitation.source_path})."
            ],
        ),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_DESCRIPTION else f"{text[: _LONGEST_DESCRIPTION - 1]}…"
