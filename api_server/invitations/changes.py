"""Invitations: creating, changing, withdrawing and answering them, each in the caller's transaction; their mails."""

import datetime
import os
import re
from collections.abc import Mapping, Sequence

import attrs

from api_server.accounts import member_roles
from api_server.invitations import queries
from api_server.invitations.queries import Invitation, KnownUser
from api_server.namespaces import member_endings, members
from api_server.namespaces.members import Person, Source, sentence
from api_server.outbound import mail
from api_server.outbound.mail import ATTEMPTS, Mail, is_address, queue_mail, send
from api_server.services import Services
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.state.secrets import INVITATION_TOKEN, Vault, digest
from api_server.web.errors import ApiError, bad_parameters, bad_request, forbidden, invalid
from api_server.web.params import Unset
from api_server.web.routes import Role

TASK = "mail_invitation"
KEPT_UNANSWERED = datetime.timedelta(days=90)
_LONGEST_DESCRIPTION = 200
_REMINDERS = (
    "{inviter}'s invitation to forgelet is pending",
    "{inviter} is waiting for you to join forgelet",
    "{inviter} is still waiting for you to join forgelet",
)


async def queue_invitation(transaction: Transaction, invitation_id: int, reminder: int = 0) -> None:
    """Queue the mail with the invitation (`reminder` 0) or with that reminder (from 1).

    The queue contains only the invitation's id; the token is derived when the mail is sent.
    """
    await enqueue(transaction, TASK, invitation_id=invitation_id, reminder=reminder)


async def send_invitation(services: Services, invitation_id: int, reminder: int) -> None:
    """Send the invitation's mail as a queued task, unless it has been answered or withdrawn in the meantime."""
    invitation = await queries.find(services.database, invitation_id)
    if invitation is None:
        return
    token = services.vault.derived_token(INVITATION_TOKEN, invitation.token_seed)
    await send(
        services, invitation_mail(invitation, f"{services.settings.base_url}/-/invites/{token}", reminder)
    )


