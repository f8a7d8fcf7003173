# mypy: disable-error-code="empty-body"
"""Statements about links with which people set a new password."""

import datetime

import attrs

from api_server.state.audit_trail import Entity
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@attrs.frozen
class Account:
    """The account of a person who can sign in with a password."""

    id: int
    username: str
    name: str
    email: str

    @property
    def entity(self) -> Entity:
        """The entity to which audit events of the account belong."""
        return Entity(type="User", id=self.id, path=self.username)


_ACCOUNT = "users.id, users.username, users.name, users.email"
_ACCOUNTS = f"SELECT {_ACCOUNT} FROM users WHERE users.state = 'active' AND NOT users.bot"


@statement(f"{_ACCOUNTS} AND lower(users.email) = lower(%(email)s)")
async def account_of_address(database: Executor, email: str) -> Account | None: ...


@statement(f"{_ACCOUNTS} AND users.id = %(user_id)s FOR SHARE OF users")
async def lock_account(transaction: Transaction, user_id: int) -> Account | None:
    """Return the account, or None, and prevent changes of it (including its address) until the transaction
    ends."""


@statement("""
    INSERT INTO password_resets (user_id, digest, expires_at, created_at)
    VALUES (%(user_id)s, %(digest)s, %(expires_at)s, %(now)s)
    ON CONFLICT (user_id) DO UPDATE SET
        digest = excluded.digest, expires_at = excluded.expires_at, created_at = excluded.created_at
""")
async def keep(transaction: Transaction, user_id: int, digest: bytes, expires_at: datetime.datetime) -> None:
    """Store the user's new link; the previous one becomes invalid."""


@statement(f"""
    SELECT {_ACCOUNT} FROM password_resets resets JOIN users ON users.id = resets.user_id
    WHERE resets.digest = %(digest)s AND resets.expires_at > %(now)s
    """)
async def find(database: Executor, digest: bytes) -> Account | None:
    """Return the account of a valid link, or None."""


#: A trigger deletes the row when the password is changed.
@statement(f"""
    UPDATE users SET password_hash = %(password_hash)s, updated_at = %(now)s
    FROM password_resets resets
    WHERE resets.user_id = users.id AND resets.digest = %(digest)s AND resets.expires_at > %(now)s
    RETURNING {_ACCOUNT}
    """)
async def set_password(transaction: Transaction, digest: bytes, password_hash: str) -> Account | None:
    """Set the password by a link, which can be used once. Return None if the link is not valid."""


@statement(
    f"""
    UPDATE users SET password_hash = %(password_hash)s, updated_at = %(now)s WHERE id = %(user_id)s
    RETURNING {_ACCOUNT}
    """
)
async def change_password(transaction: Transaction, user_id: int, password_hash: str) -> Account:
    """Change the password; triggers end sessions and delete links. Raise NotFound."""


@statement("""
    DELETE FROM password_resets WHERE expires_at <= %(now)s
""")
async def delete_expired(transaction: Transaction) -> None: ...
