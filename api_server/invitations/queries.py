# mypy: disable-error-code="empty-body"
"""Statements about invitations, and about the owners of addresses."""

import datetime
from typing import Any

import attrs

from api_server.namespaces.members import Source, SourceKind
from api_server.state.audit_trail import Entity
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query
from api_server.web.routes import Role


@attrs.frozen
class Invitation:
    """An invitation, with its inviter and its group or project."""

    id: int
    kind: SourceKind
    source_id: int
    email: str
    access_level: int
    member_role_id: int | None
    expires_at: datetime.date | None
    expired: bool
    #: Whether the inviter still has the right to make this invitation.
    holds: bool
    created_by_id: int | None
    token_seed: bytes = attrs.field(repr=False)
    inviter_name: str | None
    inviter_email: str | None
    source_name: str
    source_path: str
    source_description: str
    lineage: list[int]

    @property
    def role(self) -> Role:
        return Role(self.access_level)

    @property
    def source(self) -> Source:
        """The group or project with an Owner's rights, because lookups have checked that the inviter may grant the
        role."""
        return Source(
            kind=self.kind,
            id=self.source_id,
            entity=self.entity,
            role=Role.OWNER,
            lineage=self.lineage,
        )

    @property
    def entity(self) -> Entity:
        """The entity to which the invitation's audit events belong."""
        return Entity(
            type="Group" if self.kind == "group" else "Project", id=self.source_id, path=self.source_path
        )


_ENTITIES = read_sql("api_server.invitations")
_LISTS = {
    kind: ListQuery(
        _ENTITIES["invitation"],
        f"""
        -- the same rule as `invitation_holds`, but the role of each inviter is looked up only once
        WITH inviters AS MATERIALIZED (
            SELECT made.created_by_id AS id,
                inviting_role(made.created_by_id, made.namespace_id, made.project_id, %(now)s) AS role
            FROM (
                SELECT DISTINCT invitations.created_by_id, invitations.namespace_id, invitations.project_id
                FROM invitations WHERE invitations.{kind}_id = %({kind}_id)s::bigint
            ) made
        )
        SELECT invitations.* FROM invitations
        JOIN inviters ON inviters.id = invitations.created_by_id AND inviters.role >= role_to_invite(invitations)
        WHERE invitations.{kind}_id = %({kind}_id)s::bigint
            AND (%(query)s::text IS NULL OR lower(invitations.email) = lower(%(query)s))
        """,
        planned_once=True,
        found_once=True,
    )
    for kind in ("namespace", "project")
}
LISTING = _LISTS["project"]


async def list_invitations(
    database: Executor, page: Page, *, namespace_id: int | None, project_id: int | None, query: str | None
) -> ListPage:
    if project_id is not None:
        return await _LISTS["project"].read(database, page, project_id=project_id, query=query)
    return await _LISTS["namespace"].read(database, page, namespace_id=namespace_id, query=query)


@attrs.frozen
class KnownUser:
    """An existing user."""

    id: int
    username: str
    name: str


@attrs.frozen
class Owner(KnownUser):
    """A user with one of the user's confirmed addresses, in lower case."""

    email: str


OWNERS = Query(
    """
    SELECT owner.id, owner.username, owner.name, address AS email
    FROM unnest(%(emails)s::text[]) address CROSS JOIN owner_of_address(address) owner
    """,
    Owner,
)


async def owners_of(database: Executor, emails: list[str]) -> dict[str, Owner]:
    """Return the users who have confirmed one of `emails`, by that address in lower case."""
    owners = await database.rows(OWNERS, emails=[email.lower() for email in emails])
    return {owner.email: owner for owner in owners}


@statement("""
    SELECT users.id, users.username, users.name FROM users WHERE users.id = ANY (%(ids)s::bigint[])
    """)
async def users_with(database: Executor, ids: list[int]) -> list[KnownUser]:
    """Return the existing users with these ids."""


CREATE = """
    INSERT INTO invitations (namespace_id, project_id, email, access_level, member_role_id, expires_at,
        created_by_id, token_seed, token_digest, created_at, updated_at)
    VALUES (%(namespace_id)s, %(project_id)s, %(email)s, %(access_level)s, %(member_role_id)s, %(expires_at)s,
        %(created_by_id)s, %(token_seed)s, %(token_digest)s, %(now)s, %(now)s)
    ON CONFLICT DO NOTHING
    RETURNING id
"""


async def create(transaction: Transaction, **values: Any) -> int | None:
    """Store an invitation and return its id, or None if the address is invited there already."""
    invitation_id: int | None = await transaction.value(CREATE, **values)
    return invitation_id


