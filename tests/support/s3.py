"""The part of S3 that the API server needs, and the ways in which S3 fails."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Literal
from urllib.parse import unquote
from xml.sax.saxutils import escape

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

Failure = Literal[
    "AccessDenied", "InternalError", "SlowDown", "NoSuchBucket", "hangs", "gone", "no such host"
]
FAILURES: tuple[Failure, ...] = (
    "AccessDenied", "InternalError", "SlowDown", "NoSuchBucket", "hangs", "gone", "no such host",
)  # fmt: skip
_STATUS = {"AccessDenied": 403, "InternalError": 500, "SlowDown": 503, "NoSuchBucket": 404}
_DATE = "Fri, 01 Jan 2027 00:00:00 GMT"


@attrs.define
class Bucket:
    """Objects by key. All requests fail in the way of `failure`; answers with an object are cut after `cut_after`
    bytes."""

    failure: str | None = None
    cut_after: int | None = None
    modified: str = "2027-01-01T00:00:00.000Z"
    #: The time of objects outside of `projects`.
    new: str = "2027-01-01T00:00:00.000Z"
    objects: dict[str, bytes] = attrs.field(factory=dict)
    parts: dict[str, dict[int, bytes]] = attrs.field(factory=dict)
    requests: int = 0
    listings: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self.failure == "hangs":
            await asyncio.Event().wait()
        if self.failure is not None:
            return _error(_STATUS[self.failure], self.failure)
        key = unquote(request.path).removeprefix("/bucket").removeprefix("/")
        if request.method == "PUT":
            return await self._put(request, key)
        if request.method == "POST":
            return await self._post(request, key)
        if request.method == "DELETE":  # aborts an upload: objects are deleted by POST
            self.parts.pop(request.query.get("uploadId", ""), None)
            return web.Response(status=204)
        if "list-type" in request.query:
            self.listings += 1
            return self._list(request.query.get("prefix", ""))
        if key not in self.objects:
            return _error(404, "NoSuchKey")
        return await self._get(request, self.objects[key])

    async def _put(self, request: web.Request, key: str) -> web.Response:
        if "partNumber" in request.query:
            parts = self.parts[request.query["uploadId"]]
            parts[int(request.query["partNumber"])] = await request.read()
        else:
            self.objects[key] = await request.read()
        return web.Response(headers={"ETag": '"e"'})

    async def _post(self, request: web.Request, key: str) -> web.Response:
        if "uploads" in request.query:
            upload = str(self.requests)
            self.parts[upload] = {}
            name = "InitiateMultipartUploadResult"
            return _xml(f"<{name}><UploadId>{upload}</UploadId></{name}>")
        if "delete" in request.query:
            found = re.findall("<Key>(.*?)</Key>", await request.text())
            for one in found:
                self.objects.pop(one, None)
            deleted = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in found)
            return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
        parts = self.parts.pop(request.query["uploadId"])
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        return _xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")

    def _list(self, prefix: str) -> web.Response:
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
            f"<LastModified>{self.modified if '/projects/' in key else self.new}</LastModified></Contents>"
            for key, content in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        return _xml(f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")

    async def _get(self, request: web.Request, content: bytes) -> web.StreamResponse:
        wanted = request.http_range
        part = content[wanted]
        headers = {"ETag": '"e"', "Last-Modified": _DATE, "Content-Length": str(len(part))}
        if wanted.start is not None:
            last = wanted.start + len(part) - 1
            headers["Content-Range"] = f"bytes {wanted.start}-{last}/{len(content)}"
        response = web.StreamResponse(status=200 if wanted.start is None else 206, headers=headers)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        if self.cut_after is not None and self.cut_after < len(part):
            await response.write(part[: self.cut_after])
            raise ConnectionResetError
        await response.write(part)
        await response.write_eof()
        return response


@contextlib.asynccontextmanager
async def serving_bucket(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Bucket, TestServer]]:
    """Run a bucket that is `s3://bucket` in this process, for stores that are opened from now on."""
    bucket, app = Bucket(), web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", bucket.handle)
    async with TestServer(app) as server:
        at(monkeypatch, str(server.make_url("")).rstrip("/"))
        yield bucket, server


def at(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let stores that are opened from now on use S3 at this address."""
    for name in ("AWS_ALLOW_HTTP", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "ACCESS_KEY_ID": "made-up", "SECRET_ACCESS_KEY": "made-up", "REGION": "example-1", "ENDPOINT_URL": endpoint,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)


def _error(status: int, code: str) -> web.Response:
    return web.Response(
        status=status, content_type="application/xml", text=f"<Error><Code>{code}</Code></Error>"
    )


def _xml(text: str) -> web.Response:
    return web.Response(content_type="application/xml", text=text)
