"""Every page at two widths and in two colour schemes is accessible and not wider than the screen; `/api/docs`;
templates."""

import asyncio
import itertools
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jinja2
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, Response, ViewportSize, expect

from api_server.accounts.path_rules import FULL_PATH
from api_server.description.parameters import operation_id
from api_server.pages import gitlab_addresses
from api_server.pages.page import Templates
from api_server.pages.site import PAGES
from tests.api_server.pages.conftest import complaints_of
from tests.api_server.pages.looks import LOOKS, SCENES, Look, Things, Who
from tests.support.browser import COOKIE, new_session
from tests.support.checkout import CHECKOUT
from tests.support.forge import Forge, running_forge
from tests.support.route_table import ROUTES

SMALL: ViewportSize = {"width": 390, "height": 740}
LARGE: ViewportSize = {"width": 1280, "height": 900}
FOLDER = os.environ.get("SCREENSHOTS")
#: Combinations that are used only for the pictures.
OTHERS: list[tuple[ViewportSize, Literal["light", "dark"]]] = (
    [(SMALL, "dark"), (LARGE, "light")] if FOLDER else []
)
#: Levels of axe's findings that count; in the dark scheme, only contrast differs.
SERIOUS = ("serious", "critical")
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
    "preload": False,
}
CONTRAST = {"runOnly": ["color-contrast"], "resultTypes": ["violations"], "preload": False}
#: JavaScript: how far the page can be scrolled to the side.
TO_THE_SIDE = "document.scrollingElement.scrollWidth - document.documentElement.clientWidth"
#: JavaScript: remove rows of tables, which are alike, because axe takes long for each.
FEW_ROWS = "[...document.querySelectorAll('tbody > tr:nth-child(n + 5)')].forEach(row => row.remove())"
#: JavaScript: the number of tables that a large screen does not show completely.
CUT_OFF = """
    [...document.querySelectorAll('.wide:not(.charts *)')].filter(each => each.scrollWidth > each.clientWidth).length
"""
HEADINGS = "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(each => Number(each.tagName[1]))"

#: JavaScript: replace dates, which are several fields for the keyboard.
NO_DATES = "document.querySelectorAll('input[type=date]').forEach(each => each.type = 'text')"
#: JavaScript: elements that can be used with the keyboard, the focused one, and how it is marked.
USABLE = """
    [...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex]')]
        .filter(each => each.tabIndex >= 0 && each.type != 'hidden' && each.checkVisibility())
        .map(each => each.textContent.trim().slice(0, 40) || each.name)
"""
FOCUSED = """
    (() => {
        const each = document.activeElement
        return {
            name: each.textContent.trim().slice(0, 40) || each.name,
            outline: getComputedStyle(each).outlineStyle,
        }
    })()
"""


#: Addresses that answer with data, and those with tests of their own.
NO_PAGES = {
    "/{project}/-/images/{rest:.+}", "/{project}/-/jobs/{id}/log", "/{project}/-/jobs/{id}/raw",
    "/{project}/-/jobs/{id}/artifacts/download", "/{project}/-/jobs/{id}/artifacts/raw/{path:.+}",
    "/{project}/-/jobs/{id}/artifacts/file/{path:.+}", "/{project}/-/audit_events/export",
    f"/groups/{{group:{FULL_PATH}}}/-/audit_events/export", "/admin/audit_events/export", "/api/docs",
    "/{project}/-/tree", "/{project}/-/commits",
}  # fmt: skip


def test_every_page_is_looked_at() -> None:
    """Every declared page is in the list, except those that only redirect."""
    looked_at = {re.sub(r"\{\w+\}", "1", look.path.partition("?")[0]) for look in LOOKS}
    unseen = {
        route.path
        for declared in (pages for pages in PAGES if pages is not gitlab_addresses.pages)
        for route in declared.routes
        if route.method == "GET" and not any(_pattern(route.path).fullmatch(path) for path in looked_at)
    }
    assert unseen == NO_PAGES | {"/{project}/-/jobs/{id}/artifacts/browse/{path:.*}"}


def _pattern(path: str) -> re.Pattern[str]:
    """Return a regular expression for a path as pages declare it."""
    parameter = re.compile(r"\{\w+(?::((?:[^{}]|\{[^{}]*\})*))?\}")
    return re.compile(parameter.sub(lambda found: found[1] or "[^/]+", path))


