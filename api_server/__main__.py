"""`python -m api_server`: the API server on its own, its database brought up to date first."""

import asyncio
import functools
import sys

import psycopg2
import uvloop

from api_server.accounts.users import root
from api_server.app import create_app, endpoint, served
from api_server.settings import Settings
from api_server.state.migrate import UnsuitableDatabase, migrate
from common import logs, settings
from common.background import BACKGROUND
from common.listening import CannotStart
from common.reloading import Reload, ignore_hangups, reader, reloading
from common.serving import allow_files, bound, stopping
from common.shutdown import LAST_SECONDS, end_for_certain

SECTION, PREFIX = "api_server", "FORGELET_API_"


def serve(chosen: Settings) -> None:
    """Runs until SIGINT or SIGTERM; what cannot work ends the process with one sentence."""
    try:
        logs.configure(chosen.log_format, chosen.log_level, file=chosen.log_file)
    except OSError as problem:
        sys.exit(f"api_server: {problem.filename} cannot be written: choose another --log-file")
    ignore_hangups()
    try:
        uvloop.run(_serve(chosen))
    except CannotStart as problem:
        sys.exit(f"api_server: {problem}")


async def _serve(chosen: Settings) -> None:
    where = endpoint(chosen)
    allow_files(where.connections)
    async with bound(where) as ports:  # a second process on the port touches nothing
        await asyncio.to_thread(_make_ready, chosen)
        app = create_app(chosen)
        read = reader(Settings, section=SECTION, env_prefix=PREFIX)
        reload = Reload(chosen, read, functools.partial(root.preset_token, app))
        async with (
            stopping() as stop,
            ports.serving(served(app, where)),
            reloading(app[BACKGROUND], reload),
        ):
            await stop.wait()
            end_for_certain(chosen.shutdown_timeout + LAST_SECONDS)


def _make_ready(chosen: Settings) -> None:
    """The folder is there, and the database is of this version. Raises `CannotStart`."""
    try:
        chosen.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        migrate(chosen.database_url)
    except UnsuitableDatabase as problem:
        raise CannotStart(str(problem)) from None
    except (psycopg2.OperationalError, psycopg2.ProgrammingError) as problem:
        if problem.pgcode is not None and isinstance(problem, psycopg2.ProgrammingError):
            raise  # not the URL is wrong, but a statement of ours
        reason = logs.redact(str(problem).strip())
        raise CannotStart(f"PostgreSQL cannot be used, check --database-url: {reason}") from None
    except PermissionError as problem:
        raise CannotStart(f"{problem.filename} cannot be written: choose another --data-dir") from None


if __name__ == "__main__":
    settings.command(Settings, section=SECTION, env_prefix=PREFIX, run=serve)()
