"""What a change was decided on, and that it is still so when the change is written.

Whoever judges a request reads something for it: the token, the project with the caller's role, what protects a branch.
Each such reading is written down as a `Precondition`. The first transaction of a request that writes begins by locking
the names of what it was judged on, and by reading all of it once more. Where something differs, nothing has happened
yet, and the request is judged again, as if it had come then. Until the transaction ends, nobody takes away what it
needs: routes that take rights away declare whose (`revokes="user:{user_id}"`), and hold that name alone.

So whatever was remembered for a moment, and whatever another process does, a right that is gone when somebody has been
told so gives nothing any more. These locks come before all locks of rows, and in one order: they cannot deadlock among
themselves, nor can what removes a project or a group with what is written in it.
"""

from collections.abc import Awaitable, Callable, Set
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.errors import NotFound
from api_server.state.statements import Statement


class ChangedMeanwhile(Exception):
    """What a request was judged on is not so any more; nothing has been done for it."""


@attrs.frozen
class Precondition:
    """One reading: the `value`, how to `read` it again, and the names under which others may change it."""

    names: tuple[str, ...]
    value: Any
    read: Callable[[Executor], Awaitable[Any]]


@attrs.define
class Preconditions:
    """Those of one request, as far as it has been judged."""

    _all: list[Precondition] = attrs.field(factory=list)
    _revoked: set[str] = attrs.field(factory=set)
    #: One of the request's transactions has begun on them. What it does after that follows from it.
    _held: bool = False

    def add(self, precondition: Precondition) -> None:
        self._all.append(precondition)

    def revoke(self, name: str) -> None:
        """The request takes rights away: those of what is called `name`."""
        self._revoked.add(name)

    async def hold(self, transaction: Transaction) -> None:
        """Check them, and keep them as they are until the transaction ends. Raises `ChangedMeanwhile`."""
        if self._held or not self._all:
            return
        names = {name for precondition in self._all for name in precondition.names}
        await lock_names(transaction, shared=names - self._revoked, alone=self._revoked)
        for precondition in self._all:
            try:
                holds = await precondition.read(transaction) == precondition.value
            except NotFound:  # any more
                holds = False
            if not holds:
                raise ChangedMeanwhile
        self._held = True


async def share(transaction: Transaction, names: Set[str]) -> None:
    """Until the transaction ends, nobody takes away what is called by these names. Raises `LockNotAvailable`."""
    await lock_names(transaction, shared=names, alone=frozenset())


async def revoke_alone(transaction: Transaction, name: str) -> None:
    """The transaction takes away the rights of what is called `name`, judged on nothing: an operator wants it. Raises
    `LockNotAvailable`."""
    await lock_names(transaction, shared=frozenset(), alone={name})


#: In the order given. Sharing and holding alone have to be told apart within one pass, or the order would be lost.
LOCK_NAMES = Statement("""
    SELECT CASE WHEN wanted.alone
        THEN pg_advisory_xact_lock(hashtextextended(wanted.name, 5))
        ELSE pg_advisory_xact_lock_shared(hashtextextended(wanted.name, 5)) END
    FROM unnest(%(names)s::text[], %(alone)s::boolean[]) wanted (name, alone)
""")


async def lock_names(transaction: Transaction, *, shared: Set[str], alone: Set[str]) -> None:
    """Hold these names until the transaction ends, with others or alone. Raises `LockNotAvailable`."""
    names = sorted(shared | alone)
    await transaction.run(LOCK_NAMES, names=names, alone=[name in alone for name in names])
