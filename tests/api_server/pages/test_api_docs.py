"""`/api/docs` in a browser: a list for those without scripts, Swagger UI for the others."""

from collections.abc import AsyncIterator

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from api_server.description.parameters import operation_id
from tests.api_server.pages.test_looks import LARGE, RULES, SERIOUS, SMALL, TO_THE_SIDE
from tests.support.forge import Forge
from tests.support.route_table import ROUTES

#: Milliseconds: Swagger UI has much to do on a busy machine.
PATIENCE = 90_000


@pytest.fixture
async def docs(chromium: Browser, forge: Forge, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """The page. Whatever the browser complains of (policies, files that are missing) fails the test, and so does a
    request to somebody else."""
    context = await chromium.new_context(base_url=forge.base, java_script_enabled=request.param)
    context.set_default_timeout(PATIENCE)
    opened, complaints = await context.new_page(), []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "request", lambda asked: asked.url.startswith((forge.base, "data:")) or complaints.append(asked.url)
    )
    await opened.goto("/api/docs")
    yield opened
    await context.close()
    assert complaints == []


@pytest.mark.parametrize("docs", [False], indirect=True)
async def test_without_scripts_it_is_a_list_of_all_operations(docs: Page) -> None:
    await expect(docs.get_by_role("heading", name="Remote mirrors")).to_be_visible()
    assert await docs.locator("#operations li").count() == len(ROUTES)
    summary = docs.locator("summary", has_text="Remote mirrors")
    await summary.click()
    await expect(docs.get_by_text("POST /projects/{id}/remote_mirrors/{mirror_id}/sync")).to_be_visible()
    await docs.goto("/-/sign_in")
    await docs.get_by_role("contentinfo").get_by_role("link", name="API").click()
    await expect(docs.get_by_role("heading", name="API", exact=True)).to_be_visible()


@pytest.mark.parametrize("docs", [True], indirect=True)
async def test_an_operation_is_tried_out_with_ones_token(docs: Page, forge: Forge) -> None:
    person = await forge.user("tries")
    await docs.set_viewport_size(SMALL)
    await docs.locator("#operations-tag-users").wait_for()
    assert await docs.evaluate(TO_THE_SIDE) == 0
    await docs.set_viewport_size(LARGE)
    await docs.get_by_role("button", name="Authorize").click()
    await docs.get_by_label("Value:").first.fill(person.token)
    await docs.get_by_role("button", name="Apply credentials").first.click()
    await docs.get_by_role("button", name="Close").first.click()
    await docs.locator("#operations-tag-users").click()
    shown = docs.locator("#operations-users-get_current_user")
    await shown.locator(".opblock-summary").click()
    await shown.get_by_role("button", name="Execute").click()
    await expect(shown.locator(".live-responses-table")).to_contain_text(
        f'"username": "{person.username}"', timeout=PATIENCE
    )
    assert await docs.evaluate("localStorage.length + sessionStorage.length") == 0  # no token stays
    assert "get_current_user" in {operation_id(route) for route in ROUTES}


async def test_everybody_can_read_the_list(chromium: Browser, forge: Forge) -> None:
    """What is Swagger UI's own is not judged."""
    context = await chromium.new_context(base_url=forge.base)
    await context.route("**/*.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    docs = await context.new_page()
    await docs.goto("/api/docs")
    await docs.locator("summary", has_text="Remote mirrors").click()
    found = await Axe().run(docs, options=RULES)
    wrong = [
        (one["id"], one["nodes"][0]["html"])
        for one in found.response["violations"]
        if one["impact"] in SERIOUS
    ]
    await context.close()
    assert wrong == []
