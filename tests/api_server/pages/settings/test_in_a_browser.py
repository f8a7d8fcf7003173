"""Settings in a browser: on a phone, without scripts, and only with the keyboard."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, expect

from tests.api_server.pages.conftest import complaints_of
from tests.api_server.pages.settings.conftest import Scene
from tests.support.browser import COOKIE, new_session
from tests.support.forge import new_name

FOCUSED = "document.activeElement.id || document.activeElement.textContent.trim()"
MOST_TABS = 150


@pytest.fixture
async def page(chromium: Chromium, scene: Scene) -> AsyncIterator[Page]:
    """The owner's page, in a browser without scripts and with the width of a phone."""
    context = await chromium.new_context(
        base_url=scene.forge.base, java_script_enabled=False, viewport={"width": 390, "height": 844}
    )
    cookie = await new_session(scene.forge, scene.owner.id)
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": scene.forge.base}])
    opened = await context.new_page()
    complaints = complaints_of(opened)
    yield opened
    await context.close()
    assert [text for text in complaints if "status of 4" not in text] == []


async def tab_to(page: Page, beginning: str) -> None:
    """Press Tab until the focus is on an element whose id or text begins with this."""
    for _ in range(MOST_TABS):
        await page.keyboard.press("Tab")
        if str(await page.evaluate(FOCUSED)).startswith(beginning):
            return
    raise AssertionError(f"{beginning} cannot be reached")


async def test_somebody_is_invited_and_withdrawn_by_the_keyboard_alone(page: Page, scene: Scene) -> None:
    address = f"{new_name('new')}@example.org"
    await page.goto(scene.of_project)
    await tab_to(page, "Members")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Members")
    await tab_to(page, "recipients")
    await page.keyboard.type(address)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("1 person invited or added.")
    await expect(page.get_by_role("cell", name=address)).to_be_visible()
    await tab_to(page, f"Withdraw… {address}")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("Invitation withdrawn.")
    assert await scene.read("/invitations") == []


async def test_a_refused_mirror_is_open_with_the_focus_where_it_is_wrong(page: Page, scene: Scene) -> None:
    await page.goto(f"{scene.of_project}/-/settings/repository")
    await tab_to(page, "New mirror…")
    await page.keyboard.press("Enter")
    await tab_to(page, "new-mirror-url")
    await page.keyboard.type("https://198.51.100.7:no-port/x.git")
    await page.keyboard.press("Enter")
    field = page.locator("#new-mirror-url")
    await expect(field).to_be_visible()
    await expect(field).to_be_focused()
    await expect(field).to_have_value("https://198.51.100.7:no-port/x.git")
    await expect(field).to_have_attribute("aria-describedby", "new-mirror-url-problem new-mirror-url-hint")
    await field.fill("https://198.51.100.7/x.git")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("Mirror created.")
    await expect(page.get_by_text("Updates after the next change")).to_be_visible()


async def test_a_double_click_makes_one_variable_and_a_value_is_shown_on_demand(
    page: Page, scene: Scene
) -> None:
    await page.goto(f"{scene.of_project}/-/settings/ci_cd")
    await page.get_by_text("New variable…").click()
    await page.locator("#new-variable-key").fill("KEY")
    await page.locator("#new-variable-secret_value").fill("to be seen on demand")
    await page.get_by_role("button", name="Create variable").dblclick()
    await expect(page.get_by_role("cell", name="KEY", exact=True)).to_be_visible()
    assert [each["key"] for each in await scene.read("/variables")] == ["KEY"]
    await expect(page.get_by_text("to be seen on demand")).to_have_count(0)
    await page.get_by_role("link", name="Reveal values").click()
    await expect(page.get_by_role("region", name="Value of KEY")).to_have_text("to be seen on demand")


async def test_every_section_is_reached_from_the_project(page: Page, scene: Scene) -> None:
    await page.goto(scene.of_project)
    await page.get_by_role("link", name="Settings", exact=True).click()
    navigation = page.get_by_role("navigation", name="Settings")
    for name, title in (
        ("Repository", "Repository settings"),
        ("Merge requests", "Merge request settings"),
        ("CI/CD", "CI/CD settings"),
        ("Audit events", "Audit events"),
        ("General", "General settings"),
    ):
        await navigation.get_by_role("link", name=name).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(title)
        await expect(navigation.locator("[aria-current]")).to_have_text(name)
