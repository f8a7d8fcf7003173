"""Making, changing, taking back and answering invitations, each in the caller's transaction."""

import datetime
import os

import attrs

from api_server.accounts import member_roles
from api_server.invitations import mails, queries
from api_server.invitations.invitation import Invitation
from api_server.invitations.queries import KnownUser
from api_server.invitations.recipients import (
    NOT_FOUND,
    TAKEN,
    TOO_MANY_LETTERS,
    TOO_MANY_TO_ADDRESS,
    Recipients,
    RefusedAsAWhole,
    text_of,
)
from api_server.namespaces import member_endings, members
from api_server.namespaces.members import Person, Source
from api_server.outbound import mail
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Transaction
from api_server.state.secrets import INVITATION_TOKEN, Vault, digest
from api_server.web.errors import ApiError, forbidden, invalid
from api_server.web.params import Unset
from api_server.web.routes import Role

_SEED_BYTES = 20


@attrs.frozen(kw_only=True)
class Offer:
    """What people are invited to."""

    source: Source
    level: Role
    member_role_id: int | None = None
    expires_at: datetime.date | None = None


@attrs.frozen
class Means:
    """What inviting by mail takes of the application: the vault that makes tokens, and how many letters may go."""

    vault: Vault
    settings: Settings


async def invite(
    transaction: Transaction, offer: Offer, recipients: Recipients, author: Author, means: Means
) -> dict[str, str]:
    """Adds those who are known, invites the others by mail; what went wrong, by address, username or
    id of nobody.

    Raises 403 where the caller may not grant the role at all, and RefusedAsAWhole where she would have sent too many
    mails within an hour. Rows are written in one order, whoever asks, so that
    requests for the same people wait for each other rather than for ever.
    """
    if not members.may_touch(offer.source.role, offer.level):
        raise forbidden()
    owners = await queries.owners_of(transaction, list(recipients.emails))
    people: dict[int, tuple[str, KnownUser]] = {
        owner.id: (email, owner)
        for email in reversed(recipients.emails)
        if (owner := owners.get(email.lower()))
    }
    named = await queries.users_with(transaction, list(recipients.user_ids))
    for user in named:
        people.setdefault(user.id, (user.username, user))
    problems = {str(id_): NOT_FOUND for id_ in sorted(set(recipients.user_ids) - {user.id for user in named})}
    for _, (name, user) in sorted(people.items()):
        if problem := await _add(transaction, offer, user, author):
            problems[name] = problem
    unknown = [email for email in recipients.emails if email.lower() not in owners]
    for email in sorted(unknown, key=str.lower):
        if problem := await _ask(transaction, offer, email, author, means):
            problems[email] = problem
    sent = len(unknown) - len(problems.keys() & set(unknown))
    if await mail.wait_for_user(transaction, means.settings, author.id, sent):
        raise RefusedAsAWhole(TOO_MANY_LETTERS, "too_many_invites_error")
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
        return text_of(refusal)
    return None


async def _ask(
    transaction: Transaction, offer: Offer, email: str, author: Author, means: Means
) -> str | None:
    source = offer.source
    try:
        await member_roles.check(transaction, offer.member_role_id, offer.level)
    except ApiError as refusal:
        return text_of(refusal)
    if problems := _problems(transaction, source, offer.level, offer.expires_at):
        return members.sentence(problems)
    seed = os.urandom(_SEED_BYTES)
    invitation_id = await queries.create(
        transaction,
        **source.place,
        email=email,
        access_level=offer.level,
        member_role_id=offer.member_role_id,
        expires_at=offer.expires_at,
        created_by_id=author.id,
        token_seed=seed,
        token_digest=digest(means.vault.derived_token(INVITATION_TOKEN, seed)),
    )
    if invitation_id is None:
        return TAKEN
    if await mail.wait_for_address(transaction, means.settings, email):
        await queries.delete(transaction, invitation_id)
        return TOO_MANY_TO_ADDRESS
    await mails.queue_invitation(transaction, invitation_id)
    await _record(
        transaction,
        "member_created",
        author,
        source.entity,
        email,
        "Invitation created",
        add="user_access",
        expires_at=offer.expires_at,
        member_role_id=offer.member_role_id,
        **{"as": offer.level.title},
    )
    return None


async def update(
    transaction: Transaction,
    source: Source,
    email: str,
    level: Role,
    expires_at: datetime.date | Unset | None,
    author: Author,
) -> str:
    """The JSON of what is so now; the invitation ends when it would have where `expires_at` is UNSET.
    Raises 400, 403 and 404."""
    invitation = await _locked(transaction, source, email)
    if not members.may_touch(source.role, invitation.access_level, level):
        raise forbidden()
    if problems := _problems(
        transaction, source, level, None if isinstance(expires_at, Unset) else expires_at
    ):
        raise invalid(problems)
    ends = invitation.expires_at if isinstance(expires_at, Unset) else expires_at
    shown = await queries.update(transaction, invitation.id, level, ends, author.id)
    if (level, ends) != (invitation.role, invitation.expires_at):
        await _record(
            transaction,
            "member_updated",
            author,
            source.entity,
            invitation.email,
            "Invitation updated",
            change="access_level",
            expiry_from=invitation.expires_at,
            expiry_to=ends,
            **{"from": invitation.role.title, "to": level.title, "as": level.title},
        )
    return shown


async def withdraw(transaction: Transaction, source: Source, email: str, author: Author) -> None:
    """Raises 403 and 404."""
    invitation = await _locked(transaction, source, email)
    if not members.may_touch(source.role, invitation.access_level):
        raise forbidden()
    await _end(transaction, invitation, author, "Invitation destroyed")


async def accept(transaction: Transaction, invitation: Invitation, user: Person, author: Author) -> None:
    """Makes `user` a member; one who is a member with as great a role already stays what she is."""
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
    await mails.queue_answer(transaction, invitation, user.name, accepted=True)


async def decline(transaction: Transaction, invitation: Invitation, author: Author) -> None:
    """The inviter is told by mail."""
    await _end(transaction, invitation, author, "Invitation declined")
    await mails.queue_answer(transaction, invitation, invitation.email, accepted=False)


async def clear_away(transaction: Transaction, kept: datetime.timedelta) -> int:
    """Ends invitations that have expired, that nobody has answered for as long as `kept`, or that their makers may not
    make any more; how many."""
    over = await queries.lock_over(transaction, kept)
    for invitation in over:
        if invitation.expired:
            reason = f"access expired on {invitation.expires_at}"
        else:
            reason = f"no answer for {kept.days} days" if invitation.holds else member_endings.NO_RIGHT
        await _end(transaction, invitation, SYSTEM, "Invitation expired", reason=reason, system_event="true")
    return len(over)


async def _locked(transaction: Transaction, source: Source, email: str) -> Invitation:
    invitation = await queries.lock_by_email(transaction, email, **source.place)
    if invitation is None:
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
        remove="user_access",
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
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=entity,
        target_id=None,
        target_details=email,
        message=message,
        invite_email=email,
        **details,
    )
