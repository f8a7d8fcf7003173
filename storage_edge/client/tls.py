"""The edge's TLS: its certificate, which may be replaced while connections are open."""

import ssl

from common.reloading import Change
from storage_edge.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None where there is no certificate. Raises OSError where it cannot be used."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


def certificate(context: ssl.SSLContext, fresh: Settings) -> Change:
    """New connections get the certificate that `fresh` names. Raises OSError where it cannot be used, and ValueError
    where there is none any more."""
    if tls_context(fresh) is None or fresh.tls_cert is None:
        raise ValueError("TLS cannot be turned off while the edge runs")
    chain = fresh.tls_cert, fresh.tls_key

    async def change() -> None:
        context.load_cert_chain(*chain)

    return change
