"""`/api/docs`: the API's description as a page with Swagger UI, from the package swagger-ui-bundle-v2.

In a browser without JavaScript, the page lists all operations.
"""

import functools
from importlib import metadata
from pathlib import Path

import swagger_ui_bundle
from aiohttp import web

from api_server.description.handlers import DESCRIPTION
from api_server.pages import page
from api_server.pages.page import FOR_GOOD
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context

pages = Pages()
_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")


@pages.get("/api/docs")
async def show_api_docs(request: web.Request, visitor: Visitor) -> web.Response:
    description = await context.services(request)[DESCRIPTION].rendered()
    return page.answer(request, visitor, "api_docs.html", resources=description.outline, files=_addresses())


def setup(app: web.Application) -> None:
    app.router.add_get("/-/assets/swagger/{version}/{name}", _serve)


@functools.cache
def _folder() -> Path:
    """Return the folder of the newest version of Swagger UI in the package."""
    return max(Path(swagger_ui_bundle.__file__).parent.glob("vendor/swagger-ui-5*"))


def _addresses() -> list[str]:
    """Return the files' addresses, which change with their version."""
    return [f"/-/assets/swagger/{metadata.version('swagger-ui-bundle-v2')}/{name}" for name in _FILES]


async def _serve(request: web.Request) -> web.StreamResponse:
    if request.path not in _addresses():
        raise web.HTTPNotFound(text="404 Not Found\n")
    return web.FileResponse(_folder() / request.match_info["name"], headers=FOR_GOOD)
