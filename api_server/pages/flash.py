"""What the next page says once: "The token is revoked." after the form that revoked it was answered by a redirect.

The text travels in a cookie, signed for this browser, so that no address can make a page of ours say something.
"""

import base64
import binascii
import hmac

from aiohttp import web

from api_server.pages.sessions import Visitor, is_secure
from api_server.web import context

_COOKIE = "forgelet_flash"
_SECONDS = 60
_LONGEST = 500


def leave(request: web.Request, response: web.StreamResponse, who: Visitor, text: str) -> None:
    """Has the next page that this browser is shown say `text`."""
    encoded = base64.urlsafe_b64encode(text[:_LONGEST].encode()).decode()
    response.set_cookie(
        _COOKIE,
        f"{encoded}.{_seal(request, who, encoded)}",
        max_age=_SECONDS,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="Lax",
    )


def left(request: web.Request, who: Visitor) -> str:
    """The text that was left for this browser, or ""."""
    encoded, _, seal = request.cookies.get(_COOKIE, "").partition(".")
    if not encoded or not hmac.compare_digest(seal.encode(), _seal(request, who, encoded).encode()):
        return ""
    try:
        return base64.urlsafe_b64decode(encoded).decode()
    except (binascii.Error, ValueError):
        return ""


def said(request: web.Request, response: web.StreamResponse) -> None:
    """Nothing is left for the next page."""
    if _COOKIE in request.cookies:
        response.del_cookie(_COOKIE, path="/", secure=is_secure(request), httponly=True)


def _seal(request: web.Request, who: Visitor, encoded: str) -> str:
    return context.vault(request).derived_token("", f"flash: {who.cookie} {encoded}".encode())
