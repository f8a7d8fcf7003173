"""What the script on the page of a job asks for: what has been added to the log, rendered."""

import re
from html import unescape

import pytest

from api_server.pages.ci import logs
from api_server.web.routes import Role
from tests.api_server.pages.ci.conftest import Scene, handed_out
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge
from tests.support.runner import RunningJob

CONFIG = "build:\n  script: echo\n  tags: [linux]\n"


async def running(scene: Scene, branch: str, config: str = CONFIG) -> tuple[RunningJob, str]:
    """A job in a runner's hands, and the path of its page."""
    wanted = await scene.project.job(config, branch=branch)
    job = await handed_out(scene.project)
    while job.id != wanted["id"]:
        await job.finish()
        job = await handed_out(scene.project)
    return job, scene.page(f"jobs/{job.id}")


async def ask(browser: Browser, path: str, start: int, state: str, **headers: str) -> Browser:
    return await browser.get(
        f"{path}/log", params={"state": state}, headers={"Range": f"log={start}-"} | headers
    )


def said(browser: Browser) -> dict[str, str]:
    """Attributes of the log on the page, or in an answer."""
    (attributes,) = re.findall(r'<div id="log" ([^>]+)>', browser.text)
    return {name: unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', attributes)}


async def test_what_is_added_is_told_once(browser: Browser, scene: Scene) -> None:
    job, path = await running(scene, "told")
    await browser.get(path)
    assert "There is nothing yet." in browser.text
    first = said(browser)
    assert first["next"] == "0"
    await job.log(b"\x1b[31mone\nhalf,")
    await ask(browser, path, 0, first["state"])
    assert (browser.status, browser.headers["Content-Range"]) == (206, "log 0-13/14")
    assert browser.headers["Cache-Control"] == "no-store"
    second, tag = said(browser), browser.headers["ETag"]
    assert (second["next"], second["size"], second["status"]) == ("9", "14", "running")
    assert (await ask(browser, path, 9, second["state"], **{"If-None-Match": tag})).status == 304
    await job.append(b" a line\n", 14)
    await ask(browser, path, 9, second["state"], **{"If-None-Match": tag})
    assert (
        '<div class="row" id="L2"><a href="#L2">2</a><span><b class="f1">half, a line</b></span>'
        in browser.text
    )
    assert "data-done" not in browser.text
    await job.finish()


@pytest.mark.parametrize(
    ("start", "state", "status"),
    [
        ("log=0-", "wrong", 400),
        ("log=0-", "[1,[999],[]]", 400),
        ("bytes=0-", "[1,[],[]]", 400),
        ("log=99999-", "[1,[],[]]", 416),
    ],
)
async def test_what_cannot_be_is_refused(
    browser: Browser, scene: Scene, start: str, state: str, status: int
) -> None:
    path = scene.page(f"jobs/{scene.jobs['compile']['id']}/log")
    await browser.get(path, params={"state": state}, headers={"Range": start})
    assert browser.status == status


async def test_of_a_long_log_the_end_is_shown_with_its_numbers(
    browser: Browser, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "WINDOW", 1000)
    monkeypatch.setattr(logs, "MOST_LINES", 10)
    job, path = await running(scene, "long")
    await job.log(b"".join(b"line %d of many\n" % number for number in range(1, 501)))
    await browser.get(path)
    numbers = [int(number) for number in re.findall(r'id="L(\d+)"', browser.text)]
    assert numbers == list(range(491, 501))
    assert "line 491 of many" in browser.text
    assert "are left out" in browser.text
    await ask(browser, path, 0, "[1,[],[]]")  # from the start: no more at once than that
    assert re.findall(r'id="L(\d+)"', browser.text)[-1] == "10"
    follows = said(browser)
    await ask(browser, path, int(follows["next"]), follows["state"])
    assert 'id="L11"><a href="#L11">11</a><span>line 11 of many' in browser.text
    monkeypatch.setattr(logs, "COUNTED", 100)
    await browser.get(path)
    assert "<span>line 500 of many</span>" in browser.text  # and no numbers
    assert 'id="L' not in browser.text
    await job.finish()


async def test_a_log_that_may_show_secrets_is_for_who_could_run_the_job(scene: Scene, forge: Forge) -> None:
    reporter = await forge.user("reporter")
    await forge.member("projects", scene.project.id, reporter, Role.REPORTER)
    job, path = await running(scene, "debug", CONFIG + "  variables: {CI_DEBUG_TRACE: 'true'}\n")
    await job.log(b"+ secret=1\n")
    async with browsing(forge, reporter) as reading, browsing(forge, scene.project.developer) as developing:
        await reading.get(path)
        assert (reading.status, "secret=1" in reading.text) == (200, False)
        assert "It may show secrets" in reading.text
        assert (await ask(reading, path, 0, "[1,[],[]]")).status == 403
        assert (await reading.get(f"{path}/raw")).status == 403
        assert "secret=1" in (await developing.get(path)).text
    await job.finish()
