"""`python -m api_server`: the API server alone. It first migrates its database."""

import asyncio
import functools

import attrs
import uvloop

from api_server.accounts import users
from api_server.app import create_app, endpoint, served
from api_server.git.processes import check_git
from api_server.settings import Settings
from api_server.state import secrets
from api_server.state.migrate import check_notices, migrate, unsuitable_database
from api_server.web.context import SERVICES
from common import logs
from common.config_errors import check_object_store, readable_folder, usable_folder, writable
from common.interpreter import return_large_objects, tune_interpreter
from common.lifecycle import (
    LAST_SECONDS,
    Reload,
    end_for_certain,
    ignore_hangups,
    reader,
    reloading,
)
from common.loop_watch import LOOP_WATCH
from common.serving import allow_files, bound, stopping, working
from common.settings import command
from common.workers import worker_address

SECTION, PREFIX = "api_server", "FORGELET_API_"


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. Raise `ConfigError` if the server cannot work with these settings."""
    with writable("The log"):
        logs.configure(settings.log_format, settings.log_level, file=settings.log_file)
    worker = worker_address()
    if settings.workers > 1 and worker is None:
        from common.serving import become_supervisor

        become_supervisor(settings)
    if worker is not None and worker.number:
        settings = attrs.evolve(settings, work=False)
    ignore_hangups()
    return_large_objects()
    with unsuitable_database():
        uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    address = endpoint(settings)
    if worker := worker_address():
        address = attrs.evolve(address, descriptor=worker.public, late=worker.late)
    allow_files(address.connections)
    async with bound(address) as ports:  # if the port is in use, nothing else is touched
        await asyncio.to_thread(_make_ready, settings)
        app = create_app(settings)
        read = reader(Settings, section=SECTION, env_prefix=PREFIX)
        reload = Reload(settings, read, functools.partial(users.preset_token, app[SERVICES]))
        async with (
            stopping() as stop,
            ports.serving(served(app, address)),
            reloading(app[SERVICES].background, reload),
            app[LOOP_WATCH].watching(),
        ):
            tune_interpreter()
            await stop.wait()
            end_for_certain(settings.shutdown_timeout + LAST_SECONDS)


def work(settings: Settings) -> None:
    """Do only the background work, beside servers with the option `--no-work`. Raise `ConfigError` if that is
    impossible with these settings."""
    with writable("The log"):
        logs.configure(settings.log_format, settings.log_level, file=settings.log_file)
    ignore_hangups()
    return_large_objects()
    with unsuitable_database():
        uvloop.run(_work(attrs.evolve(settings, work=True)))


async def _work(settings: Settings) -> None:
    await asyncio.to_thread(_make_ready, settings)
    app = create_app(settings)
    reload = Reload(settings, reader(Settings, section=SECTION, env_prefix=PREFIX))
    async with (
        stopping() as stop,
        working(endpoint(settings), app),
        reloading(app[SERVICES].background, reload),
        app[LOOP_WATCH].watching(),
    ):
        tune_interpreter()
        await stop.wait()
        end_for_certain(settings.shutdown_timeout + LAST_SECONDS)


def _make_ready(settings: Settings) -> None:
    """Check folders, the object store and git, migrate the database, and check the secret key. Raise `ConfigError`."""
    usable_folder("The data directory", settings.data_dir)
    if settings.ci_templates_dir is not None:
        readable_folder("The folder of CI templates", settings.ci_templates_dir)
    if settings.object_store_url:
        check_object_store("The object store", settings.object_store_url)
    check_git()
    migrate(settings.unpooled_url)
    check_notices(settings.unpooled_url)
    with writable("The secret key"):
        secrets.ensure_key(settings.database_url, settings.data_dir)


main = command(Settings, section=SECTION, env_prefix=PREFIX, run=serve)
WORKER = """Run the background work of API servers in its own process.

This includes deliveries, mirrors, mail, purges and clean-up. The process listens only on operations_port, which must
differ from the servers' port. Servers beside it may use --no-work.
Several workers share the work."""
worker = command(Settings, section=SECTION, env_prefix=PREFIX, run=work, about=WORKER)

if __name__ == "__main__":
    main()
