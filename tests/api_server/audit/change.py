"""A request, and the audit events that it writes."""

import re
from collections.abc import AsyncIterator
from typing import Any

import attrs

from tests.api_server.audit.things import Things
from tests.support.forge import Client


@attrs.frozen
class Change:
    """A request, in whose path and body `{names}` stand for things; `by` is one too, who calls in root's place.

    `events` are the types of exactly those events that it writes, once each time.
    """

    request: str
    events: tuple[str, ...] = attrs.field(converter=lambda names: tuple(sorted(names.split())))
    body: dict[str, Any] = attrs.Factory(dict)
    case: str = ""
    by: str = ""

    def __str__(self) -> str:
        return f"{self.request}: {self.case}" if self.case else self.request

    async def made(self, things: Things) -> AsyncIterator[None]:
        """Yields once, when all is there and only the request itself has not been made."""
        client: Client = await things.get(self.by) if self.by else things.forge.root
        method, _, path = (await things.fill(self.request)).partition(" ")
        body = await things.fill(self.body)
        yield
        answer = await client.request(method, path, json=body)
        assert answer.status in (200, 201, 202, 204), answer


def shape(route: str) -> str:
    """A route or a request, without the names of its parameters."""
    return re.sub(r"{[^{}]*(?:{[^{}]*}[^{}]*)?}", "{}", route)
