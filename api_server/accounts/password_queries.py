# mypy: disable-error-code="empty-body"
"""Statements about links with which people set a new password."""

import datetime

import attrs

from api_server.state.audit_trail import Entity
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@attrs.frozen
class Account:
    """Somebody who can sign in with a password."""

    id: int
    username: str
    name: str
    email: str

    @property
    def entity(self) -> Entity:
        """What audit events of it belong to."""
        return Entity(type="User", id=self.id, path=self.username)


_ACCOUNT = "users.id, users.username, users.name, users.email"
_ACCOUNTS = f"SELECT {_ACCOUNT} FROM users WHERE users.state = 'active' AND NOT users.bot"


@statement(f"{_ACCOUNTS} AND lower(users.email) = lower(%(email)s)")
async def account_of_address(database: Executor, email: str) -> Account | None: ...


@statement(f"{_ACCOUNTS} AND users.id = %(user_id)s FOR SHARE OF users")
async def lock_account(transaction: Transaction, user_id: int) -> Account | None:
    """The account, which stays as it is (its address too) until the transaction ends."""


@statement("""
    INSERT INTO password_resets (user_id, digest, expires_at, created_at)
    VALUES (%(user_id)s, %(digest)s, %(expires_at)s, %(now)s)
    ON CONFLICT (user_id) DO UPDATE SET
        digest = excluded.digest, expires_at = excluded.expires_at, created_at = excluded.created_at
""")
async def keep(transaction: Transaction, user_id: int, digest: bytes, expires_at: datetime.datetime) -> None:
    """The user's link from now on; the one before is worth nothing."""


@statement(f"""
    SELECT {_ACCOUNT} FROM password_resets resets JOIN users ON users.id = resets.user_id
    WHERE resets.digest = %(digest)s AND resets.expires_at > %(now)s
    """)
async def find(database: Executor, digest: bytes) -> Account | None:
    """Whose link that is, as long as it is good for something."""


#: The row goes with the new password, by a trigger.
@statement(f"""
    UPDATE users SET password_hash = %(password_hash)s, updated_at = %(now)s
    FROM password_resets resets
    WHERE resets.user_id = users.id AND resets.digest = %(digest)s AND resets.expires_at > %(now)s
    RETURNING {_ACCOUNT}
    """)
async def set_password(transaction: Transaction, digest: bytes, password_hash: str) -> Account | None:
    """Uses the link, once; None where it is good for nothing."""


@statement(
    f"""
    UPDATE users SET password_hash = %(password_hash)s, updated_at = %(now)s WHERE id = %(user_id)s
    RETURNING {_ACCOUNT}
    """
)
async def change_password(transaction: Transaction, user_id: int, password_hash: str) -> Account:
    """Ends what rests on the one before: sessions and links, by triggers. Raises NotFound."""


@statement("""
    DELETE FROM password_resets WHERE expires_at <= %(now)s
""")
async def delete_expired(transaction: Transaction) -> None: ...
