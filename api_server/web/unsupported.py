"""Parameters that GitLab knows and this service has no use for (decision D11).

They are declared beside a route as an attrs class (`ignores=`) like those that it uses: their values are checked, and
their names are told in the answer, so that no client believes that something has happened which has not.
"""

from typing import Any

import attrs
from aiohttp import web

from api_server.web import context
from api_server.web.errors import bad_parameters
from api_server.web.params import check, public_name

HEADER = "X-Ignored-Parameters"
#: `metadata=REFUSED`: what would have consequences that people rely on is 400 whatever the operator has set, unless it
#: is sent to say that it is not wanted.
REFUSED = {"refused": True}
_NOT_WANTED = (None, False, "", "false", "0", 0)

_SENT = web.RequestKey("unsupported_parameters", list[str])


def look_at(request: web.Request, sent: dict[str, Any], known: type) -> None:
    """Remembers which of `known` were sent. Raises 400 for values that GitLab would refuse, and where they may not be
    sent at all."""
    fields = [field for field in attrs.fields(known) if public_name(field) in sent]
    if not fields:
        return
    refuses_all = context.settings(request).unsupported_parameters == "refuse"
    refused = [
        public_name(field) for field in fields if refuses_all or _is_refused(field, sent[public_name(field)])
    ]
    check(sent, fields)
    if refused:
        raise bad_parameters(*(f"{name} is not supported by this service" for name in refused))
    request[_SENT] = [public_name(field) for field in fields]


def _is_refused(field: "attrs.Attribute[Any]", value: Any) -> bool:
    return bool(field.metadata.get("refused")) and value not in _NOT_WANTED


def ignore(request: web.Request, name: str) -> None:
    """A parameter that was sent, and that the route uses for others, is of no use to this caller. Raises 400 where that
    may not be sent at all."""
    if context.settings(request).unsupported_parameters == "refuse":
        raise bad_parameters(f"{name} is not supported by this service")
    request[_SENT] = [*request.get(_SENT, []), name]


def tell(request: web.Request, response: web.StreamResponse) -> None:
    """Names in the answer what was sent in vain."""
    if _SENT in request and not response.prepared:
        names = request[_SENT]
        response.headers[HEADER] = ", ".join(names)
