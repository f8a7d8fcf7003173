"""The program `python -m storage_edge`: runs one edge process from its settings."""

import asyncio
import functools
from typing import NoReturn

import attrs
import structlog
import uvloop
from aiohttp import web

from common import logs
from common.config_errors import ConfigError, check_object_store, require_obstore, usable_folder, writable
from common.interpreter import return_large_objects, tune_interpreter
from common.lifecycle import (
    BACKGROUND,
    LAST_SECONDS,
    Reload,
    end_for_certain,
    ignore_hangups,
    reader,
    reloading,
)
from common.loop_watch import LOOP_WATCH
from common.serving import allow_files, bound, stopping
from common.settings import command
from common.workers import worker_address
from storage_edge.app import create_app, reconfigured, served
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.settings import Settings
from storage_edge.tls import Certificate, origin_context

log = structlog.get_logger(__name__)

SECTION, PREFIX = "edge", "FORGELET_EDGE_"


def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raise `ConfigError` if the edge cannot work."""
    with writable("The log"):
        logs.configure(settings.log_format, settings.log_level, file=settings.log_file)
    if settings.workers > 1 and worker_address() is None:
        _become_supervisor(settings)
    ignore_hangups()
    return_large_objects()
    certificate = Certificate(settings)
    origin_context(settings)
    app = create_app(settings)
    allow_files(app[CONNECTIONS])
    uvloop.run(_serve(app, settings, certificate))


def _become_supervisor(settings: Settings) -> NoReturn:
    """Replace this process by a supervisor. The workers share stored responses and purges by their directory. Raise
    `ConfigError`."""
    if settings.data_dir is None:
        raise ConfigError("several workers share a data_dir, and there is none")
    for name in ("reuse_port", "testing"):
        if getattr(settings, name):
            raise ConfigError(f"{name} and workers contradict each other")
    from common.serving import become_supervisor

    become_supervisor(settings)


async def _serve(app: web.Application, settings: Settings, certificate: Certificate) -> None:
    serve = served(app, settings, certificate.context)
    if worker := worker_address():
        endpoint = attrs.evolve(serve.endpoint, descriptor=worker.public, late=worker.late)
        serve = attrs.evolve(serve, endpoint=endpoint)
    read = reader(Settings, section=SECTION, env_prefix=PREFIX)
    reload = Reload(settings, read, functools.partial(reconfigured, app), certificate.renewed)
    async with bound(serve.endpoint) as ports:  # first, so that a second process on the port changes nothing
        await asyncio.to_thread(_make_ready, settings)
        async with (
            stopping() as stop,
            ports.serving(serve) as (host, port),
            reloading(app[BACKGROUND], reload),
            app[LOOP_WATCH].watching(),
        ):
            tune_interpreter()
            log.info("ready", host=host, port=port, origin=str(settings.origin_url))
            if not settings.purge_token:
                log.warning(
                    "no purge token is set: what changes in the service is served as it was until it is too old; set "
                    "purge_token_file to the file that the service has as edge_purge_token_file"
                )
            await stop.wait()
            end_for_certain(settings.shutdown_timeout + LAST_SECONDS)
            log.info("stopping")


def _make_ready(settings: Settings) -> None:
    """Check that folder and shared store can be used. Raise `ConfigError`."""
    if settings.data_dir is not None:
        usable_folder("The data directory", settings.data_dir)
    if settings.shared_store_url:
        require_obstore("The shared store")
        check_object_store("The shared store", settings.shared_store_url)


main = command(Settings, section=SECTION, env_prefix=PREFIX, run=run)

if __name__ == "__main__":
    main()
