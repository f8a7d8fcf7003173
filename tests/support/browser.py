"""A browser with which people sign in: it keeps cookies, follows redirects, and fills in forms."""

import contextlib
import html
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs
from yarl import URL

from api_server.accounts import sign_in_links
from api_server.pages import queries
from api_server.pages.sessions import LIFETIME
from api_server.state.secrets import digest
from api_server.web.context import SERVICES
from tests.support.forge import Forge, Person

#: Password of the people who sign in with a browser.
PASSWORD = "correct horse battery"


#: Name of the cookie of a server without TLS.
COOKIE = "forgelet_session"


async def new_session(forge: Forge, user_id: int) -> str:
    """Sign a user in; return the cookie of the session."""
    cookie = secrets.token_urlsafe(32)
    async with forge.database.transaction() as transaction:
        until = transaction.now + LIFETIME
        await queries.create_session(
            transaction, digest(cookie), user_id, until, ip_address="127.0.0.1", user_agent="Test"
        )
    return cookie


async def sign_in_link(forge: Forge, person: Any, **changes: Any) -> str:
    """Return the path of a link that signs that person in; `changes` are another id, count, or moment."""
    services = forge.server.app[SERVICES]
    counted = await queries.find_counted_account(services.database, person.id)
    assert counted is not None
    values = {"user_id": person.id, "sign_in_count": counted.sign_in_count, "now": services.clock()}
    return f"/-/sign_in/{sign_in_links.new_token(services.vault, **values | changes)}"


@attrs.define
class Browser:
    """A browser. It sends forms with the hidden fields of their page."""

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

    async def send(self, path: str, /, **fields: str) -> "Browser":
        """Send the form of the current page with this action, filled in with `fields`. If the page has no such form,
        send the hidden fields of all its forms."""
        form = re.search(
            rf'<form[^>]* action="{re.escape(html.escape(path))}".*?</form>', self.text, re.DOTALL
        )
        hidden = _hidden(form[0]) if form else self.hidden
        return await self._ask("POST", path, data=hidden | fields)

    async def post(self, path: str, data: Any) -> "Browser":
        """Send a form with this data, such as one with a file."""
        return await self._ask("POST", path, data=data)

    @property
    def hidden(self) -> dict[str, str]:
        """The hidden fields of the page's forms."""
        return _hidden(self.text)

    async def _ask(self, method: str, path: str, **options: Any) -> "Browser":
        async with self.session.request(method, URL(f"{self.base}{path}", encoded=True), **options) as answer:
            self.status, self.text, self.headers = answer.status, await answer.text(), answer.headers
            self.path, self.path_qs = answer.url.path, answer.url.path_qs
        return self

    async def sign_in(self, person: Person, password: str = PASSWORD, **query: str) -> "Browser":
        await self.get("/-/sign_in", params=query)
        return await self.send("/-/sign_in", login=person.username, password=password)

    async def enter(self, forge: Forge, person: Person) -> "Browser":
        """Sign in without the form, since attempts to sign in are limited."""
        self.session.cookie_jar.update_cookies({COOKIE: await new_session(forge, person.id)}, URL(self.base))
        return self

    @property
    def words(self) -> str:
        """The text of the page, without its elements."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.text)).split())

    @property
    def title(self) -> str:
        found = re.search(r"<h1>(.*?)</h1>", self.text)
        return found[1] if found else ""


@contextlib.asynccontextmanager
async def browsing(forge: Forge, person: Person | None = None) -> AsyncIterator[Browser]:
    """Yield the browser of a signed-in person, or an anonymous one without `person`."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        browser = Browser(session, forge.base)
        yield browser if person is None else await browser.enter(forge, person)


def _hidden(text: str) -> dict[str, str]:
    return {
        name: html.unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text)
    }
