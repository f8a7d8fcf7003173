"""An administrator at work in a real Chromium: everything works without scripts, and with them the overview stays up
to date."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, StorageState, expect

from api_server.state.queue import enqueue
from tests.api_server.pages.admin.conftest import STORAGE_TOKEN, Scene
from tests.api_server.pages.conftest import complaints_of
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.support.browser import PASSWORD
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.waiting import until

SMALL = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
async def signed_in(chromium: Browser, scene: Scene) -> StorageState:
    """An administrator's cookies: she has opened /admin, and had to sign in."""
    context = await chromium.new_context(base_url=scene.forge.base, java_script_enabled=False)
    page = await context.new_page()
    await page.goto("/admin")
    await page.get_by_label("Username or email address").fill(scene.boss.username)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Admin area")
    state = await context.storage_state()
    await context.close()
    return state


@pytest.fixture(params=[False], ids=["without scripts"])
async def page(
    chromium: Browser, scene: Scene, signed_in: StorageState, request: pytest.FixtureRequest
) -> AsyncIterator[Page]:
    """The overview on a small screen. Errors in the browser fail the test, except those that the test causes."""
    context = await chromium.new_context(
        base_url=scene.forge.base, viewport=SMALL, java_script_enabled=request.param, storage_state=signed_in
    )
    opened = await context.new_page()
    complaints = complaints_of(opened)
    await opened.clock.install()
    await opened.goto("/admin")
    yield opened
    await context.close()
    assert [text for text in complaints if "status of 503" not in text] == []


with_scripts = pytest.mark.parametrize("page", [True], ids=["with scripts"], indirect=True)


async def _go(page: Page, section: str) -> None:
    await (
        page.get_by_role("navigation", name="Admin area")
        .get_by_role("link", name=section, exact=True)
        .click()
    )


async def test_the_external_storage_is_set_and_its_button_pressed(page: Page, scene: Scene) -> None:
    await scene.forge.project(visibility="public", initialize_with_readme=True)
    await _go(page, "External storage")
    await page.get_by_label("External storage URL").fill(scene.edge)
    await page.get_by_label("External storage authentication token").fill(STORAGE_TOKEN)
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_have_text("Settings saved.")
    await page.get_by_role("button", name="Check the storage").click()
    findings = page.locator(".finding")
    await expect(findings).to_have_count(5)
    for finding in await findings.all():
        await expect(finding).to_contain_text("passed")
    await expect(findings.nth(3)).to_contain_text("Cache-Status: forgelet-edge; hit; ttl=")
    await page.locator("summary", has_text="Purge everything").click()
    await page.get_by_role("button", name="Purge everything").click()
    await expect(page.get_by_role("status")).to_contain_text("Purged: ")


async def test_a_delivery_is_sent_again(page: Page, scene: Scene) -> None:
    alice = await scene.forge.user("alice")
    project = await new_project(scene.forge, alice)
    settings = {"outbound_local_requests_whitelist": ["127.0.0.1"]}
    assert (await scene.forge.root.put("/application/settings", settings)).status == 200
    async with running_receiver() as receiver:
        receiver.answers = [answer(204)]
        check = {"name": "Quality", "external_url": receiver.url}
        made = await alice.api.post(f"/projects/{project['id']}/external_status_checks", check)
        assert made.status == 201, made
        await open_merge_request(alice, project)
        await until(lambda: receiver.received)
        await _go(page, "Deliveries")
        await page.get_by_role("button", name="Redeliver").first.click()
        await expect(page.get_by_role("status")).to_have_text("The delivery is sent again.")
        await until(lambda: len(receiver.received) == 2)
    first, second = (one.headers["webhook-id"] for one in receiver.received)
    assert first == second
    await page.get_by_role("link", name=re.compile(r"No\. \d+")).first.click()
    await expect(page.get_by_role("heading", level=2).first).to_have_text("Attempts")


async def test_a_token_is_revoked(page: Page, scene: Scene) -> None:
    clerk = await scene.forge.user("clerk")
    await _go(page, "Users")
    await page.get_by_label("Name, username or address").fill(clerk.email)
    await page.get_by_role("button", name="Show").click()
    await page.get_by_role("link", name=f"Tokens of {clerk.username}").click()
    await page.get_by_text("Revoke…").click()
    await page.get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("status")).to_have_text("The token is revoked: it opens nothing any more.")
    assert (await clerk.api.get("/user")).status == 401


async def _fail_for_good(scene: Scene, task: str) -> None:
    """Queue a task of that name, which is unknown."""
    async with scene.forge.database.transaction() as transaction:
        await enqueue(transaction, task)


async def test_a_task_is_tried_again_and_removed(page: Page, scene: Scene) -> None:
    await _fail_for_good(scene, "of_another_version")
    await _go(page, "Background tasks")
    task = page.get_by_role("row", name="of_another_version")
    while not await task.count():  # until a worker has tried it
        await page.reload()
    await task.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("status")).to_contain_text("(of_another_version) is tried again.")
    while not await task.count():
        await page.reload()
    await task.get_by_text("Remove…").click()
    await task.get_by_role("button", name="Remove").click()
    await expect(page.get_by_role("status")).to_contain_text("(of_another_version) is removed.")
    await expect(task).to_have_count(0)


async def _height(page: Page) -> float:
    """Return the distance of the charts' heading from the top of the screen, in pixels."""
    box = await page.locator("#history-title").bounding_box()
    assert box is not None
    return box["y"]


async def _look_again(page: Page) -> None:
    """Let the page's clock go on until the page has been updated once more, which happens within five seconds."""
    async with page.expect_response("**/admin"):
        await page.clock.fast_forward(5_000)


@with_scripts
async def test_a_new_failure_appears_by_itself_and_the_readers_place_stays(page: Page, scene: Scene) -> None:
    chart = page.get_by_text("As a table: Jobs by state")
    if await chart.count():
        await chart.click()
    await page.evaluate("scrollTo(0, 300)")
    place = await _height(page)
    await _fail_for_good(scene, "of_a_version_to_come")
    failure = page.locator("#failures").get_by_text("of_a_version_to_come")
    while not await failure.count():  # until a worker has tried it
        await _look_again(page)
    assert abs(await _height(page) - place) < 2
    if await chart.count():
        assert await page.locator("#chart-1 details").get_attribute("open") is not None
    await page.get_by_role("link", name="of_a_version_to_come").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Background tasks")


@with_scripts
async def test_it_is_said_when_the_overview_cannot_be_kept_true(page: Page) -> None:
    await page.context.route("**/admin*", lambda route: route.fulfill(status=503, body="no"))
    await _look_again(page)
    await expect(page.get_by_role("alert")).to_contain_text("cannot be kept up to date")
    await page.context.unroute("**/admin*")
    await _look_again(page)
    await expect(page.get_by_role("alert")).to_have_count(0)
