"""A project at an origin, as this service or a real GitLab answers for it."""

import asyncio

import attrs
from aiohttp import web

from tests.storage_edge.conftest import Origin


@attrs.define
class Project:
    """A project at the origin: who may read it and what it holds."""

    origin: Origin
    readers: set[str] = attrs.field(factory=set)
    public: bool = False
    body: bytes = b"the plan"
    version: int = 1
    gitlab: bool = False
    sent: int = 0

    def __attrs_post_init__(self) -> None:
        self.origin.handler = self.handle

    async def handle(self, request: web.Request) -> web.Response:
        prefix = "X-Gitlab" if self.gitlab else "X-Service"
        token = request.headers.get(f"{prefix}-Static-Object-Token")
        if not self.public and token not in self.readers:
            if self.gitlab:
                sign_in = {"Location": "/users/sign_in", "Date": self.origin.date()}
                return web.Response(status=302, headers=sign_in)
            return web.Response(status=404, headers={"Date": self.origin.date()})
        tag = f'"v{self.version}"'
        visibility = "public" if self.public else "private"
        headers = {
            "ETag": tag,
            "Cache-Control": f"max-age=60, {visibility}, must-revalidate, stale-while-revalidate=60, "
            "stale-if-error=300, s-maxage=60",
            "Date": self.origin.date(),
        }
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        self.sent += 1
        await asyncio.sleep(0.02)
        return web.Response(body=self.body, headers=headers)
