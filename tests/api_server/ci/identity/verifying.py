"""Another service that trusts this one: it has only its URL, and verifies tokens with PyJWT."""

import asyncio
import json
import urllib.request
from typing import Any

import attrs
import jwt


@attrs.define
class Consumer:
    """A service that verifies tokens of `issuer` for the audience `name`, in threads, over HTTP."""

    issuer: str
    name: str

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of the token. Raise `jwt.PyJWTError` if it cannot be trusted."""
        return await asyncio.to_thread(self._claims, token)

    def _claims(self, token: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.issuer}/.well-known/openid-configuration", timeout=10) as answer:
            said = json.load(answer)
        assert said["issuer"] == self.issuer
        key = jwt.PyJWKClient(said["jwks_uri"]).get_signing_key_from_jwt(token)
        return jwt.decode(
            token,
            key,
            algorithms=said["id_token_signing_alg_values_supported"],
            audience=self.name,
            issuer=self.issuer,
            options={"require": ["iss", "sub", "aud", "exp", "nbf", "iat", "jti"]},
        )
