"""Chromium, an anonymous browser, and a server without recorded attempts to sign in, for tests of the pages."""

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

#: Chromium would otherwise contact hosts of its makers.
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]


#: Limits that count the attempts of an address.
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
    """Return a list to which the browser's errors and violations of policies are added from now on."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


@pytest.fixture
async def browser(page_forge: Forge) -> AsyncIterator[Browser]:
    """An anonymous browser."""
    async with browsing(page_forge) as opened:
        yield opened


@pytest.fixture
def page_forge(forge: Forge) -> Iterator[Forge]:
    """The server that most tests share, without recorded attempts to sign in from this address."""
    _forget_attempts(forge)
    yield forge
    _forget_attempts(forge)


def _forget_attempts(forge: Forge) -> None:
    for limit in _LIMITS:
        forge.server.app[SERVICES][limit].forget()


async def details_of(forge: Forge, query: str) -> list[dict[str, Any]]:
    """Return the details of audit events, newest first, each with its `scope`."""
    answer = await forge.root.get(f"/audit_events?{query}")
    assert answer.status == 200
    return [event["details"] | {"scope": event["entity_type"]} for event in answer.body]
