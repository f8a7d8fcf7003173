"""What tests of the pages share: Chromium, a stranger's browser, and a server that remembers no attempts to sign in."""

import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, async_playwright

from api_server.pages import mail_links, sign_in
from api_server.web.context import SERVICES
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge

#: Without the first of these Chromium looks for its makers' hosts.
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
    # Nobody looks at what it draws: with one thread for that, it computes a quarter less.
    *("--num-raster-threads=1", "--disable-threaded-compositing"),
]


#: What counts the attempts of an address.
_LIMITS = (sign_in.BY_ADDRESS, sign_in.UNKNOWN, mail_links.BY_ADDRESS)


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Chromium]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        await browser.close()


def complaints_of(page: Page) -> list[str]:
    """What the browser complains of from now on: errors, and what a policy forbids."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


@pytest.fixture
async def browser(page_forge: Forge) -> AsyncIterator[Browser]:
    """The browser of a stranger."""
    async with browsing(page_forge) as opened:
        yield opened


@pytest.fixture
def page_forge(forge: Forge) -> Iterator[Forge]:
    """The server that most tests share, as if nobody had tried to sign in from this address before."""
    _forget_attempts(forge)
    yield forge
    _forget_attempts(forge)


def _forget_attempts(forge: Forge) -> None:
    for limit in _LIMITS:
        forge.server.app[SERVICES][limit].forget()


async def details_of(forge: Forge, query: str) -> list[dict[str, Any]]:
    """The details of audit events, newest first, each with its `scope`."""
    answer = await forge.root.get(f"/audit_events?{query}")
    assert answer.status == 200
    return [event["details"] | {"scope": event["entity_type"]} for event in answer.body]
