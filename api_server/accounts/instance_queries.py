# mypy: disable-error-code="empty-body"
"""Statements about the instance's settings."""

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@attrs.frozen
class StoredSettings:
    """The settings that differ from the defaults, as JSON text, and the encrypted token; times are in the
    format of answers."""

    values: str
    sealed_token: bytes | None
    created_at: str
    updated_at: str


@statement("""
    SELECT settings.values, settings.static_objects_external_storage_auth_token AS sealed_token,
        iso8601(settings.created_at) AS created_at, iso8601(settings.updated_at) AS updated_at
    FROM application_settings settings
    """)
async def read_settings(database: Executor) -> StoredSettings: ...


@statement("""
    SELECT FROM application_settings FOR UPDATE
""")
async def lock_settings(transaction: Transaction) -> None:
    """Prevent others from changing the settings until the transaction ends."""


@statement("""
    UPDATE application_settings SET values = %(values)s,
        static_objects_external_storage_auth_token = %(sealed_token)s, updated_at = %(now)s
""")
async def write_settings(transaction: Transaction, values: str, sealed_token: bytes | None) -> None: ...
