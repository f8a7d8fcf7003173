"""TLS towards the origin: whom the edge believes, and how it shows who it is."""

import ssl

from common.mistakes import Mistake
from storage_edge.settings import Settings


def origin_context(settings: Settings) -> ssl.SSLContext | None:
    """None where the origin is asked without TLS. Raises `Mistake` where files cannot be used."""
    if settings.origin_url.scheme != "https":
        return None
    files = {"CA": settings.origin_ca, "certificate": settings.origin_cert, "key": settings.origin_key}
    for what, file in files.items():
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as problem:
            raise Mistake(
                f"TLS to the origin cannot be used: its {what}: {problem.strerror}: {file}"
            ) from None
    try:
        context = ssl.create_default_context(cafile=settings.origin_ca)
    except ssl.SSLError:
        raise Mistake(
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
            raise Mistake(f"TLS to the origin cannot be used: {why} {settings.origin_cert}") from None
    return context
