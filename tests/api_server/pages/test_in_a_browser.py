"""Pages in a real browser: on a phone, without scripts, only with the keyboard, and the number of clicks that tasks
take."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import pytest
from playwright.async_api import Browser, Locator, Page, ViewportSize, expect

from api_server.accounts import password_queries
from api_server.accounts import passwords as resets
from api_server.state.secrets import PASSWORD_RESET_TOKEN, digest, new_token
from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, PASSWORD, new_session, sign_in_link
from tests.support.ci import CiProject
from tests.support.forge import Forge, Person, new_name
from tests.support.invitations import invite, page_of, source_of
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.runner import Runner, a_runner

SMALL_SCREEN = {"width": 360, "height": 640}
SETTINGS = "/admin/application_settings/repository"


@pytest.fixture
async def page(chromium: Browser, page_forge: Forge) -> AsyncIterator[Page]:
    """A small window without scripts, which these pages do not have. Errors in the browser (policies, missing files)
    fail the test."""
    context = await chromium.new_context(
        base_url=page_forge.base, viewport=SMALL_SCREEN, java_script_enabled=False
    )
    opened = await context.new_page()
    complaints = complaints_of(opened)
    # leaving a page before its icon has been loaded aborts that request
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
    """Return whether the page fits without scrolling to the side."""
    return bool(await page.locator("html").evaluate(_FITS))


async def _invitation(forge: Forge, email: str) -> tuple[str, str]:
    """Return the paths of a project and of the page of an invitation to it."""
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
    await expect(page.get_by_role("status")).to_contain_text("Invitation declined.")
    assert (await page_forge.root.get(f"{source}/invitations")).body == []


async def test_a_forgotten_password_is_set_anew(page: Page, page_forge: Forge) -> None:
    person = await page_forge.user(password=PASSWORD)
    await page.goto("/-/sign_in")
    await page.get_by_role("link", name="Forgot your password?").click()
    await page.get_by_label("Email address of your account").fill(f"{new_name('nobody')}@example.org")
    assert await _fits(page)
    await page.get_by_role("button", name="Send password reset link").click()
    await expect(page.get_by_role("status")).to_contain_text("a link to reset the password has been sent")
    token = new_token(PASSWORD_RESET_TOKEN)
    async with page_forge.database.transaction() as transaction:
        await password_queries.keep(transaction, person.id, digest(token), transaction.now + resets.LIFETIME)
    await page.goto(f"/-/password/{token}")
    for label in ("New password", "Confirm new password"):
        await page.get_by_label(label, exact=True).fill("another password")
    assert await _fits(page)
    await page.get_by_role("button", name="Set password").click()
    await expect(page.get_by_role("status")).to_contain_text("Password changed.")
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
    await page.get_by_role("button", name="Create token").click()
    await expect(page.get_by_role("status")).to_contain_text("flpat-")
    await page.get_by_role("button", name="Revoke laptop").click()
    await expect(page.get_by_role("status")).to_have_text("Token laptop revoked.")
    await page.get_by_role("link", name="Password").click()
    await page.get_by_label("Current password").fill(PASSWORD)
    for label in ("New password", "Confirm new password"):
        await page.get_by_label(label, exact=True).fill("another password")
    await page.get_by_role("button", name="Change password").click()
    await expect(page.get_by_role("status")).to_contain_text("Password changed.")
    await page.get_by_role("link", name="Sessions").click()
    await expect(page.get_by_role("main")).to_contain_text("Chromium on Linux")


PHONE: ViewportSize = {"width": 390, "height": 740}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}


@attrs.define
class Walk:
    """A user with a mouse, whose clicks and filled fields are counted."""

    page: Page
    clicks: int = 0
    fields: int = 0

    async def click(self, name: str | re.Pattern[str], within: Locator | None = None) -> None:
        """Click the link, the button, or the summary of a form with that name."""
        where = within or self.page.locator("body")
        links, buttons = (
            where.get_by_role("link", name=name, exact=True),
            where.get_by_role("button", name=name),
        )
        opening = where.locator("summary", has_text=name)
        self.clicks += 1
        await links.or_(buttons).or_(opening).first.click()

    async def fill(self, label: str, text: str) -> None:
        self.fields += 1
        await self.page.get_by_label(label, exact=True).first.fill(text)

    async def switch(self, label: str) -> None:
        self.clicks += 1
        await self.page.get_by_label(label).first.click()

    async def go_to_project(self, name: str) -> None:
        await self.click("Projects")
        await self.click(re.compile(rf"\W {name}$"))

    async def expect_said(self, text: str) -> None:
        await expect(self.page.get_by_role("status").first).to_have_text(text)

    async def until(self, text: str) -> None:
        """Load the page again until it contains the text, as people do who wait."""
        async with asyncio.timeout(60):
            while not await self.page.get_by_role("main").get_by_text(text).count():
                await asyncio.sleep(0.2)
                await self.page.reload()


@pytest.mark.parametrize("scripts", [False, True], ids=["without scripts on a phone", "with scripts"])
async def test_from_a_link_to_a_merged_change_a_green_pipeline_and_a_mirror(
    chromium: Browser, page_forge: Forge, scripts: bool
) -> None:
    person, name = await page_forge.user(), new_name("walk")
    context = await chromium.new_context(
        base_url=page_forge.base, viewport=DESKTOP if scripts else PHONE, java_script_enabled=scripts
    )
    walk = Walk(page := await context.new_page())
    complaints = complaints_of(page)
    async with page_forge.instance_settings(allow_local_requests_from_web_hooks_and_services=True):
        await page.goto(await sign_in_link(page_forge, person))
        await walk.click(f"Sign in as {person.username}")
        await _propose_a_ci_file(walk, name)
        runner = await _create_a_runner(walk, page_forge)
        await _merge_when_it_is_green(walk, name, runner)
        await _mirror(walk, name, person)
    await context.close()
    assert complaints == []
    assert walk.clicks <= 29
    assert walk.fields <= 7


async def _propose_a_ci_file(walk: Walk, name: str) -> None:
    await walk.click("New project")
    await walk.fill("Project name", name)
    await walk.click("Create project")
    await walk.expect_said(f"Project {name} created.")
    await walk.click("Set up CI/CD")
    await walk.fill("Branch", "add-ci")
    await walk.click("Commit changes")
    await walk.expect_said("Your changes have been committed.")
    await walk.click("Create merge request")


async def _create_a_runner(walk: Walk, forge: Forge) -> Runner:
    """The pipeline's page says what is missing, and the settings how to start a runner."""
    await walk.until("pending")
    await walk.click(re.compile(r"Pipeline \d+"), walk.page.locator("dl.facts"))
    await expect(walk.page.get_by_role("main")).to_contain_text("The project has no runners.")
    await walk.click("Project runners")
    await walk.click("New runner")
    await walk.click("Create runner")
    commands = await walk.page.get_by_label("Commands").inner_text()
    said = re.fullmatch(
        r"gitlab-runner register --url (\S+) --token (\S+)\ngitlab-runner run", commands.strip()
    )
    assert said is not None, commands
    assert said[1] == forge.base
    return Runner(forge, 0, said[2])


