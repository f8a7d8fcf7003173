"""How a receiver knows that a delivery is ours, and that it is not an old one sent again; pure."""

import base64
import binascii
import hmac

#: A secret in this form (Standard Webhooks) spells the key of the Standard Webhooks signature in Base64.
SPELLED_KEY = "whsec_"


def signature_headers(body: bytes, *, webhook_id: str, timestamp: int, secret: str | None) -> dict[str, str]:
    """The headers that name and, with a secret, sign a delivery; `timestamp` in seconds since 1970.

    `X-Service-Signature` is the HMAC-SHA256 of the body in hex, keyed with the secret's bytes. The `webhook-`
    headers are those of Standard Webhooks 1.0.0, whose signature covers id and timestamp as well.
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
            pass  # a secret like any other, after all
    return secret.encode()
