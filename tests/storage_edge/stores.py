"""The S3 bucket of an edge, for tests."""

import asyncio

import attrs
import pytest
from aiohttp import web

LAST_MODIFIED = "Fri, 01 Jan 2027 00:00:00 GMT"
ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><AWSAccessKeyId>made-up</AWSAccessKeyId></Error>'


@attrs.define
class Bucket:
    """The part of S3 that obstore needs for single objects, with faults."""

    fault: str | None = None
    objects: dict[str, bytes] = attrs.field(factory=dict)
    parts: dict[str, bytes] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        if self.fault is not None:
            return await self._fail(request)
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert "Authorization" in request.headers
        key = request.path
        match request.method:
            case "PUT":
                kept = self.parts if "partNumber" in request.query else self.objects
                kept[key + request.query.get("partNumber", "")] = await request.read()
                return web.Response(headers={"ETag": '"e"'})
            case "POST" if "uploads" in request.query:
                return web.Response(
                    text="<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
                )
            case "POST":
                self.objects[key] = b"".join(self.parts[k] for k in sorted(self.parts) if k.startswith(key))
                return web.Response(
                    text="<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
                )
        if key not in self.objects:
            return web.Response(status=404)
        headers = {"ETag": '"e"', "Last-Modified": LAST_MODIFIED}
        return web.Response(body=self.objects[key], headers=headers)

    async def _fail(self, request: web.Request) -> web.StreamResponse:
        match self.fault:
            case "hangs":
                await asyncio.Event().wait()
            case "dribbles" if request.method == "GET" and "/bodies/" in request.path:
                response = web.StreamResponse(headers={"ETag": '"e"', "Last-Modified": LAST_MODIFIED})
                response.content_length = len(self.objects[request.path])
                await response.prepare(request)
                await response.write(self.objects[request.path][:300_000])
                await asyncio.Event().wait()
            case "no bucket":
                return web.Response(status=404, text=ERROR.format("NoSuchBucket"))
            case "forbidden":
                return web.Response(status=403, text=ERROR.format("AccessDenied"))
            case "wrong key":
                return web.Response(status=403, text=ERROR.format("InvalidAccessKeyId"))
            case "no such page":
                return web.Response(status=404, text="<html>Not here.</html>")
            case "a web page":
                headers = {"ETag": '"e"', "Last-Modified": LAST_MODIFIED}
                return web.Response(text="<html>Welcome!</html>", headers=headers)
        return await self._answer(request)


def aws_environment(patch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Return the variables with which an edge finds buckets there."""
    for name, value in {
        "ACCESS_KEY_ID": "made-up", "SECRET_ACCESS_KEY": "made-up", "REGION": "example-1", "ENDPOINT": endpoint,
    }.items():  # fmt: skip
        patch.setenv(f"AWS_{name}", value)
