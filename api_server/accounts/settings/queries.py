"""Statements about the instance's settings."""

from api_server.state.database import Executor, Row, Transaction

READ_SETTINGS = """
    SELECT settings.values, settings.static_objects_external_storage_auth_token AS sealed_token,
        iso8601(settings.created_at) AS created_at, iso8601(settings.updated_at) AS updated_at
    FROM application_settings settings
"""


async def read_settings(database: Executor) -> Row:
    """values (JSON text of what differs from the defaults), sealed_token, created_at, updated_at."""
    return await database.row(READ_SETTINGS)


LOCK_SETTINGS = """
    SELECT FROM application_settings FOR UPDATE
"""

WRITE_SETTINGS = """
    UPDATE application_settings SET values = %(values)s,
        static_objects_external_storage_auth_token = %(sealed_token)s, updated_at = now()
"""


async def lock_settings(transaction: Transaction) -> None:
    """Nobody else changes them until the transaction ends."""
    await transaction.row(LOCK_SETTINGS)


async def write_settings(transaction: Transaction, values: str, sealed_token: bytes | None) -> None:
    await transaction.row(WRITE_SETTINGS, values=values, sealed_token=sealed_token)
