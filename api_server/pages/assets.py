"""`/-/assets/<name>.<digest>.<ending>`: styles, scripts and pictures, which browsers keep for good.

A template names one by `asset('pages.css')`; with its content its address changes.
"""

import hashlib
from importlib import resources

import attrs
from aiohttp import web

_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
#: Of what has another address when it has another content.
FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


@attrs.frozen
class Asset:
    path: str
    text: str
    media_type: str


def _read() -> dict[str, Asset]:
    """All of them, by the names that templates use."""
    found = {}
    for file in resources.files("api_server.pages").joinpath("assets").iterdir():
        name, _, ending = file.name.rpartition(".")
        if ending in _KINDS:
            text = file.read_text()
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            found[file.name] = Asset(f"/-/assets/{name}.{digest}.{ending}", text, _KINDS[ending])
    return found


ASSETS = _read()
_BY_PATH = {asset.path: asset for asset in ASSETS.values()}


def setup(app: web.Application) -> None:
    app.router.add_get("/-/assets/{name}", serve)


def path_of(name: str) -> str:
    """Where the asset is. Raises KeyError for one that does not exist."""
    return ASSETS[name].path


async def serve(request: web.Request) -> web.Response:
    asset = _BY_PATH.get(request.path)
    if asset is None:
        raise web.HTTPNotFound(text="404 Not Found\n")
    return web.Response(text=asset.text, content_type=asset.media_type, headers=FOR_GOOD)
