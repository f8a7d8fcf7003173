"""A token that was just made, shown on the page that its form leads to.

The page's address has it encrypted, for this browser and for a minute, so that a form that is sent twice (a double
click) makes one token and shows it all the same. No table and no cookie has it.
"""

import base64
import binascii
import datetime
import hmac

import attrs
import orjson
from aiohttp import web

from api_server.pages.sessions import Visitor
from api_server.state.secrets import digest
from api_server.web import context

_LIFETIME = datetime.timedelta(minutes=1)


@attrs.frozen
class NewToken:
    """`kind` says what it is a token of."""

    kind: str
    token: str = attrs.field(repr=False)


def sealed(request: web.Request, visitor: Visitor, made: NewToken) -> str:
    """The token as a value for the address of a page."""
    services = context.services(request)
    until = (services.clock() + _LIFETIME).timestamp()
    text = orjson.dumps([digest(visitor.cookie).hex(), until, made.kind, made.token]).decode()
    return base64.urlsafe_b64encode(services.vault.encrypt(text)).decode()


def opened(request: web.Request, visitor: Visitor, value: str) -> NewToken | None:
    """The token, or None for what is too old, of another browser, or none of ours."""
    services = context.services(request)
    try:
        text = services.vault.decrypt(base64.urlsafe_b64decode(value))
        owner, until, kind, token = orjson.loads(text)
    except (binascii.Error, ValueError, TypeError):
        return None
    is_own = isinstance(owner, str) and hmac.compare_digest(owner, digest(visitor.cookie).hex())
    return NewToken(kind, token) if is_own and services.clock().timestamp() < until else None
