"""`python -m api_server`: the API server on its own, its database brought up to date first."""

import sys

import psycopg2
import uvloop
from aiohttp import web

from api_server.app import create_app, served
from api_server.settings import Settings
from api_server.state.migrate import UnsuitableDatabase, migrate
from common import logs, settings
from common.serving import allow_files, serving, stopping


def serve(chosen: Settings) -> None:
    """Runs until SIGINT or SIGTERM; what cannot work ends the process with one sentence."""
    logs.configure(chosen.log_format)
    try:
        chosen.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        migrate(chosen.database_url)
        app = create_app(chosen)
    except UnsuitableDatabase as problem:
        sys.exit(f"api_server: {problem}")
    except (psycopg2.OperationalError, psycopg2.ProgrammingError) as problem:
        if problem.pgcode is not None and isinstance(problem, psycopg2.ProgrammingError):
            raise  # not the URL is wrong, but a statement of ours
        sys.exit(
            f"api_server: PostgreSQL cannot be used, check --database-url: {logs.redact(str(problem).strip())}"
        )
    except PermissionError as problem:
        sys.exit(f"api_server: {problem.filename} cannot be written: choose another --data-dir")
    try:
        uvloop.run(_serve(app, chosen))
    except OSError as problem:
        sys.exit(f"api_server: cannot listen on {chosen.host}:{chosen.port}: {problem.strerror}")


async def _serve(app: web.Application, chosen: Settings) -> None:
    wanted = served(app, chosen)
    allow_files(wanted.connections)
    async with stopping() as stop, serving(wanted):
        await stop.wait()


if __name__ == "__main__":
    settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=serve)()