def test_only_users_and_tokens_have_a_state() -> None:
    """Everything else has a status, as on GitLab's pages."""
    pages = CHECKOUT / "api_server/pages/templates"
    heads = re.compile(r'>State<|choose\("State"')
    with_state = {
        str(file.relative_to(pages)) for file in pages.rglob("*.html") if heads.search(file.read_text())
    }
    assert with_state == {"admin/tokens.html", "admin/users.html"}


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Forge, Things]]:
    """A server with the content of all pages."""
    async with running_forge(new_database(), tmp_path_factory.mktemp("looks")) as forge:
        things: Things = {}
        for make in SCENES:
            await make(forge, things)
        yield forge, things


async def signed_in(
    chromium: Browser, scene: tuple[Forge, Things], who: Who, *, java_script_enabled: bool = True
) -> BrowserContext:
    """Open a browser in which that person is signed in."""
    forge, things = scene
    context = await chromium.new_context(
        base_url=forge.base,
        viewport=SMALL,
        reduced_motion="reduce",
        java_script_enabled=java_script_enabled,
    )
    if who != "stranger":
        cookie = await new_session(forge, things[f"_{who}"].id)
        await context.add_cookies([{"name": COOKIE, "value": cookie, "url": forge.base}])
    return context


@pytest.mark.parametrize(("who", "part"), [("stranger", 0), ("owner", 0), ("owner", 1), ("boss", 0)])
async def test_every_page_is_readable_by_everybody(
    chromium: Browser, scene: tuple[Forge, Things], who: Who, part: int
) -> None:
    context, things = await signed_in(chromium, scene, who), scene[1]
    await context.add_init_script(Axe().axe_script)
    page = await context.new_page()
    complaints = complaints_of(page)
    problems = []
    looks = [look for look in LOOKS if look.who == who]
    for look in looks[part::2] if who == "owner" else looks:
        path = look.path.format(**things)
        complaints.clear()
        answer = await page.goto(path)
        if look.refused:
            path += " refused"
            answer = await _send(page, look.refused.format(**things))
        assert answer is not None
        if answer.status != look.status:
            problems.append(f"{path}: {answer.status}")
        problems += [f"{path}: {problem}" async for problem in _problems(page, look)]
        problems += [f"{path}: {text}" for text in complaints if f"status of {look.status}" not in text]
    await context.close()
    assert problems == []


@pytest.mark.parametrize("who", ["stranger", "owner", "boss"])
async def test_every_page_fits_without_scripts(
    chromium: Browser, scene: tuple[Forge, Things], who: Who
) -> None:
    context, things = await signed_in(chromium, scene, who, java_script_enabled=False), scene[1]
    page = await context.new_page()
    problems, sizes = [], [SMALL, LARGE]
    for look in [look for look in LOOKS if look.who == who and not look.refused]:
        path = look.path.format(**things)
        answer = await page.goto(path)
        problems += [] if answer is not None and answer.status == look.status else [f"{path}: {answer}"]
        for size in sizes:
            await page.set_viewport_size(size)
            if (sideways := await page.evaluate(TO_THE_SIDE)) > 0:
                problems.append(f"{path}: {sideways} pixels too wide at {size['width']}")
        sizes.reverse()  # the next page begins with the size at which this one ends
    await context.close()
    assert problems == []


async def _send(page: Page, action: str) -> Response | None:
    """Send a form of the current page, without the browser's validation of its fields."""
    async with page.expect_navigation() as answered:
        await page.locator(f'form[action="{action}"]').evaluate("form => form.submit()")
    return await answered.value


async def _problems(page: Page, look: Look) -> AsyncIterator[str]:
    """Yield descriptions of the problems of the current page, which is small and light before and after."""
    for size, scheme in ((SMALL, "light"), *OTHERS, (LARGE, "dark")):
        await _set(page, size, scheme)
        if (sideways := await page.evaluate(TO_THE_SIDE)) > 0:
            yield f"{sideways} pixels too wide at {size['width']}"
        if size == LARGE and await page.evaluate(CUT_OFF):
            yield "a table is cut off"
        await _leave_picture(page, look, f"{size['width']}-{scheme}")
    await page.evaluate(FEW_ROWS)
    for problem in await _found_by_axe(page, CONTRAST):
        yield f"in the dark {problem}"
    await _set(page, SMALL, "light")
    for problem in [*await _found_by_axe(page, RULES), *_out_of_order(await page.evaluate(HEADINGS))]:
        yield problem


async def _set(page: Page, size: ViewportSize, scheme: Literal["light", "dark"]) -> None:
    await page.set_viewport_size(size)
    await page.emulate_media(color_scheme=scheme)


