"""The ends of memberships, including expiry, each with an audit event; and the invitations that end with
them."""

from collections.abc import Iterable

from api_server.accounts.users import USER_LISTENERS, UserEvent
from api_server.namespaces import member_queries, removal
from api_server.namespaces.member_queries import EndedMembership, Member, WithdrawnInvitation
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Transaction
from api_server.web.errors import conflict
from api_server.web.routes import Role

NO_MEMBER = "whoever made it is no longer a member"
NO_RIGHT = "whoever made it may not make it any more"


async def end_below(transaction: Transaction, group_id: int, user_id: int, author: Author) -> None:
    """End the user's memberships of the group's subgroups and projects."""
    for ended in await member_queries.remove_below(transaction, group_id, user_id):
        await record_end(transaction, _entity_of(ended), ended, author)


async def end_all_of(transaction: Transaction, user_id: int, author: Author) -> None:
    """End the memberships of a user who is removed, and withdraw that user's invitations to others."""
    for ended in await member_queries.remove_all_of(transaction, user_id):
        await record_end(transaction, _entity_of(ended), ended, author)
    withdrawn = await member_queries.remove_invitations_by(transaction, user_id, everywhere=True)
    await _record_withdrawn(transaction, withdrawn, author, NO_MEMBER)


async def remove_expired(
    transaction: Transaction,
    *,
    user_id: int | None = None,
    namespace_id: int | None = None,
    project_id: int | None = None,
) -> None:
    """End memberships that have expired: those of one user in one group or project, or all without
    arguments."""
    for ended in await member_queries.remove_expired(transaction, user_id, namespace_id, project_id):
        on = f"expired on {ended.expires_at}"
        details = {"system_event": "true", "reason": f"access {on}"}
        await record_end(transaction, _entity_of(ended), ended, SYSTEM, f"Membership {on}", **details)
        await withdraw_invitations(
            transaction,
            ended.user_id,
            SYSTEM,
            namespace_id=ended.namespace_id,
            project_id=ended.project_id,
            below=False,
        )


async def withdraw_invitations(
    transaction: Transaction,
    user_id: int,
    author: Author,
    *,
    below: bool,
    namespace_id: int | None,
    project_id: int | None,
) -> None:
    """Withdraw the invitations that a user has made in a group or project where that user's membership
    ends."""
    withdrawn = await member_queries.remove_invitations_by(
        transaction, user_id, namespace_id=namespace_id, project_id=project_id, below=below
    )
    await _record_withdrawn(transaction, withdrawn, author, NO_MEMBER)


async def withdraw_unfounded(transaction: Transaction, user_id: int, author: Author) -> None:
    """Withdraw the invitations that a user is no longer allowed to make."""
    withdrawn = await member_queries.remove_invitations_by(transaction, user_id)
    await _record_withdrawn(transaction, withdrawn, author, NO_RIGHT)


async def _record_withdrawn(
    transaction: Transaction, withdrawn: Iterable[WithdrawnInvitation], author: Author, reason: str
) -> None:
    for invitation in withdrawn:
        await audit_trail.record(
            transaction,
            "member_destroyed",
            author,
            _entity_of(invitation).target(None, invitation.email),
            "Invitation destroyed",
            invite_email=invitation.email,
            reason=reason,
            **{"as": Role(invitation.access_level).title},
        )


async def record_end(
    transaction: Transaction,
    entity: Entity,
    member: Member | EndedMembership,
    author: Author,
    message: str | None = None,
    **details: str,
) -> None:
    await audit_trail.record(
        transaction,
        "member_destroyed",
        author,
        entity.target(member.user_id, member.name),
        message,
        member_id=member.id,
        member_role_id=member.member_role_id,
        **{"as": Role(member.access_level).title},
        **details,
    )


def _entity_of(row: EndedMembership | WithdrawnInvitation) -> Entity:
    if row.project_id is not None:
        return Entity("Project", row.project_id, row.full_path)
    return Entity("Group", row.namespace_id or 0, row.full_path)


def setup(services: Services) -> None:
    async def remove_expired_members() -> None:
        async with services.database.transaction() as transaction:
            await remove_expired(transaction)

    services.queue.add_periodic("remove_expired_members", "5 * * * *", remove_expired_members)
    services[USER_LISTENERS].append(follow_user)


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    if event.kind == "removed":
        await _remove_owned_groups(transaction, event)
        await end_all_of(transaction, event.user_id, event.author)
    elif event.kind == "restricted":
        await withdraw_unfounded(transaction, event.user_id, event.author)


async def _remove_owned_groups(transaction: Transaction, event: UserEvent) -> None:
    """Remove the groups that nobody else owns if the user is removed with `hard`; raise 409 otherwise."""
    for group_id in await member_queries.groups_of_only_owner(transaction, event.user_id):
        if not event.hard:
            raise conflict("User cannot be removed while is the sole-owner of a group")
        await removal.remove_namespace(transaction, group_id, event.author)
