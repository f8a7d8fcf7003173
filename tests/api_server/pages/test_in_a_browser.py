"""The pages in a real Chromium: they are found by their labels, work without scripts, and fit a small screen."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from api_server.accounts import password_queries
from api_server.accounts import passwords as resets
from api_server.state.secrets import PASSWORD_RESET_TOKEN, digest, new_token
from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, PASSWORD, new_session
from tests.support.forge import Forge, Person, new_name
from tests.support.invitations import invite, page_of, source_of

SMALL_SCREEN = {"width": 360, "height": 640}
SETTINGS = "/admin/application_settings/repository"


@pytest.fixture
async def page(chromium: Browser, page_forge: Forge) -> AsyncIterator[Page]:
    """A small window without scripts: these pages have none. Whatever the browser complains of (policies, files that
    are missing) fails the test."""
    context = await chromium.new_context(
        base_url=page_forge.base, viewport=SMALL_SCREEN, java_script_enabled=False
    )
    opened = await context.new_page()
    complaints = complaints_of(opened)
    # a page that is left before its icon has come gives it up
    opened.on(
        "requestfailed",
        lambda failed: failed.failure == "net::ERR_ABORTED" or complaints.append(failed.url),
    )
    yield opened
    await context.close()
    assert complaints == []


_FITS = """
    html => [html, ...html.querySelectorAll('body, body *')]
        .every(each => each.getBoundingClientRect().right <= html.clientWidth && each.scrollWidth <= html.clientWidth)
"""


async def _sign_in(page: Page, person: Person, password: str = PASSWORD) -> None:
    await page.get_by_label("Username or email address").fill(person.username)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in").click()


async def _fits(page: Page) -> bool:
    """Whether nothing has to be scrolled to the side."""
    return bool(await page.locator("html").evaluate(_FITS))


async def _invitation(forge: Forge, email: str) -> tuple[str, str]:
    """Paths of a project and of the page of an invitation to it."""
    source = await source_of(forge, "projects")
    answer = await invite(forge.root, source, email=email)
    assert answer.body == {"status": "success"}
    return source, await page_of(forge, email)


async def test_an_invited_person_signs_in_and_accepts(page: Page, page_forge: Forge) -> None:
    person = await page_forge.user(password=PASSWORD, skip_confirmation=False)
    source, link = await _invitation(page_forge, person.email)
    async with page_forge.database.transaction() as transaction:
        await transaction.run("UPDATE users SET confirmed_at = %(now)s WHERE id = %(id)s", id=person.id)
    await page.goto(link)
    await expect(page.get_by_role("main")).to_contain_text(f"Administrator invited {person.email} to")
    assert await _fits(page)
    await page.get_by_role("main").get_by_role("link", name="Sign in").click()
    assert await _fits(page)
    await _sign_in(page, person)
    await page.get_by_role("button", name="Accept").click()
    await expect(page.get_by_role("status")).to_contain_text("Welcome to the")
    assert (await page_forge.root.get(f"{source}/members/{person.id}")).body["access_level"] == 30
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_an_invitation_is_declined_without_an_account(page: Page, page_forge: Forge) -> None:
    source, link = await _invitation(page_forge, f"{new_name('somebody')}@example.org")
    await page.goto(f"{link}#decline")
    await page.get_by_role("button", name="Decline").click()
    await expect(page.get_by_role("status")).to_contain_text("You have declined the invitation.")
    assert (await page_forge.root.get(f"{source}/invitations")).body == []


async def test_a_forgotten_password_is_set_anew(page: Page, page_forge: Forge) -> None:
    person = await page_forge.user(password=PASSWORD)
    await page.goto("/-/sign_in")
    await page.get_by_role("link", name="Forgot your password?").click()
    await page.get_by_label("Email address of your account").fill(f"{new_name('nobody')}@example.org")
    assert await _fits(page)
    await page.get_by_role("button", name="Send the link").click()
    await expect(page.get_by_role("status")).to_contain_text("is on its way")
    token = new_token(PASSWORD_RESET_TOKEN)
    async with page_forge.database.transaction() as transaction:
        await password_queries.keep(transaction, person.id, digest(token), transaction.now + resets.LIFETIME)
    await page.goto(f"/-/password/{token}")
    for label in ("New password", "New password, once more"):
        await page.get_by_label(label, exact=True).fill("another password")
    assert await _fits(page)
    await page.get_by_role("button", name="Set the password").click()
    await expect(page.get_by_role("status")).to_contain_text("Your password has been changed.")
    await _sign_in(page, person, "another password")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Your projects")


async def test_the_browser_itself_refuses_what_is_no_url(chromium: Browser, page_forge: Forge) -> None:
    boss = await page_forge.user(admin=True, password=PASSWORD)
    page = await chromium.new_page(base_url=page_forge.base)
    await page.goto(SETTINGS)
    await _sign_in(page, boss)
    field = page.get_by_label("External storage URL")
    await field.fill("no url")
    await page.get_by_role("button", name="Save").click()
    assert await field.evaluate("field => field.validity.typeMismatch")
    await page.close()


async def test_a_wrong_password_is_told_beside_the_form(chromium: Browser, page_forge: Forge) -> None:
    person = await page_forge.user(password=PASSWORD)
    page = await chromium.new_page(base_url=page_forge.base)
    await page.goto("/-/sign_in")
    await _sign_in(page, person, "wrong")
    await expect(page.get_by_role("alert")).to_have_text("Invalid login or password.")
    await expect(page.get_by_label("Username or email address")).to_have_value(person.username)
    await page.close()


async def test_somebody_looks_after_her_own_account(page: Page, page_forge: Forge) -> None:
    person = await page_forge.user(password=PASSWORD)
    cookie = await new_session(page_forge, person.id)
    await page.context.add_cookies([{"name": COOKIE, "value": cookie, "url": page_forge.base}])
    await page.goto("/-/user_settings/personal_access_tokens")
    await page.get_by_label("Name").fill("laptop")
    await page.get_by_label("read_repository").check()
    await page.get_by_role("button", name="Make the token").click()
    await expect(page.get_by_role("status")).to_contain_text("flpat-")
    await page.get_by_role("button", name="Revoke laptop").click()
    await expect(page.get_by_role("status")).to_have_text("The token laptop is revoked.")
    await page.get_by_role("link", name="Password").click()
    await page.get_by_label("Present password").fill(PASSWORD)
    for label in ("New password", "New password, once more"):
        await page.get_by_label(label, exact=True).fill("another password")
    await page.get_by_role("button", name="Change the password").click()
    await expect(page.get_by_role("status")).to_contain_text("Your password is changed.")
    await page.get_by_role("link", name="Sessions").click()
    await expect(page.get_by_role("main")).to_contain_text("Chromium on Linux")
