"""Members of groups and projects: the roles that they may have (decision D1), and adding and changing
them."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypedDict

import attrs

from api_server.accounts import member_roles, user_queries
from api_server.namespaces import member_endings, member_queries
from api_server.namespaces.member_queries import Member
from api_server.namespaces.resources import Group, Project
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction
from api_server.web.errors import ApiError, bad_request, conflict, forbidden, invalid, record_not_found
from api_server.web.params import Unset
from api_server.web.routes import Role

SourceKind = Literal["group", "project"]

_GRANTABLE: dict[SourceKind, frozenset[Role]] = {
    "group": frozenset(Role) - {Role.NO_ACCESS},
    "project": frozenset(Role) - {Role.NO_ACCESS, Role.MINIMAL_ACCESS},
}


def manager(kind: SourceKind) -> Role:
    """Return the lowest role that manages the members there."""
    return Role.OWNER if kind == "group" else Role.MAINTAINER


def may_touch(role: int, *levels: int) -> bool:
    """Return whether a manager with `role` may grant, change or take away these levels: only Owners may do so
    with Owner."""
    return role >= Role.OWNER or Role.OWNER not in levels


def membership_problems(
    kind: SourceKind,
    level: Role,
    *,
    inherited: int | None = None,
    inherited_from: str | None = None,
    expires_at: datetime.date | None = None,
    today: datetime.date,
) -> dict[str, list[str]]:
    """Return the problems of a membership of `level`, by field, in GitLab's words; {} if there are none.

    `inherited` is the role that the user has from the parent group named `inherited_from`.
    """
    problems: dict[str, list[str]] = {}
    if level not in _GRANTABLE[kind]:
        problems["access_level"] = ["is not included in the list"]
    elif inherited is not None and level < inherited:
        text = f"should be greater than or equal to {Role(inherited).title} inherited membership from group"
        problems["access_level"] = [f"{text} {inherited_from}"]
    if expires_at is not None and expires_at < today:
        problems["expires_at"] = ["cannot be a date in the past"]
    return problems


def sentence(problems: Mapping[str, Sequence[str]]) -> str:
    """Format `{"expires_at": ["is x"], "access_level": ["is y"]}` as `Expires at is x and Access level is
    y`."""
    parts = [
        f"{field.replace('_', ' ').capitalize()} {text}"
        for field, texts in problems.items()
        for text in texts
    ]
    return ", ".join([*parts[:-2], " and ".join(parts[-2:])])


class MemberSources(TypedDict):
    """The project and groups whose members a list shows."""

    project_id: int | None
    namespace_ids: list[int]


class MemberSource(TypedDict):
    """The group or project of a membership: one of the two is set, the other is None."""

    namespace_id: int | None
    project_id: int | None


@attrs.frozen(kw_only=True)
class Source:
    """A group or project with members; `role` is the caller's, 50 for administrators."""

    kind: SourceKind
    id: int
    entity: Entity
    role: int
    #: Ids of the namespaces whose members have their role here too; the last one of a group is its own.
    lineage: list[int]

    @property
    def ids(self) -> MemberSource:
        return {
            "namespace_id": self.id if self.kind == "group" else None,
            "project_id": self.id if self.kind == "project" else None,
        }

    @property
    def direct(self) -> MemberSources:
        """The source of its direct members."""
        return {
            "project_id": self.ids["project_id"],
            "namespace_ids": self.lineage[-1:] if self.kind == "group" else [],
        }

    @property
    def everywhere(self) -> MemberSources:
        """The sources of its direct and its inherited members."""
        return {"project_id": self.ids["project_id"], "namespace_ids": self.lineage}

    @property
    def above(self) -> list[int]:
        """Ids of the namespaces from which roles are inherited."""
        return self.lineage[:-1] if self.kind == "group" else self.lineage

    def require_manager(self) -> None:
        """Raise 403 if the caller may not manage the members here."""
        if self.role < manager(self.kind):
            raise forbidden()


def source_of(resource: Group | Project) -> Source:
    """Return the group or project of the route as a source of members."""
    return Source(
        kind="group" if isinstance(resource, Group) else "project",
        id=resource.id,
        entity=resource.entity,
        role=resource.role,
        lineage=resource.lineage,
    )


#: Maximum number of users that one request may add.
MAX_USERS = 100


