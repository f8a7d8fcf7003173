"""A receiver of deliveries in a process of its own: `/fast` answers at once, `/hang` never."""

import asyncio
import sys

from aiohttp import web


def main() -> None:
    """Prints the port that it listens on."""
    app = web.Application()
    app.router.add_post("/fast", _fast)
    app.router.add_post("/hang", _hang)
    asyncio.run(_serve(app))


async def _serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def _fast(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=204)


async def _hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


if __name__ == "__main__":
    main()
