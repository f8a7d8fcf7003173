"""What a request was judged on, and that it is still so when the request writes.

Whoever judges a request reads something for it: the token, the project with the caller's role, what protects a branch.
Each such reading is written down as a `Ground`. The first transaction of a request that writes begins by locking the
names of what it was judged on, and by reading all of it once more. Where something differs, nothing has happened yet,
and the request is judged again, as if it had come then. Until the transaction ends nobody takes away what it needs:
routes that take rights away declare whose (`ends="user:{user_id}"`), and hold that name alone.

So whatever was remembered for a moment, and whatever another process does, a right that is gone when somebody has been
told so gives nothing any more. These locks come before all locks of rows, and in one order: they cannot deadlock among
themselves, nor can what removes a project or a group with what is written in it.
"""

from collections.abc import Awaitable, Callable, Set
from typing import Any

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.state.database import Database, Executor, Transaction
from api_server.state.errors import LockNotAvailable, NotFound
from api_server.web import auth_queries

#: How often a request is judged before it is told (409) that others were always faster.
_ATTEMPTS = 4


class ChangedMeanwhile(Exception):
    """What a request was judged on is not so any more; nothing has been done for it."""


@attrs.frozen
class Ground:
    """One reading: what was `found`, how to `read` it again, and the names under which others may change it."""

    names: tuple[str, ...]
    found: Any
    read: Callable[[Executor], Awaitable[Any]]


@attrs.define
class Grounds:
    """Those of one request, as far as it has been judged."""

    _grounds: list[Ground] = attrs.field(factory=list)
    _ends: set[str] = attrs.field(factory=set)
    #: One of the request's transactions has begun on them. What it does after that follows from it.
    _held: bool = False

    def add(self, ground: Ground) -> None:
        self._grounds.append(ground)

    def end(self, name: str) -> None:
        """The request takes rights away: those of what is called `name`."""
        self._ends.add(name)

    async def hold(self, transaction: Transaction) -> None:
        """Makes sure of them for as long as the transaction takes. Raises `ChangedMeanwhile`."""
        if self._held or not self._grounds:
            return
        names = {name for ground in self._grounds for name in ground.names}
        await auth_queries.lock_names(transaction, shared=names - self._ends, alone=self._ends)
        for ground in self._grounds:
            try:
                holds = await ground.read(transaction) == ground.found
            except NotFound:  # any more
                holds = False
            if not holds:
                raise ChangedMeanwhile
        self._held = True


async def share(transaction: Transaction, names: Set[str]) -> None:
    """Until the transaction ends, nobody takes away what is called by these names. Raises `LockNotAvailable`."""
    await auth_queries.lock_names(transaction, shared=names, alone=frozenset())


async def end_alone(transaction: Transaction, name: str) -> None:
    """The transaction takes away the rights of what is called `name`, judged on nothing: an operator wants it. Raises
    `LockNotAvailable`."""
    await auth_queries.lock_names(transaction, shared=frozenset(), alone={name})


GROUNDS = web.RequestKey("grounds", Grounds)


def rely_on(request: web.Request, ground: Ground) -> None:
    """Has the request's first transaction make sure of `ground`; requests that only read are judged once."""
    if (grounds := request.get(GROUNDS)) is not None:
        grounds.add(ground)


def end(request: web.Request, name: str) -> None:
    """The request takes away the rights of what is called `name`, as soon as its first transaction begins."""
    if (grounds := request.get(GROUNDS)) is not None:
        grounds.end(name)


def held_by(request: web.Request, database: Database) -> Database:
    """The database, whose transactions begin with making sure of what the request has been judged on."""
    grounds = request.get(GROUNDS)
    return database if grounds is None else database.opening_with(grounds.hold)


def judging_again(answer: Handler, forget: Callable[[web.Request], None]) -> Handler:
    """`answer` to requests that write, judged again where what they were judged on has changed. `forget` makes lookups
    read anew. Raises `LockNotAvailable` where it always changes."""

    async def answered(request: web.Request) -> web.StreamResponse:
        for _ in range(_ATTEMPTS):
            request[GROUNDS] = Grounds()
            try:
                return await answer(request)
            except ChangedMeanwhile:
                forget(request)
        raise LockNotAvailable

    return answered
