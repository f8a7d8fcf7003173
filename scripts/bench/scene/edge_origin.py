"""The origin of the edge's measurements: bodies of the sizes that their paths name, no two of them the same."""

import collections
import hashlib
import sys

import uvloop
from aiohttp import web

SIZES = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20, "50MB": 50_000_000}
#: How often each size has been asked for.
REQUESTS = web.AppKey("requests", collections.Counter[str])


async def static_object(request: web.Request) -> web.Response:
    """`/<group>/<project>/-/raw/main/<anything>/<size>`; projects named `secret` are private."""
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
    """Another one for each path: a cache may keep equal ones once."""
    repeated = hashlib.sha256(path.encode()).digest()
    return (repeated * (size // len(repeated) + 1))[:size]


async def liveness(_: web.Request) -> web.Response:
    """What edges ask when they have not been answered."""
    return web.Response(text="OK")


async def count(request: web.Request) -> web.Response:
    """How many objects of a size have been asked for."""
    return web.Response(text=str(request.app[REQUESTS][request.match_info["size"]]))


def main(port: int) -> None:
    """Serves until it is ended."""
    app = web.Application()
    app[REQUESTS] = collections.Counter()
    app.router.add_get("/count/{size}", count)
    app.router.add_get("/-/liveness", liveness)
    app.router.add_get("/{path:.*}", static_object)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]))
