"""TLS of the edge: whom it believes towards the origin, and its own certificate, which may be replaced at any time."""

import ssl

from common.config_errors import ConfigError
from common.lifecycle import Change
from storage_edge.settings import Settings


def origin_context(settings: Settings) -> ssl.SSLContext | None:
    """None where the origin is asked without TLS. Raises `ConfigError` where files cannot be used."""
    if settings.origin_url.scheme != "https":
        return None
    files = {"CA": settings.origin_ca, "certificate": settings.origin_cert, "key": settings.origin_key}
    for what, file in files.items():
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as problem:
            raise ConfigError(
                f"TLS to the origin cannot be used: its {what}: {problem.strerror}: {file}"
            ) from None
    try:
        context = ssl.create_default_context(cafile=settings.origin_ca)
    except ssl.SSLError:
        raise ConfigError(
            f"TLS to the origin cannot be used: there is no PEM certificate in {settings.origin_ca}"
        ) from None
    if settings.origin_cert is not None:
        try:
            # Without a word of ours, OpenSSL would ask for that of an encrypted key at the terminal.
            context.load_cert_chain(settings.origin_cert, settings.origin_key, password="")
        except ssl.SSLError as problem:
            why = (
                "its key is not that of"
                if problem.reason == "KEY_VALUES_MISMATCH"
                else "there is no PEM with a certificate and its unencrypted key in"
            )
            raise ConfigError(f"TLS to the origin cannot be used: {why} {settings.origin_cert}") from None
    return context


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None where there is no certificate. Raises `ConfigError` where it cannot be used."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for file in filter(None, (settings.tls_cert, settings.tls_key)):
        try:
            file.open("rb").close()
        except OSError as problem:
            raise ConfigError(f"TLS cannot be used: {problem.strerror}: {file}") from None
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
        raise ConfigError(f"TLS cannot be used: {why} {settings.tls_cert}") from None
    return context


class Certificate:
    """What new connections are shown. The port keeps the `context` that it was opened with, None without TLS; each
    handshake begins with it and goes on with the one that was read last. So files are read once, a pair that does not
    match never gets into use, and an RSA certificate goes when one with an EC key takes its place.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises `ConfigError` where the files cannot be used."""
        self.context = self._latest = tls_context(settings)
        if self.context is not None:
            self.context.sni_callback = self._show

    def renewed(self, fresh: Settings) -> Change:
        """New connections get the certificate that `fresh` names. Raises `ConfigError` where it cannot be used, and
        where TLS would begin or end."""
        latest = tls_context(fresh)
        if (latest is None) != (self.context is None):
            raise ConfigError("TLS is turned on and off with a new start alone: tls_cert")

        async def change() -> None:
            self._latest = latest

        return change

    def _show(self, handshake: ssl.SSLObject | ssl.SSLSocket, _name: str, _began: ssl.SSLContext) -> None:
        assert self._latest is not None  # noqa: S101 - there has been one since the start
        handshake.context = self._latest
