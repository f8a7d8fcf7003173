"""What fails is told on `/admin` and by `doctor` in the same words, and counted; what works again is told nowhere."""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from forgelet.doctor.findings import DiagnosedInstance
from forgelet.doctor.processes import work
from tests.api_server.operations.scene import Scene, failing_scene
from tests.api_server.operations.test_failing import eventually
from tests.api_server.operations.test_metrics import metrics_of
from tests.support.browser import Browser, browsing

#: What the test mends: by making a folder, and by removing a task.
KINDS = ("store", "task")


async def test_what_fails_is_told_everywhere_and_what_works_again_nowhere(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    async with failing_scene(new_forge, tmp_path) as scene, browsing(scene.forge) as browser:
        await browser.enter(scene.forge, await scene.forge.user("boss", admin=True))
        await scene.break_all()
        await scene.queue_unknown(1)
        kinds = {"store", "edge", "mail", "runner", "mirror", "delivery", "task"}

        async def all_fail() -> bool:
            return {one.kind for one in await scene.failing()} == kinds

        await eventually(all_fail)

        async def are_counted() -> bool:  # figures are as good as new for five seconds
            metrics = await metrics_of(scene.forge)
            return all(metrics["forgelet_failing", kind] for kind in kinds)

        await eventually(are_counted)
        page, told = await _page(browser), await _doctor(scene)
        for one in await scene.failing():
            assert one.reason in page, one
            sentences = one.reason.rstrip("."), one.remedy.rstrip(".")
            assert any(all(each in line for each in sentences) for line in told), one
        scene.store.mkdir()
        await scene.forge.database.value(
            "DELETE FROM procrastinate_jobs WHERE task_name = 'of_another_version' RETURNING 1"
        )

        async def are_gone() -> bool:
            metrics = await metrics_of(scene.forge)
            listed = {one.kind for one in await scene.failing()}
            return not any(metrics["forgelet_failing", kind] for kind in KINDS) and not listed & set(KINDS)

        await eventually(are_gone)
        page, told = await _page(browser), await _doctor(scene)
        assert "its folder is gone" not in page + "".join(told)
        assert "of_another_version" not in page + "".join(told)
        assert "a part works again" in [line["event"] for line in scene.lines]


async def _page(browser: Browser) -> str:
    text = (await browser.get("/admin")).text
    return html.unescape(text.replace("<code>", "`").replace("</code>", "`"))


async def _doctor(scene: Scene) -> list[str]:
    async with aiohttp.ClientSession() as session:
        patient = DiagnosedInstance({}, scene.forge.settings, None, session)
        patient.database_serves.set_result(True)
        return [one.text for one in await work(patient)]
