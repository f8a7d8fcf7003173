"""The edge's TLS: its certificate, which may be replaced while connections are open."""

import ssl

from common.mistakes import Mistake
from common.reloading import Change
from storage_edge.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None where there is no certificate. Raises `Mistake` where it cannot be used."""
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


def certificate(context: ssl.SSLContext, fresh: Settings) -> Change:
    """New connections get the certificate that `fresh` names. Raises `Mistake` where it cannot be used, and
    ValueError where there is none any more."""
    if tls_context(fresh) is None or fresh.tls_cert is None:
        raise ValueError("TLS cannot be turned off while the edge runs")
    chain = fresh.tls_cert, fresh.tls_key

    async def change() -> None:
        context.load_cert_chain(*chain, password="")

    return change
