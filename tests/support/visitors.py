"""People at a browser who have signed in already: sessions made in the database, since signing in is limited."""

import contextlib
import secrets
from collections.abc import AsyncIterator

from api_server.pages import queries
from api_server.pages.sessions import LIFETIME
from api_server.state.secrets import digest
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person

COOKIE = "forgelet_session"


async def new_session(forge: Forge, person: Person) -> str:
    """The value of the cookie of a new session."""
    cookie = secrets.token_urlsafe(32)
    async with forge.database.transaction() as transaction:
        await queries.create_session(transaction, digest(cookie), person.id, transaction.now + LIFETIME)
    return cookie


@contextlib.asynccontextmanager
async def visiting(forge: Forge, person: Person | None) -> AsyncIterator[Browser]:
    """The browser of somebody who has signed in, or (None) of a stranger."""
    async with browsing(forge) as browser:
        if person is not None:
            browser.session.cookie_jar.update_cookies({COOKIE: await new_session(forge, person)})
        yield browser
