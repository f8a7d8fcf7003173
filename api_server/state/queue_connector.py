"""procrastinate's statements, on connections of the kind that everything else has."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson
import psycopg2
import structlog
from procrastinate import exceptions
from procrastinate.connector import BaseAsyncConnector, BaseConnector, Notify
from procrastinate.manager import QUEUEING_LOCK_CONSTRAINT
from psycopg2.extras import Json

from api_server.state import database, driver
from api_server.state.connections import Connections
from api_server.state.driver import Connection, Result
from api_server.state.errors import Conflict, ConnectionLost, Unavailable
from api_server.state.listening import listening_connection
from common.concurrency import Gate
from common.logs import ThrottledLog

often = ThrottledLog(structlog.get_logger(__name__))

SIZE = 4
STATEMENT_SECONDS = 15.0
CONNECT_SECONDS = 5.0


class QueueConnector(BaseAsyncConnector):
    """Raises procrastinate's errors: `UniqueViolation`, and `ConnectorException` where there is no database."""

    def __init__(self, url: str, search_path: str = "", listening_url: str = "") -> None:
        """`search_path` is PostgreSQL's, where it is to be another one; `listening_url` where `url` is a pooler's."""
        self._url = url
        self._listening_url = listening_url or url
        self._session: dict[str, object] = {
            "timezone": "UTC",
            "statement_timeout": int(STATEMENT_SECONDS * 1000),
        }
        if search_path:
            self._session["search_path"] = search_path
        #: All statements pass it.
        self.gate = Gate()
        self._connections = Connections(self._connect, SIZE, STATEMENT_SECONDS)
        for name in ("procrastinate.worker", "procrastinate.worker.worker", "procrastinate.utils"):
            logging.getLogger(name).addFilter(_tell_shortly)

    def get_sync_connector(self) -> BaseConnector:
        return self

    async def open_async(self, pool: Any = None) -> None:
        """Connections are made when they are needed."""

    async def close_async(self) -> None:
        self._connections.close()

    async def execute_query_async(self, query: str, **arguments: Any) -> None:
        await self._run(query, arguments)

    async def execute_query_one_async(self, query: str, **arguments: Any) -> dict[str, Any]:
        rows = await self.execute_query_all_async(query, **arguments)
        return rows[0] if rows else {}

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[dict[str, Any]]:
        result = await self._run(query, arguments)
        return [
            {name: _read(name, value) for name, value in zip(result.columns, row, strict=True)}
            for row in result.rows
        ]

    async def listen_notify(self, on_notification: Notify, channels: Iterable[str]) -> None:
        with _as_procrastinates_errors():
            async with listening_connection(self._listening_url, *channels) as connection:
                while True:
                    heard = await connection.notification()
                    await on_notification(channel=heard.channel, payload=heard.payload)

    async def _run(self, query: str, arguments: dict[str, Any]) -> Result:
        written = {name: _written(value) for name, value in arguments.items()}
        async with self.gate.passing():
            return await self._run_now(query, written)

    async def _run_now(self, query: str, written: dict[str, Any]) -> Result:
        with _as_procrastinates_errors():
            try:
                async with self._connection() as connection:
                    return await connection.run(query, written)
            except ConnectionLost:
                self._connections.close_free()
            async with self._connection() as connection:
                return await connection.run(query, written)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._connections.acquire()
        try:
            yield connection
        finally:
            self._connections.release(connection)

    async def _connect(self) -> Connection:
        return await driver.open_connection(
            self._url,
            self._session,
            connect_timeout=CONNECT_SECONDS,
            patience=STATEMENT_SECONDS + database.PATIENCE,
            prepares=False,
        )


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return Json(value, dumps=lambda values: orjson.dumps(values).decode())
    if isinstance(value, list):
        return [_written(each) for each in value]
    return tuple(map(_written, value)) if isinstance(value, tuple) else value


def _read(column: str, value: Any) -> Any:
    return orjson.loads(value) if column == "args" and isinstance(value, str) else value


@contextlib.contextmanager
def without_procrastinates_errors() -> Iterator[None]:
    """What ends a worker for want of a database is `Unavailable` again."""
    try:
        yield
    except exceptions.ConnectorException as problem:
        if isinstance(problem.__cause__, Unavailable):
            raise problem.__cause__ from None
        raise


@contextlib.contextmanager
def _as_procrastinates_errors() -> Iterator[None]:
    try:
        yield
    except Conflict as problem:
        lock = "" if problem.constraint == QUEUEING_LOCK_CONSTRAINT else None
        raise exceptions.UniqueViolation(constraint_name=problem.constraint, queueing_lock=lock) from problem
    except Unavailable as problem:
        raise exceptions.ConnectorException(f"{problem}: {problem.cause}") from problem
    except psycopg2.Error as problem:
        raise exceptions.ConnectorException(str(problem)) from problem


def _tell_shortly(record: logging.LogRecord) -> bool:
    """procrastinate logs a traceback for everything that a database which is away keeps it from doing."""
    problem = record.exc_info[1] if record.exc_info else None
    if isinstance(problem, exceptions.ConnectorException):
        problem = problem.__cause__
    if not isinstance(problem, Unavailable):
        return True
    often.warning("queued work waits", about=str(problem), cause=f"{problem}: {problem.cause}")
    return False
