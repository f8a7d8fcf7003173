"""A browser that people sign in with: keeps cookies, follows redirects, fills in forms."""

import contextlib
import html
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs
from yarl import URL

from tests.support.forge import Forge, Person

#: Of the people who sign in with a browser.
PASSWORD = "correct horse battery"


@attrs.define
class Browser:
    """Keeps cookies, follows redirects, sends forms with what their page holds."""

    session: aiohttp.ClientSession
    base: str
    status: int = 0
    text: str = ""
    headers: Any = None
    path: str = ""
    #: The path with its query.
    path_qs: str = ""

    async def get(self, path: str, **options: Any) -> "Browser":
        return await self._ask("GET", path, **options)

    async def send(self, path: str, **fields: str) -> "Browser":
        """The form of the page at hand, filled in with `fields`."""
        hidden = {
            name: html.unescape(value)
            for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', self.text)
        }
        return await self._ask("POST", path, data=hidden | fields)

    async def _ask(self, method: str, path: str, **options: Any) -> "Browser":
        async with self.session.request(method, URL(f"{self.base}{path}", encoded=True), **options) as answer:
            self.status, self.text, self.headers = answer.status, await answer.text(), answer.headers
            self.path, self.path_qs = answer.url.path, answer.url.path_qs
        return self

    async def sign_in(self, person: Person, password: str = PASSWORD, **query: str) -> "Browser":
        await self.get("/-/sign_in", params=query)
        return await self.send("/-/sign_in", login=person.username, password=password)

    @property
    def title(self) -> str:
        found = re.search(r"<h1>(.*?)</h1>", self.text)
        return found[1] if found else ""


@contextlib.asynccontextmanager
async def browsing(forge: Forge) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Browser(session, forge.base)
