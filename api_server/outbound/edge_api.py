"""What an edge answers to whoever has its purge token: that it forgets, how it is, and what it has stored."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
import attrs
import orjson

from api_server.outbound.destinations import written_url

#: Bytes of an answer: a page of what is stored has a thousand URLs.
MOST_BYTES = 16 * 2**20


class EdgeRefuses(Exception):
    """The edge has answered, but not what it was asked for; `status` is that of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the edge answers {status}")
        self.status = status


@attrs.frozen
class EdgeApi:
    """The operators' routes of one edge. All methods raise `EdgeRefuses`, aiohttp.ClientError and TimeoutError; 401 is
    a wrong token, 404 an edge that has none."""

    url: str
    token: str = attrs.field(repr=False)
    session: aiohttp.ClientSession
    #: Seconds for one request.
    timeout: float

    async def purge(self, document: Mapping[str, Any]) -> int:
        """Has it forget `{"keys": [...], "urls": [...], "prefixes": [...]}`; how many responses that were."""
        answer = await self._ask("POST", "/-/purge", json=document)
        return int(answer.get("purged", 0))

    async def status(self) -> dict[str, Any]:
        """Version, start, requests, bytes, tiers, purges, and how its origin is: docs/edge.md has the fields."""
        return await self._ask("GET", "/-/status")

    async def stored(
        self, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> tuple[list[dict[str, Any]], str | None]:
        """What it has stored of URLs whose path begins with `prefix`, and where to go on after it, if more follows."""
        parameters = {"prefix": prefix, "limit": str(limit)} | ({"after": after} if after else {})
        answer = await self._ask("GET", f"/-/stored?{urlencode(parameters)}")
        return list(answer["stored"]), answer.get("next")

    async def set_back(self, ahead: float) -> None:
        """An edge for tests forgets everything, and its clock is `ahead` seconds of the machine's."""
        await self._ask("POST", "/-/testing/reset", json={"ahead": ahead})

    async def set_clock(self, ahead: float) -> None:
        """The clock of an edge for tests is `ahead` seconds of the machine's."""
        await self._ask("POST", "/-/testing/clock", json={"ahead": ahead})

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with self.session.request(
            method,
            written_url(f"{self.url.rstrip('/')}{path}"),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            allow_redirects=False,
            **options,
        ) as answer:
            if not 200 <= answer.status < 300:
                raise EdgeRefuses(answer.status)
            if answer.status == 204:
                return {}
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MOST_BYTES:
                    raise aiohttp.ClientPayloadError(f"more than {MOST_BYTES} bytes")
            found = orjson.loads(body)
            return found if isinstance(found, dict) else {}
