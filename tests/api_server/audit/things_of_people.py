"""Tokens and accounts that a change in the table needs: a part of `Things`."""

from typing import Any

import attrs

from tests.api_server.audit.making import Making
from tests.support.forge import Client


class ThingsOfPeople(Making):
    async def _access_token(self, kind: str) -> Any:
        return await self.post(f"/{kind}s/{{{kind}}}/access_tokens", name="token", scopes=["api"])

    async def make_project_access_token(self) -> int:
        return int((await self._access_token("project"))["id"])

    async def make_group_access_token(self) -> int:
        return int((await self._access_token("group"))["id"])

    async def make_project_bot(self) -> Client:
        return attrs.evolve(self.forge.anonymous, token=(await self._access_token("project"))["token"])

    async def make_group_bot(self) -> Client:
        return attrs.evolve(self.forge.anonymous, token=(await self._access_token("group"))["token"])
