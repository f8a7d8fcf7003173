"""From an empty service to a merged change in Chromium, without scripts and on a small screen; and a double click."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, new_session
from tests.support.forge import Forge, Person, new_name


@pytest.fixture
async def person(forge: Forge) -> Person:
    return await forge.user()


@pytest.fixture
async def page(chromium: Browser, forge: Forge, person: Person) -> AsyncIterator[Page]:
    """Signed in already."""
    context = await chromium.new_context(
        base_url=forge.base, viewport={"width": 390, "height": 740}, java_script_enabled=False
    )
    cookie = await new_session(forge, person.id)
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": forge.base}])
    opened = await context.new_page()
    complaints = complaints_of(opened)
    yield opened
    await context.close()
    assert complaints == []


async def test_a_person_makes_a_project_changes_a_file_and_merges_it(page: Page, person: Person) -> None:
    name = new_name("walk")
    await page.goto("/")
    await page.get_by_role("link", name="New project").click()
    await page.get_by_label("Project name").fill(name)
    await page.get_by_role("button", name="Create project").click()
    await expect(page.get_by_role("status")).to_have_text(f"The project {name} is created.")
    await page.goto(f"/{person.username}/{name}/-/blob/main/README.md")
    await page.get_by_role("link", name="Edit", exact=True).click()
    await page.get_by_label("Content").fill("# Better\n")
    await page.get_by_label("Branch", exact=True).fill("better")
    await page.get_by_role("button", name="Commit").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("New merge request")
    await expect(page.get_by_label("Title")).to_have_value("Update README.md")
    await page.get_by_role("button", name="Create merge request").click()
    await page.get_by_label("Comment", exact=True).fill("I like it.")
    await page.get_by_role("button", name="Comment").click()
    await expect(page.locator(".note")).to_contain_text("I like it.")
    await page.get_by_role("button", name="Merge", exact=True).click()
    await expect(page.get_by_role("status")).to_have_text("It is merged.")
    await page.goto(f"/{person.username}/{name}/-/blob/main/README.md?plain=1")
    await expect(page.get_by_role("main")).to_contain_text("# Better")


async def test_a_double_click_makes_one_group(page: Page, person: Person) -> None:
    path = new_name("twice")
    await page.goto("/groups/new")
    await page.get_by_label("Group name").fill("Twice")
    await page.get_by_label("Path").fill(path)
    await page.get_by_role("button", name="Create group").dblclick()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Twice")
    assert page.url.endswith(f"/groups/{path}")
