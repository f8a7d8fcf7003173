"""The data on which a request was judged, and the check that it is unchanged when the change is written.

Judging a request reads data: the token, the project with the caller's role, the rules that protect a branch.
Each such read is recorded as a `Precondition`. The first transaction of a request that writes begins by
locking the names of these preconditions and reading all of them again. If something differs, nothing has been
written yet, and the request is judged again as if it had just arrived. Until the transaction ends, nobody can
take away the rights that it needs: routes that revoke rights declare whose (`revokes="user:{user_id}"`) and
lock that name exclusively.

So, in spite of caches and other processes, a right has no effect any more once its removal has been
confirmed. These locks are taken before all row locks and in one order, so they cannot deadlock with each
other, nor can the removal of a project or group deadlock with a write inside it.
"""

from collections.abc import Awaitable, Callable, Set
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.errors import NotFound
from api_server.state.statements import Statement


class ChangedMeanwhile(Exception):
    """The data on which a request was judged has changed; nothing has been done for the request."""


@attrs.frozen
class Precondition:
    """One read: the `value`, the function `read` that repeats it, and the names under which others may change
    it."""

    names: tuple[str, ...]
    value: Any
    read: Callable[[Executor], Awaitable[Any]]


@attrs.define
class Preconditions:
    """The preconditions of one request, as far as it has been judged."""

    _all: list[Precondition] = attrs.field(factory=list)
    _revoked: set[str] = attrs.field(factory=set)
    #: Whether a transaction of the request has checked the preconditions. Later transactions of it do not
    #: check again.
    _is_verified: bool = False

    def add(self, precondition: Precondition) -> None:
        self._all.append(precondition)

    def revoke(self, name: str) -> None:
        """Declare that the request takes away rights of the owner with this name."""
        self._revoked.add(name)

    async def hold(self, transaction: Transaction) -> None:
        """Check the preconditions and lock them until the transaction ends. Raise `ChangedMeanwhile`."""
        if self._is_verified or not self._all:
            return
        names = {name for precondition in self._all for name in precondition.names}
        await lock_names(transaction, shared=names - self._revoked, alone=self._revoked)
        for precondition in self._all:
            try:
                holds = await precondition.read(transaction) == precondition.value
            except NotFound:  # it has been removed
                holds = False
            if not holds:
                raise ChangedMeanwhile
        self._is_verified = True


async def share(transaction: Transaction, names: Set[str]) -> None:
    """Prevent others from revoking rights under these names until the transaction ends. Raise
    `LockNotAvailable`."""
    await lock_names(transaction, shared=names, alone=frozenset())


async def revoke_alone(transaction: Transaction, name: str) -> None:
    """Lock `name` exclusively to revoke its rights for an operator, without preconditions. Raise
    `LockNotAvailable`."""
    await lock_names(transaction, shared=frozenset(), alone={name})


#: In the order given. One pass takes shared and exclusive locks: with two passes the order would be lost.
LOCK_NAMES = Statement("""
    SELECT CASE WHEN wanted.alone
        THEN pg_advisory_xact_lock(hashtextextended(wanted.name, 5))
        ELSE pg_advisory_xact_lock_shared(hashtextextended(wanted.name, 5)) END
    FROM unnest(%(names)s::text[], %(alone)s::boolean[]) wanted (name, alone)
""")


async def lock_names(transaction: Transaction, *, shared: Set[str], alone: Set[str]) -> None:
    """Lock these names until the transaction ends, shared or exclusively. Raise `LockNotAvailable`."""
    names = sorted(shared | alone)
    await transaction.run(LOCK_NAMES, names=names, alone=[name in alone for name in names])
