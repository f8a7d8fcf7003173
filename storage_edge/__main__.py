"""`python -m storage_edge`: runs one edge process from its settings."""

import ssl

import structlog
import uvloop
from aiohttp import web

from common import logs
from common.mistakes import Mistake, usable_folder
from common.object_stores import check_object_store
from common.serving import allow_files, serving, stopping
from common.settings import command
from storage_edge.app import create_app
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.client.server import served
from storage_edge.settings import Settings

log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises `Mistake` where it cannot work."""
    logs.configure(settings.log_format, settings.log_level)
    context = _tls(settings)
    if settings.data_dir is not None:
        usable_folder("The data directory", settings.data_dir)
    if settings.shared_store_url:
        check_object_store("The shared store", settings.shared_store_url)
    app = create_app(settings)
    allow_files(app[CONNECTIONS])
    uvloop.run(_serve(app, settings, context))


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
    for file in filter(None, (settings.tls_cert, settings.tls_key)):
        try:
            file.open("rb").close()
        except OSError as problem:
            raise Mistake(f"TLS cannot be used: {problem.strerror}: {file}") from None
    try:
        # Without a word of ours, OpenSSL would ask for that of an encrypted key at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except ssl.SSLError as problem:
        match = problem.reason != "KEY_VALUES_MISMATCH"
        why = (
            "there is no PEM with a certificate and its unencrypted key in"
            if match
            else "its key is not that of"
        )
        raise Mistake(f"TLS cannot be used: {why} {settings.tls_cert}") from None
    return context


main = command(Settings, section="edge", env_prefix="FORGELET_EDGE_", run=run)

if __name__ == "__main__":
    main()
