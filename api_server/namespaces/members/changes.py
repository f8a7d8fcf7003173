"""What adding, changing and removing a member means, each in the caller's transaction."""

import datetime
from collections.abc import Sequence
from typing import Protocol

from api_server.accounts.member_roles import rules as member_roles
from api_server.accounts.users import bot_queries
from api_server.accounts.users import queries as users
from api_server.namespaces import membership_queries
from api_server.namespaces.members import ending, queries, rules
from api_server.namespaces.members.queries import Member
from api_server.namespaces.members.sources import Source
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.web.errors import ApiError, bad_request, conflict, forbidden, invalid, record_not_found
from api_server.web.params import Unset
from api_server.web.routes import Role

#: Users that one request may add.
MOST_USERS = 100


class Person(Protocol):
    """Who is made a member."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


async def add(
    transaction: Transaction,
    source: Source,
    user: Person,
    level: Role,
    author: Author,
    *,
    expires_at: datetime.date | None = None,
    created_by_id: int | None = None,
    member_role_id: int | None = None,
) -> int:
    """The id of the new membership of `user`. Raises 400, 403 and 409; the transaction stays usable."""
    if await bot_queries.is_bot(transaction, user.id):
        raise invalid({"user": ["project bots cannot be added to other groups / projects"]})
    return await admit(
        transaction,
        source,
        user,
        level,
        author,
        expires_at=expires_at,
        created_by_id=created_by_id,
        member_role_id=member_role_id,
    )


async def admit(
    transaction: Transaction,
    source: Source,
    user: Person,
    level: Role,
    author: Author,
    *,
    expires_at: datetime.date | None = None,
    created_by_id: int | None = None,
    member_role_id: int | None = None,
) -> int:
    """As `add`, of bots too."""
    if not rules.may_touch(source.role, level):
        raise forbidden()
    await _check(transaction, source, user.id, level, expires_at)
    await member_roles.check(transaction, member_role_id, level)
    await ending.remove_expired(transaction, user_id=user.id, **source.place)
    member_id = await membership_queries.add(
        transaction,
        user_id=user.id,
        access_level=level,
        expires_at=expires_at,
        created_by_id=created_by_id or author.id,
        member_role_id=member_role_id,
        **source.place,
    )
    if member_id is None:
        raise conflict("Member already exists")
    await audit_trail.record(
        transaction,
        "member_created",
        author=author,
        entity=source.entity,
        target_id=user.id,
        target_details=user.name,
        message="Membership created",
        add="user_access",
        member_id=member_id,
        member_role_id=member_role_id,
        expires_at=_day(expires_at),
        **{"as": level.title},
    )
    return member_id


async def add_several(
    transaction: Transaction,
    source: Source,
    user_ids: Sequence[int],
    level: Role,
    author: Author,
    *,
    expires_at: datetime.date | None,
) -> dict[str, str]:
    """What was wrong with those who could not be added, by user name or (nobody's) id. Raises 400 for too many."""
    if len(user_ids) > MOST_USERS:
        raise bad_request(f"Too many users specified (limit is {MOST_USERS})")
    problems: dict[str, str] = {}
    for user_id in user_ids:
        user = await users.find_user(transaction, user_id)
        if user is None:
            problems[str(user_id)] = "404 User Not Found"
            continue
        try:
            await add(transaction, source, user, level, author, expires_at=expires_at)
        except ApiError as refused:
            message = refused.body["message"]
            problems[user.username] = message if isinstance(message, str) else rules.sentence(message)
    return problems


async def update(
    transaction: Transaction,
    source: Source,
    user_id: int,
    level: Role,
    expires_at: datetime.date | Unset | None,
    author: Author,
) -> int:
    """The id of the changed membership, which ends when it would have where `expires_at` is UNSET.
    Raises 400, 403, 404."""
    member = await _locked(transaction, source, user_id)
    if not rules.may_touch(source.role, member.access_level, level):
        raise forbidden()
    ends = member.expires_at if isinstance(expires_at, Unset) else expires_at
    await _check(transaction, source, user_id, level, ends)
    if level < Role.OWNER:
        await _keep_an_owner(transaction, source, member)
    if (level, ends) == (member.access_level, member.expires_at):
        return member.id
    await queries.update(transaction, member.id, level, ends)
    await ending.withdraw_unfounded(transaction, user_id, author)
    await audit_trail.record(
        transaction,
        "member_updated",
        author=author,
        entity=source.entity,
        target_id=user_id,
        target_details=member.name,
        message="Membership updated",
        change="access_level",
        expiry_from=_day(member.expires_at),
        expiry_to=_day(ends),
        member_id=member.id,
        **{"from": Role(member.access_level).title, "to": level.title, "as": level.title},
    )
    return member.id


async def remove(
    transaction: Transaction,
    source: Source,
    user_id: int,
    author: Author,
    *,
    leaves_below: bool = False,
) -> None:
    """Ends a membership, and those in what is below a group unless `leaves_below`; with them the invitations that she
    made there. Raises 403, 404."""
    if user_id != author.id:
        source.require_manager()
    member = await _locked(transaction, source, user_id)
    if user_id != author.id and not rules.may_touch(source.role, member.access_level):
        raise forbidden()
    await _keep_an_owner(transaction, source, member)
    await queries.remove(transaction, member.id)
    await ending.record_end(transaction, source.entity, member, author, ending.DESTROYED)
    if source.kind == "group" and not leaves_below:
        await ending.end_below(transaction, source.id, user_id, author)
    await ending.withdraw_invitations(transaction, user_id, author, **source.place, below=not leaves_below)


async def _check(
    transaction: Transaction, source: Source, user_id: int, level: Role, expires_at: datetime.date | None
) -> None:
    above = await queries.find_inherited(transaction, user_id, source.above)
    if found := rules.problems(
        source.kind,
        level,
        inherited=above.access_level if above else None,
        inherited_from=above.group_name if above else None,
        expires_at=expires_at,
        today=transaction.now.date(),
    ):
        raise invalid(found)


async def _locked(transaction: Transaction, source: Source, user_id: int) -> Member:
    """The direct membership; of a group only one request at a time changes who is in it. Raises 404, and 403 for that
    of a bot, which ends with its tokens."""
    if source.kind == "group":
        await queries.lock_group(transaction, source.id)
    member = await queries.find_member(transaction, user_id, **source.place)
    if member is None:
        raise record_not_found()
    if member.bot:
        raise forbidden()
    return member


async def _keep_an_owner(transaction: Transaction, source: Source, member: Member) -> None:
    """Refuses to end the ownership of a group's last owner, and of a personal project's."""
    if member.access_level < Role.OWNER:
        return
    if source.kind == "group":
        if not await queries.has_other_owner(transaction, source.lineage, member.id):
            raise forbidden("The last owner of a group stays its owner")
    elif await queries.owns_namespace(transaction, source.lineage[-1], member.user_id):
        raise forbidden("The owner of a personal project stays its owner")


def _day(date: datetime.date | None) -> str | None:
    return str(date) if date else None