async def _found_by_axe(page: Page, options: dict[str, Any]) -> list[str]:
    found = (await page.evaluate("options => axe.run(options)", options))["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in SERIOUS]


def _out_of_order(levels: list[int]) -> Iterator[str]:
    """Yield a problem if there is not exactly one first heading, or a heading skips a level."""
    if levels.count(1) != 1:
        yield f"{levels.count(1)} first headings"
    for before, after in itertools.pairwise(levels):
        if after > before + 1:
            yield f"a heading of level {after} below one of {before}"


async def _leave_picture(page: Page, look: Look, kind: str) -> None:
    if FOLDER:
        name = re.sub(r"[^\w.-]+", "_", f"{look.who}{look.path}{'-refused' if look.refused else ''}")[:100]
        await page.screenshot(path=Path(FOLDER) / f"{name}-{kind}.png", full_page=True)


async def test_tab_reaches_everything_in_its_order(chromium: Browser, scene: tuple[Forge, Things]) -> None:
    """The first one skips the content that all pages have; then all usable elements follow, each with a visible
    focus."""
    context = await signed_in(chromium, scene, "owner")
    page = await context.new_page()
    for path in ("/{project}", "/-/user_settings/personal_access_tokens"):
        await page.goto(path.format(**scene[1]))
        await page.evaluate(NO_DATES)
        usable = await page.evaluate(USABLE)
        reached = []
        for _ in usable:
            await page.keyboard.press("Tab")
            reached.append(await page.evaluate(FOCUSED))
        assert [each["name"] for each in reached] == usable
        assert [each["name"] for each in reached if each["outline"] == "none"] == []
        await page.goto(path.format(**scene[1]))
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "content"
    await context.close()


#: JavaScript: whether our rules for plain elements affect Swagger UI.
OUR_RULES = """
    (() => {
        const version = getComputedStyle(document.querySelector('#api-description pre.version'))
        const text = getComputedStyle(document.querySelector('#api-description .markdown p, .renderedMarkdown p'))
        return {border: version.borderTopWidth, padding: version.paddingLeft, width: text.maxWidth}
    })()
"""
#: Milliseconds: Swagger UI takes long on a busy machine.
TIMEOUT = 90_000


@pytest.fixture
async def docs(chromium: Browser, forge: Forge, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """The page. Errors in the browser (policies, missing files) and requests to other hosts fail the test."""
    context = await chromium.new_context(base_url=forge.base, java_script_enabled=request.param)
    context.set_default_timeout(TIMEOUT)
    opened = await context.new_page()
    complaints = complaints_of(opened)
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
    assert await docs.evaluate(OUR_RULES) == {"border": "0px", "padding": "0px", "width": "none"}
    await docs.get_by_role("button", name="Authorize").click()
    await docs.get_by_label("Value:").first.fill(person.token)
    await docs.get_by_role("button", name="Apply credentials").first.click()
    await docs.get_by_role("button", name="Close").first.click()
    await docs.locator("#operations-tag-users").click()
    shown = docs.locator("#operations-users-get_current_user")
    await shown.locator(".opblock-summary").click()
    await shown.get_by_role("button", name="Execute").click()
    await expect(shown.locator(".live-responses-table")).to_contain_text(
        f'"username": "{person.username}"', timeout=TIMEOUT
    )
    assert await docs.evaluate("localStorage.length + sessionStorage.length") == 0  # no token is stored
    assert "get_current_user" in {operation_id(route) for route in ROUTES}


async def test_everybody_can_read_the_list(chromium: Browser, forge: Forge) -> None:
    """Swagger UI's own elements are not judged."""
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


async def test_templates_are_compiled_in_a_thread_for_the_first_page_and_once_for_all() -> None:
    threads: list[threading.Thread] = []

    class Loader(jinja2.DictLoader):
        def get_source(self, environment: jinja2.Environment, template: str):
            threads.append(threading.current_thread())
            return super().get_source(environment, template)

    sources = dict.fromkeys(("one.html", "two.html", "mail.txt"), "<p>{{ text }}</p>")
    templates = Templates(jinja2.Environment(loader=Loader(sources)))
    assert threads == []
    first = asyncio.create_task(templates.compiled())
    await asyncio.sleep(0)
    first.cancel()  # the first visitor leaves; others wait for the same
    await asyncio.gather(templates.compiled(), templates.compiled())
    await templates.compiled()
    assert len(threads) == 2
    assert threading.main_thread() not in threads
