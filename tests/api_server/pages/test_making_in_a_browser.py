"""From a link that signs in to a merged change, a green pipeline and a mirror, in Chromium; and a double click.

Nothing but what the pages show is used: addresses, names and tokens are read there.
"""

import asyncio
import re

import attrs
import pytest
from playwright.async_api import Browser, Locator, Page, ViewportSize, expect

from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, new_session, sign_in_link
from tests.support.forge import Forge, Person, new_name
from tests.support.runner import Runner

PHONE: ViewportSize = {"width": 390, "height": 740}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}


@attrs.define
class Walk:
    """Somebody with a mouse, whose clicks and filled fields are counted."""

    page: Page
    clicks: int = 0
    fields: int = 0

    async def click(self, name: str | re.Pattern[str], within: Locator | None = None) -> None:
        """What has that name: a link, a button, or what opens a form."""
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
        """Load the page again until it says that, as people do who wait."""
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
    await walk.expect_said(f"The project {name} is created.")
    await walk.click("Set up CI/CD")
    await walk.fill("Branch", "add-ci")
    await walk.click("Commit")
    await walk.expect_said("The commit is made.")
    await walk.click("Create merge request")


async def _create_a_runner(walk: Walk, forge: Forge) -> Runner:
    """The pipeline's page says what is missing, and the settings how to start a runner."""
    await walk.until("pending")
    await walk.click(re.compile(r"Pipeline \d+"), walk.page.locator("dl.facts"))
    await expect(walk.page.get_by_role("main")).to_contain_text("Its project has no runner.")
    await walk.click("Runners of this project")
    await walk.click("New runner")
    await walk.click("Create the runner")
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
    await walk.expect_said("It is merged when its pipeline has succeeded.")
    for _ in ("build", "test"):
        job = await runner.job()
        await job.log(b"$ it works\n")
        await job.finish()
    await walk.until("It was merged by")
    await expect(walk.page.locator("dl.facts .badge.good")).to_contain_text("success")


async def _mirror(walk: Walk, name: str, person: Person) -> None:
    """To a repository of the same service: the empty project says its address, and where to make a token."""
    await walk.click("Projects")
    await walk.click("New project")
    await walk.fill("Project name", f"{name}-copy")
    await walk.switch("Begin with a README")
    await walk.click("Create project")
    url = (await walk.page.locator("dl.facts code").inner_text()).removeprefix("git clone ")
    await walk.click("personal access token")
    await walk.fill("Name", "mirror")
    await walk.switch("write_repository")
    await walk.click("Make the token")
    token = await walk.page.locator("code.token").inner_text()
    await walk.go_to_project(name)
    await walk.click("Settings")
    await walk.click("Repository")
    await walk.click("New mirror")
    await walk.fill("Address of the target", url)
    await walk.fill("User name", person.username)
    await walk.fill("Password or token", token)
    await walk.click("Create the mirror")
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
