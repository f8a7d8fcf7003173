"""Failures to order: which requests fail, how, and how many of them still do."""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
from aiohttp import web

from api_server.testing.path_patterns import fits
from api_server.testing.steering import refused

#: A test orders a handful; those that are used up go first.
MOST_FAILURES = 1_000


@attrs.define(kw_only=True, eq=False)
class Failure:
    """What becomes of the next `times` requests that are meant. Without a status it is the real answer that is late,
    is cut off or has further headers."""

    id: int
    #: Any, if None.
    method: str | None
    path: str
    #: Whose token the request has; anybody's, if None.
    user: str | None
    status: int | None
    headers: Mapping[str, str]
    #: JSON, or a text as it is.
    body: Any
    #: Seconds, which the service's clock does not shorten.
    delay: float
    #: True resets the connection before there is an answer; a number ends it after so many bytes of the answer's body.
    cut: bool | int
    times: int
    left: int

    def shown(self) -> dict[str, Any]:
        return attrs.asdict(self)


class Failures:
    """The orders, which are tried from the oldest on."""

    def __init__(self) -> None:
        self._ordered: dict[int, Failure] = {}
        self._ids = itertools.count(1)

    def order(self, values: Mapping[str, Any]) -> Failure:
        """Adds one. Raises 400 where there are too many that wait for their requests."""
        if len(self._ordered) >= MOST_FAILURES:
            self._ordered = {one.id: one for one in self.all() if one.left}
        if len(self._ordered) >= MOST_FAILURES:
            raise refused(
                f"There are {MOST_FAILURES} failures already: delete those that no request has met."
            )
        failure = Failure(id=next(self._ids), left=values["times"], **values)
        self._ordered[failure.id] = failure
        return failure

    async def take(
        self, method: str, path: str, whose: Callable[[], Awaitable[str | None]]
    ) -> Failure | None:
        """The failure that such a request meets, which is one less from then on. `whose` tells the name of the user,
        and is asked only if it matters."""
        for failure in self.all():
            if not failure.left or failure.method not in (None, method) or not fits(failure.path, path):
                continue
            if failure.user is None or (failure.user == await whose() and failure.left):
                failure.left -= 1
                return failure
        return None

    def all(self) -> list[Failure]:
        """The oldest first, also those that are used up."""
        return list(self._ordered.values())

    def cancel(self, failure_id: int) -> None:
        """Raises 404 for one that there is not."""
        if self._ordered.pop(failure_id, None) is None:
            raise refused(f"There is no failure {failure_id}.", web.HTTPNotFound)

    def clear(self) -> None:
        self._ordered.clear()


FAILURES_TO_COME = web.AppKey("failures_to_come", Failures)
