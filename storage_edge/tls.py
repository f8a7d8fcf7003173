"""The edge's TLS: trust in the origin, and its own certificate, which can be replaced at any time."""

import ssl

from common.config_errors import ConfigError
from common.lifecycle import Change
from storage_edge.settings import Settings


def origin_context(settings: Settings) -> ssl.SSLContext | None:
    """Return None if the origin is asked without TLS. Raise `ConfigError` if files cannot be used."""
    if settings.origin_url.scheme != "https":
        return None
    files = {"CA": settings.origin_ca, "certificate": settings.origin_cert, "key": settings.origin_key}
    for purpose, file in files.items():
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as problem:
            raise ConfigError(
                f"TLS to the origin cannot be used: its {purpose}: {problem.strerror}: {file}"
            ) from None
    try:
        context = ssl.create_default_context(cafile=settings.origin_ca)
    except ssl.SSLError:
        raise ConfigError(
            f"TLS to the origin cannot be used: there is no PEM certificate in {settings.origin_ca}"
        ) from None
    if settings.origin_cert is not None:
        try:
            # Without a password callback, OpenSSL would ask for the password of an encrypted key at the terminal.
            context.load_cert_chain(settings.origin_cert, settings.origin_key, password="")
        except ssl.SSLError as problem:
            reason = (
                "its key is not that of"
                if problem.reason == "KEY_VALUES_MISMATCH"
                else "there is no PEM with a certificate and its unencrypted key in"
            )
            raise ConfigError(f"TLS to the origin cannot be used: {reason} {settings.origin_cert}") from None
    return context


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return None if there is no certificate. Raise `ConfigError` if it cannot be used."""
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
        # Without a password callback, OpenSSL would ask for the password of an encrypted key at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except ssl.SSLError as problem:
        match = problem.reason != "KEY_VALUES_MISMATCH"
        reason = (
            "there is no PEM with a certificate and its unencrypted key in"
            if match
            else "its key is not that of"
        )
        raise ConfigError(f"TLS cannot be used: {reason} {settings.tls_cert}") from None
    return context


class Certificate:
    """The certificate for new connections. The port keeps the `context` with which it was opened (None without TLS);
    each handshake begins with it and continues with the certificate that was read last. So files are read once, a
    pair that does not match is never used, and a certificate with an EC key can replace one with an RSA key."""

    def __init__(self, settings: Settings) -> None:
        """Raise `ConfigError` if the files cannot be used."""
        self.context = self._latest = tls_context(settings)
        if self.context is not None:
            self.context.sni_callback = self._show

    def renewed(self, fresh: Settings) -> Change:
        """Prepare the certificate that `fresh` names for new connections. Raise `ConfigError` if it cannot be used,
        and if TLS would begin or end."""
        latest = tls_context(fresh)
        if (latest is None) != (self.context is None):
            raise ConfigError("TLS is turned on and off with a new start alone: tls_cert")

        async def change() -> None:
            self._latest = latest

        return change

    def _show(self, handshake: ssl.SSLObject | ssl.SSLSocket, _name: str, _began: ssl.SSLContext) -> None:
        assert self._latest is not None  # noqa: S101 - there has been one since the start
        handshake.context = self._latest