class Person(Protocol):
    """A user who becomes a member."""

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
    """Make `user` a member and return the id of the membership. Raise 400, 403, 409; the transaction stays
    usable."""
    if await user_queries.is_bot(transaction, user.id):
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
    """Make `user` a member like `add`, even if it is a bot."""
    if not may_touch(source.role, level):
        raise forbidden()
    await _check(transaction, source, user.id, level, expires_at)
    await member_roles.check(transaction, member_role_id, level)
    await member_endings.remove_expired(transaction, user_id=user.id, **source.ids)
    member_id = await member_queries.add(
        transaction,
        user_id=user.id,
        access_level=level,
        expires_at=expires_at,
        created_by_id=created_by_id or author.id,
        member_role_id=member_role_id,
        **source.ids,
    )
    if member_id is None:
        raise conflict("Member already exists")
    await audit_trail.record(
        transaction,
        "member_created",
        author,
        source.entity.target(user.id, user.name),
        member_id=member_id,
        member_role_id=member_role_id,
        expires_at=expires_at,
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
    """Make several users members. Return the problems by user name (by id if there is no such user). Raise
    400."""
    if len(user_ids) > MAX_USERS:
        raise bad_request(f"Too many users specified (limit is {MAX_USERS})")
    problems: dict[str, str] = {}
    for user_id in user_ids:
        user = await user_queries.find_user(transaction, user_id)
        if user is None:
            problems[str(user_id)] = "404 User Not Found"
            continue
        try:
            await add(transaction, source, user, level, author, expires_at=expires_at)
        except ApiError as refused:
            message = refused.body["message"]
            problems[user.username] = message if isinstance(message, str) else sentence(message)
    return problems


async def update(
    transaction: Transaction,
    source: Source,
    user_id: int,
    level: Role,
    expires_at: datetime.date | Unset | None,
    author: Author,
) -> int:
    """Change a membership and return its id; its expiry date stays unchanged if `expires_at` is UNSET.

    Raise 400, 403, 404.
    """
    member = await _locked(transaction, source, user_id)
    if not may_touch(source.role, member.access_level, level):
        raise forbidden()
    ends = member.expires_at if isinstance(expires_at, Unset) else expires_at
    await _check(transaction, source, user_id, level, ends)
    if level < Role.OWNER:
        await _keep_an_owner(transaction, source, member)
    if (level, ends) == (member.access_level, member.expires_at):
        return member.id
    await member_queries.update(transaction, member.id, level, ends)
    await member_endings.withdraw_unfounded(transaction, user_id, author)
    await audit_trail.record(
        transaction,
        "member_updated",
        author,
        source.entity.target(user_id, member.name),
        expiry_from=member.expires_at,
        expiry_to=ends,
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
    """End a membership, those below the group unless `leaves_below`, and the invitations that the member made
    there. Raise 403, 404."""
    if user_id != author.id:
        source.require_manager()
    member = await _locked(transaction, source, user_id)
    if user_id != author.id and not may_touch(source.role, member.access_level):
        raise forbidden()
    await _keep_an_owner(transaction, source, member)
    await member_queries.remove(transaction, member.id)
    await member_endings.record_end(transaction, source.entity, member, author)
    if source.kind == "group" and not leaves_below:
        await member_endings.end_below(transaction, source.id, user_id, author)
    await member_endings.withdraw_invitations(
        transaction, user_id, author, **source.ids, below=not leaves_below
    )


async def _check(
    transaction: Transaction, source: Source, user_id: int, level: Role, expires_at: datetime.date | None
) -> None:
    above = await member_queries.find_inherited(transaction, user_id, source.above)
    if problems := membership_problems(
        source.kind,
        level,
        inherited=above.access_level if above else None,
        inherited_from=above.group_name if above else None,
        expires_at=expires_at,
        today=transaction.now.date(),
    ):
        raise invalid(problems)


async def _locked(transaction: Transaction, source: Source, user_id: int) -> Member:
    """Return the direct membership; lock a group so that one request at a time changes its members. Raise
    404, and 403 for a bot, whose membership ends with its tokens."""
    if source.kind == "group":
        await member_queries.lock_group(transaction, source.id)
    member = await member_queries.find_member(transaction, user_id, **source.ids)
    if member is None:
        raise record_not_found()
    if member.bot:
        raise forbidden()
    return member


async def _keep_an_owner(transaction: Transaction, source: Source, member: Member) -> None:
    """Raise 403 if the ownership of a group's last owner, or of a personal project's owner, would end."""
    if member.access_level < Role.OWNER:
        return
    if source.kind == "group":
        if not await member_queries.has_other_owner(transaction, source.lineage, member.id):
            raise forbidden("The last owner of a group stays its owner")
    elif await member_queries.owns_namespace(transaction, source.lineage[-1], member.user_id):
        raise forbidden("The owner of a personal project stays its owner")
