"""Six tasks with the keyboard alone, in Chromium: what is focused is seen, comes in its order, and is not far away."""

from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import pytest
from playwright.async_api import Browser, Page, expect

from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, PASSWORD, new_session
from tests.support.ci import CiProject
from tests.support.forge import Forge, Person, new_name
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.runner import a_runner

#: Of Tab, until something is too far away to be found.
MOST_TABS = 40

#: In a page: what has the focus, how it is marked, and where it stands, in the document and on the screen.
FOCUSED = """
    () => {
        const each = document.activeElement
        const box = each.getBoundingClientRect(), style = getComputedStyle(each)
        const name = each.getAttribute('aria-label') ?? (each.labels?.[0] ?? each).textContent
        return {
            kind: each.localName,
            name: name.replace(/\\s+/g, ' ').trim(),
            is_marked: style.outlineStyle != 'none' && parseFloat(style.outlineWidth) >= 2,
            is_in_view: box.width > 0 && box.bottom > 0 && box.top < innerHeight
                && box.right > 0 && box.left < innerWidth,
            position: [...document.querySelectorAll('*')].indexOf(each),
            left: box.left, top: box.top + scrollY, right: box.right, bottom: box.bottom + scrollY,
        }
    }
"""


@attrs.frozen(kw_only=True)
class Focus:
    kind: str
    name: str
    is_marked: bool
    is_in_view: bool
    position: int
    left: float
    top: float
    right: float
    bottom: float

    def is_before(self, other: "Focus") -> bool:
        """Whether somebody who reads comes to this first: in the document, and not below or behind it on the screen."""
        is_behind = self.top >= other.bottom and self.left >= other.right
        return self.position < other.position and not is_behind


@attrs.define
class Keyboard:
    """Somebody without a mouse; `keys` counts what she presses beside the texts that she types."""

    page: Page
    keys: int = 0

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.keys += 1
            await self.page.keyboard.press(key)

    async def type(self, text: str) -> None:
        await self.page.keyboard.type(text)

    async def skip(self) -> None:
        """Past what all pages have above their content, on a page that was just opened."""
        await self.press("Tab")
        assert (await self.focus()).name == "Skip to the content"
        await self.press("Enter")

    async def reach(self, name: str, kind: str = "", *, key: str = "Tab") -> None:
        """Press Tab (or Shift+Tab) until what has that name has the focus; on the way each is seen, in its order."""
        before = None
        for _ in range(MOST_TABS):
            await self.press(key)
            now = await self.focus()
            assert now.is_marked, f"nobody sees that {now} has the focus"
            assert now.is_in_view, f"{now} is out of sight"
            if before is not None:
                first, second = (before, now) if key == "Tab" else (now, before)
                assert first.is_before(second), f"{second} comes before {first}"
            if now.name == name and kind in ("", now.kind):
                return
            before = now
        raise AssertionError(f"{name!r} is more than {MOST_TABS} keys away")

    async def follow(self, name: str, kind: str = "", *, key: str = "Tab") -> None:
        """Reach a link or a button, and press it."""
        await self.reach(name, kind, key=key)
        await self.submit()

    async def submit(self) -> None:
        """Press Enter, which leads to another page."""
        async with self.page.expect_navigation():
            await self.press("Enter")

    async def focus(self) -> Focus:
        return Focus(**await self.page.evaluate(FOCUSED))


