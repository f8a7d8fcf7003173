"""One request of the external storage's check: what came back, or precisely why nothing did."""

import asyncio
import hashlib
import ssl
import time
from collections.abc import Mapping

import aiohttp
import attrs

from api_server.outbound.destinations import BlockedError, written_url

#: Seconds for one request, its body included.
TIMEOUT = 10.0
#: Of an answer no more is read: the object that is asked for is far smaller.
MOST_BYTES = 2 * 2**20
_TEXT = 300


@attrs.frozen
class Seen:
    """An answer: `begin` is how its body begins, as text; `seconds` it took, to its end."""

    status: int
    headers: Mapping[str, str]
    size: int
    sha256: str
    begin: str
    seconds: float

    @property
    def cache_status(self) -> str:
        """What caches on the way say they did (RFC 9211), or what common ones say in its place."""
        return self.headers.get("Cache-Status") or self.headers.get("X-Cache", "")

    @property
    def is_hit(self) -> bool:
        """Whether a cache answered out of its store."""
        parts = [part.strip().lower() for part in self.cache_status.replace(",", ";").split(";")]
        return (
            "hit" in parts
            or self.cache_status.lower().startswith("hit")
            or self.headers.get("Age", "0") != "0"
        )


@attrs.frozen
class Unreachable:
    """Why there is no answer, in one sentence, and what to do about it."""

    reason: str
    remedy: str


async def ask(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> Seen | Unreachable:
    """GET of `url`, whose path and query are encoded; redirects are not followed."""
    begun = time.monotonic()
    digest, size, begin = hashlib.sha256(), 0, b""
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            session.get(written_url(url), headers=headers, allow_redirects=False) as answer,
        ):
            async for piece in answer.content.iter_any():
                digest.update(piece)
                size += len(piece)
                begin += piece[: _TEXT - len(begin)]
                if size > MOST_BYTES:
                    break
            seconds = time.monotonic() - begun
            text = begin.decode(errors="replace").strip()
            return Seen(answer.status, answer.headers.copy(), size, digest.hexdigest(), text, seconds)
    except (aiohttp.ClientError, BlockedError, OSError) as problem:  # TimeoutError is one
        return _why(problem, url)


def _why(problem: Exception, url: str) -> Unreachable:
    at = written_url(url)
    place = f"{at.host}:{at.port}"
    match problem:
        case BlockedError():
            return Unreachable(
                f"This service may not call {place}: {problem}.",
                f"That need not keep users from it. To check it from here, put {place} on the allow list for outbound "
                "requests (Settings).",
            )
        case aiohttp.ClientConnectorDNSError():
            return Unreachable(
                f"The name {at.host} is not resolved.", "Check its spelling, and this machine's DNS."
            )
        case aiohttp.ClientConnectorCertificateError():
            return Unreachable(
                f"The TLS certificate of {place} is not trusted: {_certificate(problem.certificate_error)}.",
                "Give it a certificate for this name that this machine trusts.",
            )
        case aiohttp.ClientSSLError():
            return Unreachable(
                f"TLS with {place} fails: {problem.os_error.strerror or problem.os_error}.",
                "Does the URL begin with https:// though plain HTTP is spoken there?",
            )
        case aiohttp.ClientConnectorError() if isinstance(problem.os_error, ConnectionRefusedError):
            return Unreachable(
                f"The connection to {place} is refused: nothing listens there.",
                "Start the storage, or mend host and port.",
            )
        case aiohttp.ClientConnectorError():
            return Unreachable(
                f"{place} cannot be reached: {problem.os_error.strerror or problem.os_error}.",
                "Check host and port, routes and firewalls.",
            )
        case TimeoutError():
            return Unreachable(
                f"{place} has not answered within {TIMEOUT:.0f} seconds.",
                "Check whether it works, and firewalls.",
            )
        case _:
            return Unreachable(
                f"What listens at {place} does not speak HTTP as expected ({type(problem).__name__}).",
                "Check port and scheme of the URL.",
            )


def _certificate(problem: Exception) -> str:
    return (
        str(getattr(problem, "verify_message", "") or problem)
        if isinstance(problem, ssl.SSLError)
        else str(problem)
    )
