"""What the artifacts of one project may take together: those that are kept, and those that arrive just now."""

from collections import Counter
from typing import Self

import attrs
from aiohttp import web

from api_server.ci.jobs.artifacts import queries
from api_server.ci.runners.multipart import too_large
from api_server.state.database import Transaction
from api_server.web import context
from api_server.web.errors import ApiError

ARRIVING = web.AppKey("arriving_artifacts", Counter[int])


@attrs.define
class Room:
    """How far one upload may grow; for the length of its `with` block it counts for all others of this process. What
    other processes take in at the same time shows when it is `settled`."""

    project_id: int
    limit: int
    kept: int
    _arriving: Counter[int]
    _mine: int = 0

    @property
    def left(self) -> int | None:
        """Bytes; None without a limit."""
        return max(0, self.limit - self.kept - self._arriving[self.project_id]) if self.limit else None

    def grow(self, size: int) -> None:
        """This upload has so many bytes, or says so. Raises 413 where they have no room."""
        more = max(0, size - self._mine)
        if self.left is not None and more > self.left:
            raise self._refusal()
        self._mine += more
        self._arriving[self.project_id] += more

    async def settled(self, transaction: Transaction) -> None:
        """Once the artifact has been added: other uploads wait for the end of the transaction. Raises 413 where it is
        too much after all."""
        if self.limit and await queries.kept_bytes_for_certain(transaction, self.project_id) > self.limit:
            raise self._refusal()

    def _refusal(self) -> ApiError:
        return too_large(f"The artifacts of a project may take {self.limit} bytes together")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._arriving -= Counter({self.project_id: self._mine})


async def room_of(request: web.Request, project_id: int) -> Room:
    """What a project has left."""
    limit = context.settings(request).project_artifacts_limit
    kept = await queries.kept_bytes(context.database(request), project_id) if limit else 0
    return Room(project_id, limit, kept, request.config_dict[ARRIVING])