async def _merge_when_it_is_green(walk: Walk, name: str, runner: Runner) -> None:
    await walk.click("Merge requests", walk.page.get_by_label("Project", exact=True))
    await walk.click("Add .gitlab-ci.yml")
    await walk.click("Merge when the pipeline succeeds")
    await walk.expect_said("Set to auto-merge.")
    for _ in ("build", "test"):
        job = await runner.job()
        await job.log(b"$ it works\n")
        await job.finish()
    await walk.until("Merged by")
    await expect(walk.page.locator("dl.facts .badge.good")).to_contain_text("success")


async def _mirror(walk: Walk, name: str, person: Person) -> None:
    """The target is a repository of the same service: the empty project shows its address, and where to create a
    token."""
    await walk.click("Projects")
    await walk.click("New project")
    await walk.fill("Project name", f"{name}-copy")
    await walk.switch("Initialize repository with a README")
    await walk.click("Create project")
    url = (await walk.page.locator("dl.facts code").inner_text()).removeprefix("git clone ")
    await walk.click("personal access token")
    await walk.fill("Name", "mirror")
    await walk.switch("write_repository")
    await walk.click("Create token")
    token = await walk.page.locator("code.token").inner_text()
    await walk.go_to_project(name)
    await walk.click("Settings")
    await walk.click("Repository")
    await walk.click("New mirror")
    await walk.fill("Git repository URL", url)
    await walk.fill("Username", person.username)
    await walk.fill("Password or token", token)
    await walk.click("Create mirror")
    await walk.click("Sync now")
    await walk.until("finished")
    await walk.go_to_project(f"{name}-copy")
    await expect(walk.page.get_by_role("main")).to_contain_text(".gitlab-ci.yml")


