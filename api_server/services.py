"""The services that the parts of the server work with: one object, created by `app.py`, so that the domain needs no
HTTP."""

import copy
import datetime
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import attrs

from api_server.settings import Settings
from api_server.state.database import Clock, Database
from api_server.state.failures import Failures
from api_server.state.objects import Objects
from api_server.state.preconditions import Precondition, Preconditions
from api_server.state.queue import Queue
from api_server.state.secrets import Vault
from common.lifecycle import BackgroundTasks, Shutdown

T = TypeVar("T")
Run = Callable[["Services"], AsyncIterator[None]]


class Key(Generic[T]):
    """The name of a feature's data in `Services`: `LIMITS = Key[Limits]("limits")`, `services[LIMITS]`. With a
    `default`, the data is created at the first access."""

    def __init__(self, name: str, default: Callable[[], T] | None = None) -> None:
        self.name = name
        self.default = default

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


@attrs.define(eq=False, kw_only=True)
class Services:
    """The parts of one server: those that all features need by name, those of one feature by key."""

    settings: Settings
    clock: Clock
    vault: Vault
    objects: Objects
    queue: Queue
    background: BackgroundTasks
    shutdown: Shutdown
    #: Contexts of the parts that run while the server does, in the order in which they start.
    runs: list[Run] = attrs.field(factory=list)
    #: The data on which a writing request was judged. None for other requests, and outside of requests.
    preconditions: Preconditions | None = None
    _parts: dict[Key[Any], Any] = attrs.field(factory=dict)
    _database: Database | None = None
    _failures: Failures | None = None
    _shared: "Services | None" = None

    @property
    def database(self) -> Database:
        """The database. Its transactions begin by checking the preconditions of the request that the services are for.
        Raise `RuntimeError` before `connected`."""
        if self._database is None:
            raise RuntimeError("The database is not connected yet.")
        return self._database

    @property
    def failures(self) -> Failures:
        """The record of present failures. Raise `RuntimeError` before `connected`."""
        if self._failures is None:
            raise RuntimeError("The database is not connected yet.")
        return self._failures

    @property
    def now(self) -> datetime.datetime:
        return self.clock()

    @property
    def shared(self) -> "Services":
        """The same services without a request: transactions check no preconditions, and replicas are not used."""
        return self._shared or self

    def connected(self, database: Database) -> None:
        """Set the database, and with it the record of failures."""
        self._database = database
        self._failures = self.queue.failures = Failures(database)

    def while_running(self, run: "Run") -> None:
        """Run `run` up to its `yield` when the server starts, and the rest when the server ends."""
        self.runs.append(run)

    def for_request(self, preconditions: Preconditions | None, *, reads: bool) -> "Services":
        """Return the same services for a request. Its transactions first check the preconditions. If the request only
        reads, replicas may answer queries that are only shown."""
        database = self.database if preconditions is None else self.database.opening_with(preconditions.hold)
        if reads:
            database = database.showing()
        if database is self.database:
            return self
        copied = copy.copy(self)
        copied._shared, copied.preconditions, copied._database = self, preconditions, database
        return copied

    def require_unchanged(self, precondition: Precondition) -> None:
        """Make the request's first transaction check `precondition`. Requests that only read are judged only once."""
        if self.preconditions is not None:
            self.preconditions.add(precondition)

    def revoke(self, name: str) -> None:
        """Declare that the request takes away rights of the owner called `name` as soon as its first transaction
        begins."""
        if self.preconditions is not None:
            self.preconditions.revoke(name)

    def __getitem__(self, key: Key[T]) -> T:
        if key not in self._parts and key.default is not None:
            self._parts[key] = key.default()
        part: T = self._parts[key]
        return part

    def __setitem__(self, key: Key[T], part: T) -> None:
        self._parts[key] = part

    def get(self, key: Key[T]) -> T | None:
        """Return the part, or None if the server has none."""
        return self._parts.get(key)
