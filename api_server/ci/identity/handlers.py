"""OpenID discovery, by which other services verify identity tokens: their issuer and its keys."""

from typing import Final

from aiohttp import web

from api_server.ci.identity import claims, keys
from api_server.web import context
from api_server.web.answers import json_text, json_value

KEYS: Final = "/oauth/discovery/keys"
#: Both documents are public, also for scripts of other sites.
_HEADERS: Final = {
    "Cache-Control": f"public, max-age={int(keys.REMEMBERED.total_seconds())}, must-revalidate, no-transform",
    "Access-Control-Allow-Origin": "*",
}


def setup(app: web.Application) -> None:
    app.router.add_get("/.well-known/openid-configuration", show_configuration)
    app.router.add_get(KEYS, show_keys)
    app.router.add_get("/-/jwks", show_keys)  # GitLab's older address, which many Vaults are configured with


async def show_configuration(request: web.Request) -> web.Response:
    """Answer the metadata of the issuer of identity tokens. It signs nobody in, so it has no other
    endpoints."""
    issuer = context.services(request).settings.base_url
    document = {
        "issuer": issuer,
        "jwks_uri": issuer + KEYS,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [keys.ALGORITHM],
        "scopes_supported": ["openid"],
        "claims_supported": claims.NAMES,
    }
    return json_value(document, headers=_HEADERS)


async def show_keys(request: web.Request) -> web.Response:
    """Answer the public keys that verify tokens, as a JWK set."""
    return json_text(await keys.public_keys(context.services(request)), headers=_HEADERS)
