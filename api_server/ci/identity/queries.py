# mypy: disable-error-code="empty-body"
"""Statements about the keys of identity tokens, and about the job's user in their claims."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@attrs.frozen
class SealedKey:
    """A stored key; `private_key` is encrypted PEM."""

    kid: str
    private_key: bytes


@statement(
    """
    SELECT identity_keys.kid, identity_keys.private_key FROM identity_keys
    ORDER BY identity_keys.signs_from > %(now)s, abs(extract(epoch FROM identity_keys.signs_from - %(now)s)) LIMIT 1
    """,
    prepared=True,
)
async def signing_key(database: Executor) -> SealedKey:
    """Return the key that began to sign most recently; if the clock was set back before all of them, the
    first one. Raise NotFound before the first start."""


@statement("SELECT EXISTS (SELECT FROM identity_keys)")
async def any_key(database: Executor) -> bool: ...


@statement(
    """
    SELECT json_build_object('keys', json_agg(identity_keys.public_key
        ORDER BY identity_keys.signs_from DESC, identity_keys.kid))::text
    FROM identity_keys
    """,
    prepared=True,
)
async def public_keys(database: Executor) -> str:
    """Return the JWK set: the next key, the current one, and those whose tokens may still be valid."""


@attrs.frozen
class ShownKey:
    """A key as operators see it."""

    kid: str
    signs_from: datetime.datetime
    created_at: datetime.datetime


@statement("""
    SELECT identity_keys.kid, identity_keys.signs_from, identity_keys.created_at FROM identity_keys
    ORDER BY identity_keys.signs_from DESC, identity_keys.kid
""")
async def list_keys(database: Executor) -> list[ShownKey]: ...


@statement("""
    INSERT INTO identity_keys (kid, public_key, private_key, signs_from, created_at)
    VALUES (%(kid)s, %(public_key)s, %(private_key)s, %(signs_from)s, %(now)s)
""")
async def add_key(
    transaction: Transaction, kid: str, public_key: str, private_key: bytes, signs_from: datetime.datetime
) -> None: ...


@statement("DELETE FROM identity_keys WHERE kid <> %(kid)s")
async def remove_others(transaction: Transaction, kid: str) -> None:
    """Remove all keys but this one; tokens signed by them become invalid."""


@statement("""
    DELETE FROM identity_keys WHERE EXISTS (
        SELECT FROM identity_keys newer
        WHERE newer.signs_from > identity_keys.signs_from AND newer.signs_from <= %(before)s)
""")
async def remove_replaced(transaction: Transaction, before: datetime.datetime) -> None:
    """Remove the keys that have signed nothing since that moment."""


#: Tokens name no groups of users who are members of more than this.
MAX_GROUPS = 200


@attrs.frozen
class UserRoles:
    """A user's role in a project (0 without one), and the groups of which the user is a direct member, at
    most one more than `MAX_GROUPS`."""

    role: int
    groups: list[str]


@statement(
    f"""
    SELECT project_role(projects, namespaces, users.id, %(now)s) AS role,
        ARRAY(
            SELECT joined.full_path FROM members JOIN namespaces joined ON joined.id = members.namespace_id
            WHERE members.user_id = users.id AND joined.kind = 'group' AND counts(members, %(now)s)
            ORDER BY joined.full_path LIMIT {MAX_GROUPS + 1}
        ) AS groups
    FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id, users
    WHERE projects.id = %(project_id)s AND users.id = %(user_id)s
    """
)
async def find_roles(database: Executor, project_id: int, user_id: int | None) -> UserRoles | None:
    """Return the user's role and groups, or None if there is no such user."""
