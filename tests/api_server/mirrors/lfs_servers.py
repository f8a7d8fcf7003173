"""Targets with an LFS server beside their repository, and a mirrored project with LFS objects."""

import hashlib
from collections.abc import Callable
from typing import Any

import attrs
import orjson
from aiohttp import web

from tests.api_server.code.lfs.client import MEDIA_TYPE, LfsClient, pointer_to
from tests.api_server.mirrors.service import Mirrored, with_credentials
from tests.api_server.mirrors.targets import BASIC, Http
from tests.support.forge import Forge

Change = Callable[[dict[str, Any]], object]
Response = Callable[[], web.Response]
ONE, TWO, THREE = b"one", b"two" * 1000, b"three"


def unchanged(_answer: dict[str, Any]) -> None:
    return None


@attrs.define
class LfsServer:
    """An LFS server in memory, behind the target's credentials, with switches that make it misbehave.

    `change` may rewrite a batch answer; `statuses` are the answers to requests whose path begins with a key;
    `breaks_at` are objects at which the connection ends.
    """

    objects: dict[str, bytes] = attrs.field(factory=dict)
    requests: list[str] = attrs.field(factory=list)
    verified: set[str] = attrs.field(factory=set)
    asked: list[list[str]] = attrs.field(factory=list)
    change: Change = unchanged
    statuses: dict[str, Response] = attrs.field(factory=dict)
    needs_token: bool = False
    breaks_at: set[str] = attrs.field(factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse | None:
        """Return the answer to a request of the LFS API, or None for others."""
        _, found, path = request.path.partition("/target.git/info/lfs")
        if not found:
            return None
        self.requests.append(f"{request.method} {path}")
        for beginning, response in self.statuses.items():
            if path.startswith(beginning):
                return response()
        if path == "/objects/batch":
            return self._batch(request, await request.json())
        if not self._is_allowed(request):
            return web.Response(status=401)
        if path == "/verify":
            told = await request.json()
            self.verified.add(told["oid"])
            return web.Response(status=200 if told["oid"] in self.objects else 404)
        if path.rpartition("/")[2] in self.breaks_at and request.transport is not None:
            request.transport.abort()
            return web.Response()
        content = await request.read()
        oid = path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        assert "Transfer-Encoding" not in request.headers
        self.objects[oid] = content
        return web.Response()

    def _is_allowed(self, request: web.Request) -> bool:
        wanted = "RemoteAuth once" if self.needs_token else f"Basic {BASIC}"
        return request.headers.get("Authorization") == wanted

    def _batch(self, request: web.Request, asked: dict[str, Any]) -> web.Response:
        if request.headers.get("Authorization") != f"Basic {BASIC}":
            return web.Response(status=401)
        assert request.headers["Accept"] == request.headers["Content-Type"] == MEDIA_TYPE
        assert (asked["operation"], asked["transfers"]) == ("upload", ["basic"])
        self.asked.append([each["oid"] for each in asked["objects"]])
        base = f"http://{request.host}/target.git/info/lfs"
        header = {"Authorization": "RemoteAuth once"} if self.needs_token else {}
        answer: dict[str, Any] = {"transfer": "basic", "objects": []}
        for each in asked["objects"]:
            actions = {
                "upload": {"href": f"{base}/objects/{each['oid']}", "header": header},
                "verify": {"href": f"{base}/verify", "header": header},
            }
            missing = {"actions": actions} if each["oid"] not in self.objects else {}
            answer["objects"].append(each | missing)
        self.change(answer)
        return web.Response(body=orjson.dumps(answer), content_type=MEDIA_TYPE)


@attrs.frozen
class LargeFiles:
    """A mirrored project whose commits consist of pointers."""

    mirrored: Mirrored
    client: LfsClient

    @classmethod
    async def create(cls, forge: Forge, url: str, **values: Any) -> "LargeFiles":
        mirrored = await Mirrored.create(forge, url, **values)
        return cls(mirrored, LfsClient.of(forge, mirrored.project, mirrored.owner))

    def commit(self, content: bytes, *parents: str) -> str:
        """Create a commit whose only file points to `content`."""
        source = self.mirrored.source
        blob = source.git("hash-object", "-w", "--stdin", stdin=pointer_to(content))
        tree = source.git("mktree", stdin=f"100644 blob {blob}\tlarge.bin\n")
        flags = [flag for parent in parents for flag in ("-p", parent)]
        return source.git("commit-tree", tree, "-m", "large", *flags)

    async def push(self, sha: str, run: int, ref: str = "refs/heads/main") -> dict[str, Any]:
        """Move a branch; return the mirror once the run of that number has ended."""
        await self.mirrored.push({ref: sha})
        await self.mirrored.hurry()
        return await self.ended(run)

    async def sync(self, run: int) -> dict[str, Any]:
        await self.mirrored.sync()
        await self.mirrored.hurry()
        return await self.ended(run)

    async def ended(self, run: int) -> dict[str, Any]:
        return await self.mirrored.reaches("finished", "failed", "to_retry", run=run)


async def diverged(working: Forge, http_target: Http, *contents: bytes) -> LargeFiles:
    """Create a mirror whose next run meets a diverged ref, and a new one with objects."""
    files = await LargeFiles.create(working, with_credentials(http_target[1]), keep_divergent_refs=True)
    await files.push(files.commit(b"theirs"), run=1)
    for content in contents:
        await files.client.bring(content)
    tip: tuple[str, ...] = ()
    for content in contents:
        tip = (files.commit(content, *tip),)
    files.mirrored.source.set_refs({"refs/heads/new": tip[0]})
    return files


def answers(status: int, message: str | None = None) -> Response:
    if message is None:
        return lambda: web.Response(status=status)
    return lambda: web.json_response({"message": message}, status=status)
