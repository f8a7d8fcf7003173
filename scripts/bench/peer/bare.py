"""A bare aiohttp handler: `python -m scripts.bench.peer.bare PORT FOLDER` answers /NAME with that file's bytes, which
it has in memory, as JSON; no log, no middleware."""

import sys
from pathlib import Path

import uvloop
from aiohttp import web


def main(port: int, folder: Path) -> None:
    """Serves until it is ended."""
    bodies: dict[str, bytes] = {}

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in bodies:
            bodies[name] = (folder / name).read_bytes()
        return web.Response(body=bodies[name], content_type="application/json")

    app = web.Application()
    app.router.add_get("/{name}", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
