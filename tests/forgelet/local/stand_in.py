"""A process that behaves towards `up` like the API server or the edge, and does nothing else."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

import psycopg2
from aiohttp import web

ROLE = sys.argv[1]
os.environ.update(json.loads(sys.stdin.read()))  # as soon as there is a database
ENVIRONMENT = {
    name.removeprefix(f"FORGELET_{ROLE.upper()}_"): value
    for name, value in os.environ.items()
    if name.startswith("FORGELET_")
}
DATA = Path(ENVIRONMENT["DATA_DIR"])
for name in [name for name in ENVIRONMENT if name.endswith("_TOKEN_FILE")]:
    ENVIRONMENT[name.removesuffix("_FILE")] = Path(ENVIRONMENT[name]).read_text().strip()


async def ready(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def change_settings(request: web.Request) -> web.Response:
    if request.headers["PRIVATE-TOKEN"] != ENVIRONMENT["ROOT_TOKEN"]:
        return web.json_response({"message": "401 Unauthorized"}, status=401)
    (DATA / "settings.json").write_text(await request.text())
    return web.json_response({})


async def keep_start(request: web.Request) -> web.Response:
    (DATA / "start.json").write_text(await request.text())
    return web.json_response({"id": "start"}, status=201)


async def finish(_app: web.Application) -> None:
    await asyncio.sleep(1)
    (DATA / "finished").touch()


def main() -> None:
    """Serve readiness and settings; the variable STAND_IN_<ROLE> chooses a misbehaviour instead."""
    misbehaviour = os.environ.get(f"STAND_IN_{ROLE.upper()}")
    if misbehaviour == "is never ready":
        signal.pause()
    if misbehaviour == "dies":
        sys.exit("the moon is in the wrong phase")
    if misbehaviour == "hangs at the end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda *_: (DATA / "hangup").touch())
    sys.stderr.write(f"{ROLE} number {os.getpid()} speaks\n")
    (DATA / "environment.json").write_text(json.dumps(ENVIRONMENT))
    if ROLE == "api":
        with contextlib.closing(psycopg2.connect(ENVIRONMENT["DATABASE_URL"])) as connection, connection:
            connection.cursor().execute("CREATE TABLE IF NOT EXISTS starts (n serial)")
            connection.cursor().execute("INSERT INTO starts DEFAULT VALUES")
    scratch = DATA / "pid.new"
    scratch.write_text(str(os.getpid()))
    scratch.replace(DATA / "pid")
    app = web.Application()
    if misbehaviour == "takes its time at the end":
        app.on_shutdown.append(finish)
    app.add_routes([web.get("/-/readiness", ready), web.put("/api/v4/application/settings", change_settings)])
    app.add_routes([web.post("/-/testing/snapshot", keep_start)] if "TESTING" in ENVIRONMENT else [])
    web.run_app(
        app,
        sock=socket.socket(fileno=int(ENVIRONMENT["LISTEN_FD"])),
        print=None,
        handle_signals=misbehaviour != "hangs at the end",
    )


main()
