"""The page of a job in a real Chromium: it follows the log of a running job, with scripts and without."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, expect

from tests.api_server.pages.ci.conftest import Scene, running
from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, new_session

BEGINNING = (
    b"first line\nsection_start:1700000000:build\r\x1b[0K\x1b[36;1mBuilding\x1b[0;m\n\x1b[31mred\x1b[0m\n"
)


async def signed_in(chromium: Browser, scene: Scene, **options: object) -> BrowserContext:
    """Return the state of a browser in which the developer is signed in."""
    base = scene.forge.base
    context = await chromium.new_context(base_url=base, viewport={"width": 800, "height": 400}, **options)  # type: ignore[arg-type]
    cookie = await new_session(scene.forge, scene.project.developer.id)
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": base}])
    return context


@pytest.fixture
async def page(chromium: Browser, scene: Scene) -> AsyncIterator[Page]:
    """A page in which any error in the browser (policies, errors, missing files) fails the test."""
    context = await signed_in(chromium, scene)
    opened = await context.new_page()
    complaints = complaints_of(opened)
    yield opened
    await context.close()
    assert complaints == []


async def _in_view(page: Page) -> bool:
    """Return whether the end of the log is in view."""
    return bool(
        await page.evaluate("document.getElementById('log-end').getBoundingClientRect().top <= innerHeight")
    )


async def _comes(page: Page, where: Locator, text: str) -> None:
    """Let the page's time pass, faster than real time, until the text appears."""
    async with asyncio.timeout(20):
        while not await where.count() or text not in (await where.text_content() or ""):
            await page.clock.run_for(500)


async def test_a_running_job_is_followed_to_its_end(page: Page, scene: Scene) -> None:
    job, path = await running(scene, "followed")
    log = BEGINNING
    await job.log(log)
    await page.clock.install()
    await page.goto(path)
    await expect(page.locator("#job").get_by_role("status")).to_have_text("▸ running")
    await page.get_by_role("link", name="Scroll to bottom").click()
    await expect(page.locator("#log .f1")).to_have_text("red")
    asked = []
    page.on("request", lambda request: asked.append(request.headers.get("range")))

    for piece in (
        b"half a li",
        b"ne\n10%\r20%",
        b"\r100%\nsection_end:1700000065:build\r\x1b[0K",
        b"\nafter\n" * 30,
    ):
        answer = await job.append(piece, len(log))
        assert answer.status == 202
        log += piece
        text = piece.decode().split("\r\x1b[0K")[-1].strip().split("\r")[-1].split("\n")[-1]
        if text:
            await _comes(page, page.locator("#log .row").last, text)
    await expect(page.locator("#log details .row")).to_have_text(["3red", "4half a line", "5100%"])
    await expect(page.locator("#log summary .took")).to_have_text("01:05")
    await expect(page.locator("#log > .row")).to_have_count(60)
    assert f"log={len(BEGINNING)}-" in asked
    assert await _in_view(page)  # it was in view, so it stays there

    await page.evaluate("scrollTo(0, 0)")
    await job.append(b"the last line\n", len(log))
    await _comes(page, page.locator("#log .row").last, "the last line")
    assert not await _in_view(page)  # a page that was scrolled up stays there
    await job.finish()
    await _comes(page, page.locator("#job").get_by_role("status"), "success")
    await _comes(page, page.locator("#log[data-done]"), "the last line")
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()
    live = await page.locator("#log").inner_html()
    await page.reload()
    assert await page.locator("#log").inner_html() == live  # the pieces together equal the whole


async def test_a_job_is_canceled_and_its_sections_folded_by_keyboard(page: Page, scene: Scene) -> None:
    job, path = await running(scene, "keyboard")
    await job.log(BEGINNING)
    await page.goto(path)
    await expect(page.get_by_text("red", exact=True)).to_be_visible()
    await page.locator("#log summary").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("red", exact=True)).to_be_hidden()
    await page.keyboard.press("Shift+Tab")  # to the link of the title's line
    await page.keyboard.press("Enter")
    assert page.url.endswith("#L2")
    await page.goto(f"{path}#L3")  # opens the section that contains it
    await page.reload()
    await expect(page.get_by_text("red", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Cancel").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#job").get_by_role("status")).to_contain_text("cancel")
    await expect(page.locator(".said")).to_contain_text("Job canceled.")


async def test_without_scripts_the_log_is_there_and_loads_again(chromium: Browser, scene: Scene) -> None:
    job, path = await running(scene, "plain")
    await job.log(BEGINNING)
    context = await signed_in(chromium, scene, java_script_enabled=False)
    page = await context.new_page()
    await page.goto(path)
    await expect(page.locator("#log .f1")).to_have_text("red")
    await page.locator("#log summary").click()
    await expect(page.get_by_text("red", exact=True)).to_be_hidden()
    await job.append(b"more\n", len(BEGINNING))
    await page.get_by_role("link", name="Refresh").click()
    await expect(page.locator("#log")).to_contain_text("more")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator("#job").get_by_role("status")).to_contain_text("cancel")
    await context.close()
