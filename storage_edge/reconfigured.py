"""What a running edge makes of changed settings (SIGHUP)."""

from aiohttp import web

from common.client_address import networks
from common.lifecycle import Change
from storage_edge.cache.origin_tls import origin_context
from storage_edge.client import handlers, operators
from storage_edge.settings import Settings


def reconfigured(app: web.Application, fresh: Settings) -> Change:
    """The parts that have made something of their settings do so again; the others read them whenever they need them.
    Raises `Mistake` where files for TLS to the origin cannot be used.
    """
    to_origin = origin_context(fresh)

    async def change() -> None:
        settings = app[handlers.SETTINGS]  # by now with the new values
        app[operators.ORIGIN].use(settings, to_origin)
        app[operators.ORIGIN].health.forget()
        app[handlers.RULES].use(settings)
        app[handlers.PROXIES].trust(settings.trusted_proxies)
        app[handlers.CONNECTIONS].trust(networks(settings.trusted_proxies))
        app[handlers.RATES].limit(settings.client_rate, settings.client_burst)
        app[handlers.STORE].resize(
            memory_bytes=settings.memory_bytes,
            memory_object_bytes=settings.memory_object_bytes,
            disk_bytes=settings.disk_bytes,
        )

    return change
