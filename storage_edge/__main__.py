"""`python -m storage_edge`: runs one edge process from its settings."""

import ssl
import sys

import structlog
import uvloop
from aiohttp import web

from common import logs
from common.serving import allow_files, serving, stopping
from common.settings import command
from storage_edge.app import create_app
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.client.server import served
from storage_edge.settings import Settings

log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT; a setting that cannot work ends it with one sentence."""
    logs.configure(settings.log_format, settings.log_level)
    try:
        context = _tls(settings)
        app = create_app(settings)
        allow_files(app[CONNECTIONS])
        uvloop.run(_serve(app, settings, context))
    except (ValueError, OSError) as error:
        sys.exit(f"The storage edge cannot start: {error}")


async def _serve(app: web.Application, settings: Settings, context: ssl.SSLContext | None) -> None:
    async with stopping() as stop, serving(served(app, settings, context)) as (host, port):
        log.info("ready", host=host, port=port, origin=str(settings.origin_url))
        await stop.wait()
        log.info("stopping")


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


main = command(Settings, section="edge", env_prefix="FORGELET_EDGE_", run=run)

if __name__ == "__main__":
    main()
