"""`/version` and `/metadata`: which software this is (supporting resources)."""

from importlib import metadata

from aiohttp import web

from api_server.web import context
from api_server.web.access import SIGNED_IN
from api_server.web.answers import json_value
from api_server.web.auth import READ_USER_SCOPES
from api_server.web.routes import Routes

routes = Routes()

VERSION = metadata.version("forgelet")


@routes.get("/version", access=SIGNED_IN, scopes=READ_USER_SCOPES)
@routes.get("/metadata", access=SIGNED_IN, scopes=READ_USER_SCOPES)
async def show_version(request: web.Request) -> web.Response:
    """forgelet's own version, in the shape that clients of GitLab read."""
    return json_value(
        {
            "version": VERSION,
            "revision": f"v{VERSION}",
            "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
            "enterprise": context.settings(request).tier != "free",
        }
    )
