"""Small servers for measurements, each in a process of its own:

- `python -m scripts.bench.small_servers PORT origin` serves bodies of the sizes that their paths name, to edges and
  caches;
- `... PORT receiver` takes deliveries: `/fast` answers at once, `/hang` never;
- `... PORT bare FOLDER` answers `/NAME` with that file's bytes as JSON from memory: no log, no middleware.
"""

import asyncio
import collections
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop
from aiohttp import web

SIZES = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20, "50MB": 50_000_000}
#: Number of requests for each size.
REQUESTS = web.AppKey("requests", collections.Counter[str])


def origin() -> web.Application:
    """Return the origin of the edge's measurements; `/count/{size}` answers with the number of requests for a size."""
    app = web.Application()
    app[REQUESTS] = collections.Counter()
    app.router.add_get("/count/{size}", _count)
    app.router.add_get("/-/liveness", _liveness)
    app.router.add_get("/{path:.*}", _static_object)
    return app


async def _static_object(request: web.Request) -> web.Response:
    """Answer `/<group>/<project>/-/raw/main/<anything>/<size>`; projects named `secret` are private."""
    size = request.path.rsplit("/", 1)[1]
    request.app[REQUESTS][size] += 1
    private = "/secret/" in request.path
    headers = {
        "Cache-Control": "private, max-age=0" if private else "public, max-age=3600",
        "ETag": '"1"',
        "Content-Type": "application/octet-stream",
    }
    if request.headers.get("If-None-Match") == '"1"':
        return web.Response(status=304, headers=headers)
    return web.Response(body=_body(request.path, SIZES[size]), headers=headers)


def _body(path: str, size: int) -> bytes:
    """Return a different body for each path, because a cache may store equal bodies once."""
    repeated = hashlib.sha256(path.encode()).digest()
    return (repeated * (size // len(repeated) + 1))[:size]


async def _liveness(_: web.Request) -> web.Response:
    """Answer edges, which ask for this after a request has failed."""
    return web.Response(text="OK")


async def _count(request: web.Request) -> web.Response:
    return web.Response(text=str(request.app[REQUESTS][request.match_info["size"]]))


def receiver() -> web.Application:
    """Return a receiver of deliveries."""
    app = web.Application()
    app.router.add_post("/fast", _fast)
    app.router.add_post("/hang", _hang)
    return app


async def _fast(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=204)


async def _hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


def bare(folder: Path) -> web.Application:
    """Return an aiohttp handler that does nothing but answer."""
    bodies: dict[str, bytes] = {}

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in bodies:
            bodies[name] = (folder / name).read_bytes()
        return web.Response(body=bodies[name], content_type="application/json")

    app = web.Application()
    app.router.add_get("/{name}", answer)
    return app


if __name__ == "__main__":
    port, name, *arguments = sys.argv[1:]
    servers: dict[str, Callable[..., web.Application]] = {
        "origin": origin,
        "receiver": receiver,
        "bare": bare,
    }
    app = servers[name](*map(Path, arguments))
    loop = uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=int(port), access_log=None, print=None, loop=loop)
