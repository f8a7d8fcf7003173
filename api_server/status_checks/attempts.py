"""One attempt of a delivery: the signed request, its outcome, and the time of the next attempt."""

import asyncio
import base64
import binascii
import datetime
import errno
import hmac
import os
import time
from collections.abc import Mapping

import aiohttp
import attrs

from api_server.outbound.destinations import BlockedError, written_url
from api_server.outbound.policy import UNRESOLVABLE
from common import http_fields

_SECOND = datetime.timedelta(seconds=1)
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE

#: The waits after the first, second, ... failed try. A delivery that fails after the last wait has failed.
WAITS = (5 * _SECOND, 30 * _SECOND, 2 * _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, 24 * _HOUR)
#: Maximum random extension of a wait, as a share of it, so that deliveries that failed together are spread.
JITTER = 0.1
#: Maximum wait that a receiver can ask for.
LONGEST_RETRY_AFTER = 24 * _HOUR


def wait_after(
    tries: int, random: float, retry_after: datetime.timedelta | None = None
) -> datetime.timedelta | None:
    """Return the wait after the failure of try number `tries` (from 1), or None if that was the last try.

    `random` is from [0, 1). `retry_after`, which the receiver asks for, can only make the wait longer.
    """
    if tries > len(WAITS):
        return None
    wait = WAITS[tries - 1] * (1 + JITTER * random)
    return max(wait, min(retry_after, LONGEST_RETRY_AFTER)) if retry_after is not None else wait


def retry_after(header: str | None, now: datetime.datetime) -> datetime.timedelta | None:
    """Return the wait in a `Retry-After` header (RFC 9110 10.2.3), given as seconds or a date, otherwise None."""
    text = (header or "").strip()
    if text.isascii() and text.isdecimal():
        return min(int(text[:10]) * _SECOND, LONGEST_RETRY_AFTER)
    moment = http_fields.parse_date(text, now.timestamp())
    return None if moment is None else max(0.0, moment - now.timestamp()) * _SECOND


#: After this prefix (Standard Webhooks), a secret is the Base64 form of the key of the `webhook-signature`.
SPELLED_KEY = "whsec_"


def signature_headers(body: bytes, *, webhook_id: str, timestamp: int, secret: str | None) -> dict[str, str]:
    """Return the headers that identify a delivery and, with a secret, sign it. `timestamp` is in seconds since 1970.

    `X-Service-Signature` is the HMAC-SHA256 of the body in hex, keyed with the secret's bytes. The `webhook-`
    headers are those of Standard Webhooks 1.0.0, whose signature also covers the id and the timestamp.
    """
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp)}
    if secret is None:
        return headers
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(_key(secret), signed, "sha256")).decode()
    return headers | {
        "webhook-signature": f"v1,{signature}",
        "X-Service-Signature": hmac.digest(secret.encode(), body, "sha256").hex(),
    }


def _key(secret: str) -> bytes:
    if secret.startswith(SPELLED_KEY):
        try:
            return base64.b64decode(secret.removeprefix(SPELLED_KEY), validate=True)
        except binascii.Error:
            pass  # not Base64: the whole text is the secret
    return secret.encode()


#: Maximum number of bytes of an answer that are stored.
KEPT_BYTES = 10 * 1024
#: Time limits of one attempt, in seconds.
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)


@attrs.frozen(kw_only=True)
class Message:
    """A message to send. `attempt` counts from 1; `webhook_id` is the same for all attempts."""

    url: str
    body: str
    webhook_id: str
    attempt: int
    secret: str | None = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of an attempt: an answer with its `status`, or an `error`. `duration` is in seconds."""

    request_headers: Mapping[str, str]
    began_at: datetime.datetime
    duration: float
    status: int | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    retry_after: str | None = None
    body: str | None = None
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def problem(self) -> str | None:
        """The reason why the attempt failed, in one sentence without secrets, or None if it succeeded."""
        return None if self.succeeded else self.error or f"The receiver answered {self.status}"

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no more deliveries."""
        return self.status == 410


async def send(session: aiohttp.ClientSession, message: Message, now: datetime.datetime) -> Outcome:
    """Post the message once, without following redirects. Failures of the receiver are in the outcome, not raised."""
    body = message.body.encode()
    headers = {
        "Content-Type": "application/json",
        "X-Service-Event": "merge_request",
        "X-Service-Delivery-Attempt": str(message.attempt),
        **signature_headers(
            body, webhook_id=message.webhook_id, timestamp=int(now.timestamp()), secret=message.secret
        ),
    }
    started = time.perf_counter()
    try:
        async with session.post(
            written_url(message.url), data=body, headers=headers, allow_redirects=False, timeout=TIMEOUT
        ) as response:
            text = await _beginning(response)
            return Outcome(
                request_headers=headers,
                began_at=now,
                duration=time.perf_counter() - started,
                status=response.status,
                headers={str(name): _storable(value) for name, value in response.headers.items()},
                retry_after=response.headers.get("Retry-After"),
                body=text,
            )
    except (aiohttp.ClientError, BlockedError, OSError, ValueError) as problem:  # TimeoutError is an OSError
        return Outcome(
            request_headers=headers,
            began_at=now,
            duration=time.perf_counter() - started,
            error=explanation(problem),
        )


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """Return the answer's first bytes as text. An interrupted body is no error, because the status has arrived."""
    body = bytearray()
    try:
        while len(body) < KEPT_BYTES and (chunk := await response.content.read(KEPT_BYTES - len(body))):
            body += chunk
    except (aiohttp.ClientError, OSError):
        pass
    return body.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _storable(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def explanation(problem: Exception) -> str:
    """Return the reason for a missing answer in one sentence, without the URL, which may contain secrets."""
    match problem:
        case BlockedError():
            return str(problem)
        case aiohttp.ConnectionTimeoutError():
            return f"No connection within {TIMEOUT.connect:.0f} seconds"
        case asyncio.TimeoutError():
            return f"No answer within {TIMEOUT.total:.0f} seconds"
        case aiohttp.ClientConnectorDNSError():
            return UNRESOLVABLE
        case aiohttp.ClientSSLError():
            return "The TLS handshake failed or the certificate is not valid"
        case aiohttp.ClientConnectorError():
            return f"No connection: {os.strerror(problem.os_error.errno or errno.ECONNREFUSED)}"
        case aiohttp.ServerDisconnectedError() | ConnectionError() | aiohttp.ClientOSError():
            return "The connection was closed before an answer came"
        case _:
            return f"The request failed ({type(problem).__name__})"
