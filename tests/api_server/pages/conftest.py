"""What tests of the pages share: a browser, and a server that nobody else signs in to."""

import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import async_playwright

from api_server.pages import sign_in
from api_server.pages.account import passwords
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, running_forge

#: Without these Chromium looks for its makers' hosts.
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]


#: What counts the attempts of an address.
_LIMITS = (sign_in.BY_ADDRESS, sign_in.UNKNOWN, passwords.BY_ADDRESS)


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Chromium]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        await browser.close()


@pytest.fixture
async def browser(page_forge: Forge) -> AsyncIterator[Browser]:
    """The browser of a stranger, whose address has not tried to sign in yet."""
    for limit in _LIMITS:
        page_forge.server.app[limit]._started.clear()
    async with browsing(page_forge) as opened:
        yield opened


@pytest.fixture(scope="module")
async def page_forge(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """A server of the module's own, because attempts to sign in are counted by address."""
    async with running_forge(new_database(), tmp_path_factory.mktemp("pages")) as forge:
        yield forge


async def details_of(forge: Forge, query: str) -> list[dict[str, Any]]:
    """The details of audit events, newest first, each with its `scope`."""
    answer = await forge.root.get(f"/audit_events?{query}")
    assert answer.status == 200
    return [event["details"] | {"scope": event["entity_type"]} for event in answer.body]