@pytest.fixture
async def keyboard(chromium: Browser, page_forge: Forge) -> AsyncIterator[Keyboard]:
    context = await chromium.new_context(base_url=page_forge.base, viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    complaints = complaints_of(page)
    yield Keyboard(page)
    await context.close()
    assert complaints == []


@pytest.fixture
async def person(page_forge: Forge) -> Person:
    return await page_forge.user(password=PASSWORD)


@pytest.fixture
def open_signed_in(
    keyboard: Keyboard, page_forge: Forge, person: Person
) -> Callable[[str], Awaitable[Keyboard]]:
    """Opens a page for the person, who has signed in before."""

    async def open_page(path: str) -> Keyboard:
        cookie = await new_session(page_forge, person.id)
        await keyboard.page.context.add_cookies([{"name": COOKIE, "value": cookie, "url": page_forge.base}])
        await keyboard.page.goto(path)
        return keyboard

    return open_page


Opening = Callable[[str], Awaitable[Keyboard]]


async def test_signing_in_and_finding_a_project(
    keyboard: Keyboard, page_forge: Forge, person: Person
) -> None:
    project = await page_forge.project(person)
    await keyboard.page.goto("/")
    await keyboard.follow("Sign in")
    await keyboard.type(person.username)
    await keyboard.reach("Password")
    await keyboard.type(PASSWORD)
    await keyboard.submit()
    await keyboard.skip()
    await keyboard.reach("Name or path")
    await keyboard.type(project["path"])
    await keyboard.submit()
    await keyboard.follow(project["name_with_namespace"])
    await expect(keyboard.page.get_by_role("heading", level=1)).to_have_text(project["name"])
    assert keyboard.keys <= 22


async def test_making_a_project(open_signed_in: Opening, person: Person) -> None:
    keyboard, name = await open_signed_in("/"), new_name("keys")
    await keyboard.skip()
    await keyboard.follow("New project")
    await keyboard.type(name)
    await keyboard.submit()
    await expect(keyboard.page.get_by_role("status")).to_have_text(f"The project {name} is created.")
    assert keyboard.keys <= 8


async def test_writing_a_file_and_proposing_it(
    open_signed_in: Opening, page_forge: Forge, person: Person
) -> None:
    project = await new_project(page_forge, person)
    keyboard = await open_signed_in(f"/{project['path_with_namespace']}")
    await keyboard.skip()
    await keyboard.follow("New file")
    await keyboard.type("notes.md")
    await keyboard.reach("Content")
    await keyboard.type("# Notes")
    await keyboard.reach("Branch")
    await keyboard.type("notes")
    await keyboard.follow("Commit")
    await keyboard.skip()
    await keyboard.reach("Title")
    await keyboard.submit()
    await expect(keyboard.page.get_by_role("heading", level=1)).to_have_text("Add notes.md !1")
    await expect(keyboard.page.locator(".diff .added")).to_have_text("+# Notes")
    assert keyboard.keys <= 22


async def test_commenting_resolving_and_merging(
    open_signed_in: Opening, page_forge: Forge, person: Person
) -> None:
    project = await new_project(page_forge, person)
    await open_merge_request(person, project)
    keyboard = await open_signed_in(f"/{project['path_with_namespace']}/-/merge_requests/1")
    await keyboard.reach("Comment", "textarea", key="Shift+Tab")
    await keyboard.type("Why is that?")
    await keyboard.reach("Begin a thread, which has to be resolved")
    await keyboard.press("Space")
    await keyboard.follow("Comment", "button")
    await keyboard.follow("Resolve")
    await expect(keyboard.page.locator(".thread summary .badge")).to_contain_text("resolved")
    await keyboard.follow("Merge", "button", key="Shift+Tab")
    await expect(keyboard.page.get_by_role("status")).to_have_text("It is merged.")
    assert keyboard.keys <= 26


@pytest.fixture
async def project(page_forge: Forge, person: Person) -> CiProject:
    made = await page_forge.project(person, initialize_with_readme=True)
    return CiProject(page_forge, made["id"], made["path_with_namespace"], person)


async def test_running_a_pipeline_with_a_variable_and_reading_a_log(
    open_signed_in: Opening, page_forge: Forge, project: CiProject
) -> None:
    await project.commit("greet:\n  script: echo $GREETING\n", branch="main")
    runner = await a_runner(page_forge, project_id=project.id)
    keyboard = await open_signed_in(f"/{project.path}/-/pipelines")
    await keyboard.skip()
    await keyboard.follow("Run pipeline")
    await keyboard.skip()
    await keyboard.reach("Variables (optional)")
    await keyboard.type("GREETING=hello there")
    await keyboard.follow("Run pipeline")
    job = await runner.job()
    await job.log(f"$ echo {job.variables['GREETING']}\n".encode())
    await job.finish()
    await keyboard.skip()
    await keyboard.follow("Load again")
    await keyboard.skip()
    await keyboard.follow("greet")
    await expect(keyboard.page.locator("#log")).to_contain_text("echo hello there")
    assert keyboard.keys <= 26


async def test_making_a_mirror_and_syncing_it(open_signed_in: Opening, project: CiProject) -> None:
    url = "https://unreachable.invalid/copy.git"
    keyboard = await open_signed_in(f"/{project.path}/-/settings/repository")
    await keyboard.skip()
    await keyboard.reach("New mirror…")
    await keyboard.press("Enter")
    await keyboard.reach("Address of the target")
    await keyboard.type(url)
    await keyboard.submit()
    await keyboard.skip()
    await keyboard.follow(f"Sync now {url}")
    await expect(keyboard.page.get_by_role("status")).to_have_text("The mirror is pushed in a moment.")
    assert keyboard.keys <= 13
