"""Every page of administrators: shown to them, and to nobody else."""

import pytest

from tests.api_server.pages.admin.conftest import Scene
from tests.support.browser import PASSWORD, Browser, browsing

PAGES = [
    "/admin",
    "/admin/background_tasks",
    "/admin/users",
    "/admin/tokens",
    "/admin/runners",
    "/admin/projects",
    "/admin/mirrors",
    "/admin/deliveries",
    "/admin/edges",
    "/admin/audit_events",
    "/admin/settings",
    "/admin/application_settings/repository",
]


@pytest.mark.parametrize("path", PAGES)
async def test_administrators_get_the_page(boss: Browser, path: str) -> None:
    await boss.get(path)
    assert (boss.status, boss.path) == (200, path), boss.text
    assert f'<a href="{path}" aria-current="true">' in boss.text


async def test_others_are_told_that_they_are_none_and_strangers_sign_in(scene: Scene) -> None:
    clerk = await scene.forge.user("clerk", password=PASSWORD)
    async with browsing(scene.forge) as browser:
        for path in PAGES:
            assert (await browser.get(path)).path == "/-/sign_in"
        await browser.sign_in(clerk)
        for path in PAGES:
            assert (await browser.get(path)).status == 403
        await browser.get("/-/sign_in")
