"""A new token, shown once on the page to which its form redirects.

The page's address holds the token encrypted, for this browser and for a minute. A form that is sent twice (a double
click) therefore makes one token and still shows it. The token is stored nowhere else.
"""

import base64
import binascii
import datetime
import hmac

import attrs
import orjson
from aiohttp import web

from api_server.pages import page
from api_server.pages.sessions import Visitor
from api_server.state.secrets import digest
from api_server.web import context

_LIFETIME = datetime.timedelta(minutes=1)


@attrs.frozen
class NewToken:
    """A new token. `of` says which one it is, such as `for runner laptop`."""

    of: str
    token: str = attrs.field(repr=False)


def show(request: web.Request, visitor: Visitor, path: str, new_token: NewToken) -> web.Response:
    """Redirect the browser to the page at `path`, which shows the token."""
    services = context.services(request)
    expires_at = (services.clock() + _LIFETIME).timestamp()
    text = orjson.dumps([digest(visitor.cookie).hex(), expires_at, new_token.of, new_token.token]).decode()
    sealed = base64.urlsafe_b64encode(services.vault.encrypt(text)).decode()
    return page.see_other(request, visitor, f"{path}?made={sealed}")


def shown(request: web.Request, visitor: Visitor) -> NewToken | None:
    """Return the token in the page's address, or None if it is too old, for another browser, or not ours."""
    services = context.services(request)
    try:
        text = services.vault.decrypt(base64.urlsafe_b64decode(request.query.get("made", "")))
        owner, expires_at, of, token = orjson.loads(text)
    except (binascii.Error, ValueError, TypeError):
        return None
    is_own = isinstance(owner, str) and hmac.compare_digest(owner, digest(visitor.cookie).hex())
    return NewToken(of, token) if is_own and services.clock().timestamp() < expires_at else None
