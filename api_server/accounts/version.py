"""`/version` and `/metadata`: which API this is (supporting resources)."""

from importlib import metadata

from aiohttp import web

from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.auth import READ_USER_SCOPES
from api_server.web.routes import SIGNED_IN, Routes

routes = Routes()

_REVISION = f"forgelet {metadata.version('forgelet')}"


@routes.get("/version", access=SIGNED_IN, scopes=READ_USER_SCOPES)
@routes.get("/metadata", access=SIGNED_IN, scopes=READ_USER_SCOPES)
async def show_version(request: web.Request) -> web.Response:
    """Clients leave out what an older GitLab could not do, so the version is GitLab's; forgelet's is the revision."""
    settings = context.settings(request)
    return json_value(
        {
            "version": settings.dialect,
            "revision": _REVISION,
            "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
            "enterprise": settings.tier != "free",
        }
    )