def invitation_mail(invitation: Invitation, url: str, reminder: int) -> Mail:
    inviter = invitation.inviter_name
    paragraphs = [
        f"{f'{inviter} invited you' if inviter else 'You are invited'} to join the {invitation.kind}"
        f" {invitation.source_name} as {invitation.role.title.lower()}.",
        _shortened(invitation.source_description),
        f"The membership ends on {invitation.expires_at}." if invitation.expires_at else "",
        "Both links open a page where you accept or decline. Opening the page does not answer the invitation.",
    ]
    return Mail(
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
    """Queue the mail that notifies the inviter of the answer, unless the inviter's account no longer exists."""
    if not invitation.inviter_email:
        return
    verb = "accepted" if accepted else "declined"
    await queue_mail(
        transaction,
        Mail(
            id=f"invitation-{invitation.id}-{verb}",
            to=invitation.inviter_email,
            subject=f"Invitation {verb}",
            paragraphs=[
                f"{name} {verb} your invitation to join the {invitation.kind} {invitation.source_name}"
                f" ({invitation.source_path})."
            ],
        ),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_DESCRIPTION else f"{text[: _LONGEST_DESCRIPTION - 1]}…"


MAX_RECIPIENTS = 100
_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
#: Addresses that GitLab invites: at most 64 characters before the @, and at least two labels after it. The addresses of
#: accounts may have only one label.
_INVITABLE = re.compile(rf"[^@]{{1,64}}@{_LABEL}(?:\.{_LABEL})+")

EMAIL_TAKEN = "Invite email has already been taken"
TOO_MANY_MAILS = "Too many invitations sent in the last hour. Try again later."
TOO_MANY_TO_ADDRESS = "Invite email has been mailed too often in the last hour. Try again later."
MEMBER_ALREADY = "User already exists in source"
NOT_FOUND = "User not found"


class RefusedAsAWhole(ApiError):
    """The refusal of a whole request. As in GitLab, the answer is 201 with `status` error, a message and a `reason`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(201, {"status": "error", "message": message, "reason": reason})


@attrs.frozen
class Recipients:
    """Addresses as they were sent, and ids of users, each once."""

    emails: Sequence[str]
    user_ids: Sequence[int]


def read_recipients(emails: Sequence[str] | None, user_ids: Sequence[str] | None) -> Recipients:
    """Return the recipients in the parameters, without blanks. Raise 400 and RefusedAsAWhole."""
    texts = [*(emails or []), *(user_ids or [])]
    if not any(text.strip() for text in texts):
        if len(emails or []) > 1 or len(user_ids or []) > 1:  # only commas
            raise RefusedAsAWhole("Invites cannot be blank", "blank_invites_error")
        raise bad_request("Must provide either email or user_id as a parameter")
    ids = _distinct(user_ids)
    if not all(_is_id(text) for text in ids):
        raise bad_parameters("user_id is invalid")
    recipients = Recipients(_distinct(emails), [int(text) for text in ids])
    if not all(is_address(text) and _INVITABLE.fullmatch(text) for text in recipients.emails):
        raise bad_parameters("email contains an invalid email address")
    if len(recipients.emails) + len(recipients.user_ids) > MAX_RECIPIENTS:
        raise RefusedAsAWhole(
            f"Too many users specified (limit is {MAX_RECIPIENTS})", "too_many_invites_error"
        )
    return recipients


def _distinct(texts: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in texts or [] if text.strip()))


def _is_id(text: str) -> bool:
    return len(text) < 20 and text.isascii() and text.isdecimal() and int(text) < 2**63


def text_of_refusal(refusal: ApiError) -> str:
    """Return the message about a recipient whose membership was refused."""
    message = refusal.body.get("message")
    if refusal.status == 409:
        return MEMBER_ALREADY
    return sentence(message) if isinstance(message, Mapping) else "not authorized to create member"


_SEED_BYTES = 20


@attrs.frozen(kw_only=True)
class Offer:
    """The membership that is offered to the recipients."""

    source: Source
    level: Role
    member_role_id: int | None = None
    expires_at: datetime.date | None = None


@attrs.frozen
class MailTools:
    """The services for invitations by mail: the vault, which derives tokens, and the settings with the mail limits."""

    vault: Vault
    settings: Settings


async def invite(
    transaction: Transaction, offer: Offer, recipients: Recipients, author: Author, tools: MailTools
) -> dict[str, str]:
    """Add the recipients who are users as members, and invite the others by mail. Return the problems, by address,
    username, or unknown id.

    Raise 403 if the caller may not grant the role, and RefusedAsAWhole if she would send too many mails within an hour.
    Rows are always written in the same order, so that concurrent requests for the same people cannot deadlock.
    """
    if not members.may_touch(offer.source.role, offer.level):
        raise forbidden()
    owners = await queries.owners_of(transaction, list(recipients.emails))
    people: dict[int, tuple[str, KnownUser]] = {
        owner.id: (email, owner)
        for email in reversed(recipients.emails)
        if (owner := owners.get(email.lower()))
    }
    users = await queries.users_with(transaction, list(recipients.user_ids))
    for user in users:
        people.setdefault(user.id, (user.username, user))
    problems = {str(id_): NOT_FOUND for id_ in sorted(set(recipients.user_ids) - {user.id for user in users})}
    for _, (name, user) in sorted(people.items()):
        if problem := await _add(transaction, offer, user, author):
            problems[name] = problem
    unknown = [email for email in recipients.emails if email.lower() not in owners]
    for email in sorted(unknown, key=str.lower):
        if problem := await _ask(transaction, offer, email, author, tools):
            problems[email] = problem
    mail_count = len(unknown) - len(problems.keys() & set(unknown))
    if await mail.wait_for_user(transaction, tools.settings, author.id, mail_count):
        raise RefusedAsAWhole(TOO_MANY_MAILS, "too_many_invites_error")
    return problems


async def _add(transaction: Transaction, offer: Offer, user: KnownUser, author: Author) -> str | None:
    try:
        await members.add(
            transaction,
            offer.source,
            user,
            offer.level,
            author,
            expires_at=offer.expires_at,
            member_role_id=offer.member_role_id,
        )
    except ApiError as refusal:
        return text_of_refusal(refusal)
    return None


async def _ask(
    transaction: Transaction, offer: Offer, email: str, author: Author, tools: MailTools
) -> str | None:
    source = offer.source
    try:
        await member_roles.check(transaction, offer.member_role_id, offer.level)
    except ApiError as refusal:
        return text_of_refusal(refusal)
    if problems := _problems(transaction, source, offer.level, offer.expires_at):
        return members.sentence(problems)
    invitation_id = await _create(transaction, offer, email, author, tools.vault)
    if invitation_id is None and await _end_if_over(transaction, source, email):
        invitation_id = await _create(transaction, offer, email, author, tools.vault)
    if invitation_id is None:
        return EMAIL_TAKEN
    if await mail.wait_for_address(transaction, tools.settings, email):
        await queries.delete(transaction, invitation_id)
        return TOO_MANY_TO_ADDRESS
    await queue_invitation(transaction, invitation_id)
    await _record(
        transaction,
        "member_created",
        author,
        source.entity,
        email,
        "Invitation created",
        expires_at=offer.expires_at,
        member_role_id=offer.member_role_id,
        **{"as": offer.level.title},
    )
    return None


async def _create(
    transaction: Transaction, offer: Offer, email: str, author: Author, vault: Vault
) -> int | None:
    seed = os.urandom(_SEED_BYTES)
    return await queries.create(
        transaction,
        **offer.source.ids,
        email=email,
        access_level=offer.level,
        member_role_id=offer.member_role_id,
        expires_at=offer.expires_at,
        created_by_id=author.id,
        token_seed=seed,
        token_digest=digest(vault.derived_token(INVITATION_TOKEN, seed)),
    )


async def _end_if_over(transaction: Transaction, source: Source, email: str) -> bool:
    """End the invitation of the address if nobody can accept it any more. Return whether the address is free now."""
    invitation = await queries.lock_by_email(transaction, email, **source.ids)
    if invitation is None:
        return True
    is_over = invitation.expired or not invitation.holds
    if is_over:
        await _end_over(transaction, invitation)
    return is_over


async def update(
    transaction: Transaction,
    source: Source,
    email: str,
    level: Role,
    expires_at: datetime.date | Unset | None,
    author: Author,
) -> str:
    """Change the invitation and return its JSON. If `expires_at` is UNSET, its expiry date is kept. Raise 400, 403 and
    404."""
    invitation = await _locked(transaction, source, email)
    if not members.may_touch(source.role, invitation.access_level, level):
        raise forbidden()
    if problems := _problems(
        transaction, source, level, None if isinstance(expires_at, Unset) else expires_at
    ):
        raise invalid(problems)
    ends = invitation.expires_at if isinstance(expires_at, Unset) else expires_at
    entity = await queries.update(transaction, invitation.id, level, ends, author.id)
    if (level, ends) != (invitation.role, invitation.expires_at):
        await _record(
            transaction,
            "member_updated",
            author,
            source.entity,
            invitation.email,
            "Invitation updated",
            expiry_from=invitation.expires_at,
            expiry_to=ends,
            **{"from": invitation.role.title, "to": level.title, "as": level.title},
        )
    return entity


async def withdraw(transaction: Transaction, source: Source, email: str, author: Author) -> None:
    """Withdraw the invitation. Raise 404, and 403 if the caller may not grant its role."""
    invitation = await _locked(transaction, source, email)
    if not members.may_touch(source.role, invitation.access_level):
        raise forbidden()
    await _end(transaction, invitation, author, "Invitation destroyed")


async def accept(transaction: Transaction, invitation: Invitation, user: Person, author: Author) -> None:
    """Make `user` a member. A membership that is refused, such as one with no greater role than before, is not an
    error."""
    await queries.delete(transaction, invitation.id)
    try:
        await members.add(
            transaction,
            invitation.source,
            user,
            invitation.role,
            author,
            expires_at=invitation.expires_at,
            created_by_id=invitation.created_by_id,
            member_role_id=invitation.member_role_id,
        )
    except ApiError:
        await _record_end(transaction, invitation, author, "Invitation accepted by a member")
        return
    await queue_answer(transaction, invitation, user.name, accepted=True)


async def decline(transaction: Transaction, invitation: Invitation, author: Author) -> None:
    """Decline the invitation, and notify the inviter by mail."""
    await _end(transaction, invitation, author, "Invitation declined")
    await queue_answer(transaction, invitation, invitation.email, accepted=False)


async def clear_away(transaction: Transaction) -> int:
    """End invitations that have expired, that have not been answered within `KEPT_UNANSWERED`, or whose inviters have
    lost the right to make them. Return their number."""
    ended = await queries.lock_ended(transaction, KEPT_UNANSWERED)
    for invitation in ended:
        await _end_over(transaction, invitation)
    return len(ended)


async def _end_over(transaction: Transaction, invitation: Invitation) -> None:
    if invitation.expired:
        reason = f"access expired on {invitation.expires_at}"
    else:
        reason = f"no answer for {KEPT_UNANSWERED.days} days" if invitation.holds else member_endings.NO_RIGHT
    await _end(transaction, invitation, SYSTEM, "Invitation expired", reason=reason, system_event="true")


async def _locked(transaction: Transaction, source: Source, email: str) -> Invitation:
    invitation = await queries.lock_by_email(transaction, email, **source.ids)
    if invitation is None or not invitation.holds:  # the list does not show those that do not hold
        raise ApiError(404, {"message": "404 Not Found"})
    return invitation


def _problems(
    transaction: Transaction, source: Source, level: Role, expires_at: datetime.date | None
) -> dict[str, list[str]]:
    return members.membership_problems(
        source.kind, level, expires_at=expires_at, today=transaction.now.date()
    )


async def _end(
    transaction: Transaction, invitation: Invitation, author: Author, message: str, **details: str
) -> None:
    await queries.delete(transaction, invitation.id)
    await _record_end(transaction, invitation, author, message, **details)


async def _record_end(
    transaction: Transaction, invitation: Invitation, author: Author, message: str, **details: str
) -> None:
    await _record(
        transaction,
        "member_destroyed",
        author,
        invitation.entity,
        invitation.email,
        message,
        **{"as": invitation.role.title},
        **details,
    )


async def _record(
    transaction: Transaction,
    event_type: str,
    author: Author,
    entity: Entity,
    email: str,
    message: str,
    **details: str | int | datetime.date | None,
) -> None:
    target = entity.target(None, email)
    await audit_trail.record(transaction, event_type, author, target, message, invite_email=email, **details)


_DAYS = (2, 5, 10)
#: Invitations that are valid for fewer days get their reminders proportionally earlier.
_FULL_LENGTH = 14
MAX_REMINDERS = len(_DAYS)


def reminder_days(lifespan: int | None) -> tuple[int, ...]:
    """Return the days after its creation on which an invitation gets reminders. `lifespan` is its validity in days, or
    None without an expiry date."""
    if lifespan is None or lifespan >= _FULL_LENGTH:
        return _DAYS
    return tuple(-(-day * lifespan // _FULL_LENGTH) for day in _DAYS)


def reminder_due(created: datetime.date, expires: datetime.date | None, today: datetime.date) -> int:
    """Return the number of reminders that should have been sent by `today`, or 0 from the expiry date on, when no
    further ones are sent."""
    if expires is not None and today >= expires:
        return 0
    lifespan = (expires - created).days if expires else None
    return sum(today >= created + datetime.timedelta(days=day) for day in reminder_days(lifespan))


def setup(services: Services) -> None:
    queue = services.queue

    async def mail_invitation(invitation_id: int, reminder: int) -> None:
        await send_invitation(services, invitation_id, reminder)

    async def remind() -> None:
        await queue_reminders(services)

    async def clear_away_invitations() -> None:
        async with services.database.transaction() as transaction:
            await clear_away(transaction)

    queue.add(TASK, mail_invitation, attempts=ATTEMPTS)
    queue.add_periodic("clear_away_invitations", "11 * * * *", clear_away_invitations)
    queue.add_periodic("remind_of_invitations", "23 * * * *", remind)


async def queue_reminders(services: Services) -> None:
    """Queue the due reminder of each invitation. If several are due, as after a pause of the service, queue only the
    latest."""
    async with services.database.transaction() as transaction:
        today = transaction.now.date()
        for invitation in await queries.lock_unanswered(transaction, MAX_REMINDERS):
            due = reminder_due(invitation.created_at.date(), invitation.expires_at, today)
            if due > invitation.reminders_sent:
                await queries.set_reminders_sent(transaction, invitation.id, due)
                await queue_invitation(transaction, invitation.id, due)
