"""How the edge is served: on connections of its own kind, with its own access log."""

import logging
import ssl

from aiohttp import web

from common.serving import Endpoint, Serving
from storage_edge.client.access_log import AccessLog
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.settings import Settings


def served(app: web.Application, settings: Settings, context: ssl.SSLContext | None = None) -> Serving:
    """The application as `settings` say, with TLS where there is a `context`."""
    return Serving(
        app=app,
        endpoint=Endpoint(
            settings=settings,
            host=settings.host,
            port=settings.port,
            connections=app[CONNECTIONS],
            context=context,
            reuse_port=settings.reuse_port,
            descriptor=settings.listen_fd,
        ),
        options={
            "handler_cancellation": True,  # nobody waits for the answer once the client has gone
            "access_log_class": AccessLog,
            "access_log": logging.getLogger("storage_edge.access") if settings.access_log else None,
        },
    )
