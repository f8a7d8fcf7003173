"""Who an audit event of this request names as its author."""

from aiohttp import web

from api_server.state.audit_trail import Author
from api_server.web.routes import caller


def author(request: web.Request) -> Author:
    """The caller, with the address that the request came from, and with who really asked (`Sudo`)."""
    who = caller(request)
    return Author(
        id=who.user_id,
        name=who.name,
        email=who.email,
        username=who.username,
        ip_address=request.remote,
        impersonated_by=who.impersonator.username if who.impersonator else None,
        impersonated_by_id=who.impersonator.user_id if who.impersonator else None,
    )