_INVITATION = """
    SELECT invitations.id, CASE WHEN invitations.project_id IS NULL THEN 'group' ELSE 'project' END AS kind,
        coalesce(invitations.project_id, invitations.namespace_id) AS source_id, invitations.email,
        invitations.access_level, invitations.member_role_id, invitations.expires_at,
        has_expired(invitations.expires_at, %(now)s) AS expired, invitation_holds(invitations, %(now)s) AS holds,
        invitations.created_by_id, invitations.token_seed,
        inviter.name AS inviter_name, CASE WHEN NOT inviter.bot THEN inviter.email END AS inviter_email,
        coalesce(projects.name, namespaces.name) AS source_name,
        coalesce(projects.full_path, namespaces.full_path) AS source_path,
        coalesce(projects.description, namespaces.description, '') AS source_description,
        coalesce(namespaces.lineage, holders.lineage) AS lineage
    FROM invitations
    LEFT JOIN users inviter ON inviter.id = invitations.created_by_id
    LEFT JOIN projects ON projects.id = invitations.project_id
    LEFT JOIN namespaces holders ON holders.id = projects.namespace_id
    LEFT JOIN namespaces ON namespaces.id = invitations.namespace_id
"""


@statement(f"""
    {_INVITATION}
    WHERE (invitations.project_id = %(project_id)s::bigint OR invitations.namespace_id = %(namespace_id)s::bigint)
        AND lower(invitations.email) = lower(%(email)s)
    FOR UPDATE OF invitations
    """)
async def lock_by_email(
    transaction: Transaction, email: str, *, namespace_id: int | None, project_id: int | None
) -> Invitation | None:
    """Lock and return the invitation of the address (in any letter case), or None, until the transaction ends."""


FIND_BY_TOKEN = Query(
    f"""
    {_INVITATION}
    WHERE invitations.token_digest = %(digest)s AND NOT has_expired(invitations.expires_at, %(now)s)
        AND invitation_holds(invitations, %(now)s)
    """,
    Invitation,
)


@statement(FIND_BY_TOKEN)
async def find_by_token(database: Executor, digest: bytes) -> Invitation | None:
    """Return the invitation, unless it has expired or its inviter has lost the right to invite."""


@statement(f"{FIND_BY_TOKEN} FOR UPDATE OF invitations")
async def lock_by_token(transaction: Transaction, digest: bytes) -> Invitation | None:
    """Lock and return the invitation as `find_by_token` does, until the transaction ends."""


@statement(f"""
    {_INVITATION}
    WHERE invitations.id = %(invitation_id)s AND NOT has_expired(invitations.expires_at, %(now)s)
        AND invitation_holds(invitations, %(now)s)
    """)
async def find(database: Executor, invitation_id: int) -> Invitation | None:
    """Return the invitation, unless it has expired or its inviter has lost the right to invite."""


@statement(
    entity_statement(
        _ENTITIES["changed"],
        """
    UPDATE invitations SET access_level = %(access_level)s, expires_at = %(expires_at)s, updated_at = %(now)s,
        member_role_id = CASE WHEN access_level = %(access_level)s THEN member_role_id END,
        created_by_id = CASE WHEN access_level < 50 AND %(access_level)s = 50 THEN %(user_id)s ELSE created_by_id END
    WHERE id = %(invitation_id)s RETURNING *
    """,
    )
)
async def update(
    transaction: Transaction,
    invitation_id: int,
    access_level: int,
    expires_at: datetime.date | None,
    user_id: int,
) -> str:
    """Change the invitation and return the JSON of endpoint 33. If its level becomes Owner, `user_id` becomes its
    inviter."""


@statement("""
    DELETE FROM invitations WHERE id = %(invitation_id)s
""")
async def delete(transaction: Transaction, invitation_id: int) -> None: ...


@statement("""
    SELECT EXISTS (SELECT FROM owner_of_address(%(email)s) owner WHERE owner.id = %(user_id)s)
""")
async def is_own_address(database: Executor, user_id: int, email: str) -> bool:
    """Return whether it is one of the user's confirmed addresses."""


@attrs.frozen
class Unanswered:
    """An unanswered invitation, for which a reminder may be due."""

    id: int
    created_at: datetime.datetime
    expires_at: datetime.date | None
    reminders_sent: int


#: Only invitations whose inviters still have the right to make them, and whose address no user has confirmed.
@statement("""
    SELECT invitations.id, invitations.created_at, invitations.expires_at, invitations.reminders_sent
    FROM invitations
    WHERE invitations.reminders_sent < %(limit)s AND invitation_holds(invitations, %(now)s)
        AND NOT EXISTS (SELECT FROM owner_of_address(invitations.email))
    ORDER BY invitations.id FOR UPDATE SKIP LOCKED
    """)
async def lock_unanswered(transaction: Transaction, limit: int) -> list[Unanswered]:
    """Lock and return the unanswered invitations with fewer than `limit` reminders. Skip those that others have
    locked."""


@statement("""
    UPDATE invitations SET reminders_sent = %(reminders_sent)s WHERE id = %(invitation_id)s
""")
async def set_reminders_sent(transaction: Transaction, invitation_id: int, reminders_sent: int) -> None: ...


@statement(f"""
    {_INVITATION}
    WHERE has_expired(invitations.expires_at, %(now)s)
        OR invitations.created_at < %(now)s::timestamptz - %(max_age)s::interval
        OR NOT invitation_holds(invitations, %(now)s)
    ORDER BY invitations.id FOR UPDATE OF invitations SKIP LOCKED
    """)
async def lock_ended(transaction: Transaction, max_age: datetime.timedelta) -> list[Invitation]:
    """Lock and return the invitations that have expired, that are older than `max_age`, or whose inviters have lost the
    right to make them. Skip those that others have locked."""
