"""A connection that hears what is said in the database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api_server.state import driver
from api_server.state.driver import Connection

#: Seconds for a connection, and for what is said on it to begin with.
PATIENCE = 5.0


@asynccontextmanager
async def listening_connection(url: str, *channels: str) -> AsyncIterator[Connection]:
    """A connection of its own on which `notification()` waits for what is said on `channels`. Raises `Unavailable`."""
    connection = await driver.open_connection(
        url, {}, connect_timeout=PATIENCE, patience=PATIENCE, prepares=False
    )
    try:
        await connection.command("; ".join(f"LISTEN {channel}" for channel in channels))
        yield connection
    finally:
        connection.close()