async def test_a_double_click_makes_one_group(chromium: Browser, forge: Forge) -> None:
    person, path = await forge.user(), new_name("twice")
    context = await chromium.new_context(base_url=forge.base, java_script_enabled=False)
    cookie = await new_session(forge, person.id)
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": forge.base}])
    page = await context.new_page()
    await page.goto("/groups/new")
    await page.get_by_label("Group name").fill("Twice")
    await page.get_by_label("Path").fill(path)
    await page.get_by_role("button", name="Create group").dblclick()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Twice")
    assert page.url.endswith(f"/groups/{path}")
    await context.close()


#: Maximum number of presses of Tab; elements further away count as not reachable.
MOST_TABS = 40

#: JavaScript: the focused element, how it is marked, and its place in the document and on the screen.
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
#: JavaScript: whether the browser has focused the field that asks for it, if there is one.
AUTOFOCUSED = """
    () => {
        const field = document.querySelector('[autofocus]')
        return field === null || field === document.activeElement
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
        """Return whether a reader comes to this first: it is earlier in the document, and not below and right of
        the other on the screen."""
        is_behind = self.top >= other.bottom and self.left >= other.right
        return self.position < other.position and not is_behind


@attrs.define
class Keyboard:
    """A user without a mouse; `keys` counts the keys that she presses, except texts that she types."""

    page: Page
    keys: int = 0

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.keys += 1
            await self.page.keyboard.press(key)

    async def type(self, text: str) -> None:
        await self.page.keyboard.type(text)

    async def skip(self) -> None:
        """Skip the content that all pages have at the top, on a page that was just opened."""
        await self.press("Tab")
        assert (await self.focus()).name == "Skip to content"
        await self.press("Enter")

    async def reach(self, name: str, kind: str = "", *, key: str = "Tab") -> None:
        """Press Tab (or Shift+Tab) until the element with that name has the focus; each element on the way has to be
        visible and in order."""
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
        """Press Enter, which leads to another page, and wait for the field that gets the focus there."""
        async with self.page.expect_navigation():
            await self.press("Enter")
        await self.page.wait_for_function(AUTOFOCUSED)

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
    """Open a page for a person who has signed in before."""

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
    await expect(keyboard.page.get_by_role("status")).to_have_text(f"Project {name} created.")
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
    await keyboard.follow("Commit changes")
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
    await keyboard.reach("Start thread")
    await keyboard.press("Space")
    await keyboard.follow("Comment", "button")
    await keyboard.follow("Resolve thread")
    await expect(keyboard.page.locator(".thread summary .badge")).to_contain_text("resolved")
    await keyboard.follow("Merge", "button", key="Shift+Tab")
    await expect(keyboard.page.get_by_role("status")).to_have_text("Merge request merged.")
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
    await keyboard.follow("Refresh")
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
    await keyboard.reach("Git repository URL")
    await keyboard.type(url)
    await keyboard.submit()
    await keyboard.skip()
    await keyboard.follow(f"Sync now {url}")
    await expect(keyboard.page.get_by_role("status")).to_have_text("The mirror will be updated shortly.")
    assert keyboard.keys <= 13
