"""Pipelines that are run by hand with variables, and schedules, in the browser."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.ci import ONE_JOB, CiProject, ci_project
from tests.support.forge import Forge


@pytest.fixture
async def project(forge: Forge) -> CiProject:
    made = await ci_project(forge)
    await made.commit(ONE_JOB)
    return made


@pytest.fixture
async def browser(project: CiProject) -> AsyncIterator[Browser]:
    """The developer's."""
    async with browsing(project.forge, project.developer) as opened:
        yield opened


def words(browser: Browser) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", browser.text)).split())


async def test_a_pipeline_runs_with_variables(browser: Browser, project: CiProject) -> None:
    base = f"/{project.path}/-/pipelines"
    assert f'href="{base}/new"' in (await browser.get(base)).text
    await browser.get(f"{base}/new")
    for variables, ref, told in (
        ("A=1\nno", "topic", "Line 2 of the variables is not NAME=value."),
        ("A=1", "nothing", "Reference not found"),
    ):
        await browser.send(base, ref=ref, variables=variables)
        assert (browser.status, told in words(browser)) == (400, True)
        assert f">\n{variables}</textarea>" in browser.text
        assert f'value="{ref}"' in browser.text
    await browser.send(base, ref="topic", variables="WORD=se=cret\r\n\r\nEMPTY=")
    made = re.fullmatch(rf"{base}/(\d+)", browser.path)
    assert made, browser.path
    given = await project.api.get(f"{project.url}/pipelines/{made[1]}/variables")
    assert [(each["key"], each["value"]) for each in given.body] == [("WORD", "se=cret"), ("EMPTY", "")]


async def test_a_schedule_is_made_changed_played_and_deleted(browser: Browser, project: CiProject) -> None:
    base, url = f"/{project.path}/-/pipeline_schedules", f"{project.url}/pipeline_schedules"
    assert "There are none yet." in words(await browser.get(base))
    await browser.get(f"{base}/new")
    sent = {
        "description": "Every <night>",
        "ref": "topic",
        "cron": "0 4 * * *",
        "cron_timezone": "Europe/Berlin",
    }
    await browser.send(base, **sent | {"cron": "at night"})
    assert (browser.status, "Cron expression is invalid syntax." in words(browser)) == (400, True)
    assert 'value="Every &lt;night&gt;"' in browser.text
    assert 'value="Europe/Berlin"' in browser.text
    await browser.send(base, **sent, active="true")
    assert (browser.path, "Every &lt;night&gt;" in browser.text) == (base, True)
    (made,) = (await project.api.get(url)).body
    assert {name: made[name] for name in (*sent, "active")} == sent | {
        "ref": "refs/heads/topic",
        "active": True,
    }
    one = f"{base}/{made['id']}"
    await browser.get(f"{one}/edit")
    await browser.send(f"{one}/edit", **sent | {"description": "Nightly", "active": "false"})
    changed = (await project.api.get(f"{url}/{made['id']}")).body
    assert (changed["description"], changed["active"]) == ("Nightly", False)
    await browser.send(f"{one}/play")
    assert "Its pipeline starts in a moment." in browser.text
    await browser.get(f"{one}/edit")
    await browser.send(f"{one}/delete")
    assert (browser.path, (await project.api.get(url)).body) == (base, [])


async def test_a_schedule_has_variables_whose_values_are_not_shown(
    browser: Browser, project: CiProject
) -> None:
    base, url = f"/{project.path}/-/pipeline_schedules", f"{project.url}/pipeline_schedules"
    sent = {"description": "Nightly", "ref": "topic", "cron": "0 4 * * *"}
    made = (await project.api.post(url, sent)).body
    one = f"{base}/{made['id']}"
    await browser.get(f"{one}/edit")
    await browser.send(f"{one}/variables", key="not a key", secret_value="s3cret")
    assert (browser.status, 'value="not a key"' in browser.text, "s3cret" in browser.text) == (
        400,
        True,
        False,
    )
    await browser.send(f"{one}/variables", key="DEEP", secret_value="s3cret")
    assert (browser.path, "DEEP" in browser.text, "s3cret" in browser.text) == (f"{one}/edit", True, False)
    (variable,) = (await project.api.get(f"{url}/{made['id']}")).body["variables"]
    assert (variable["key"], variable["value"]) == ("DEEP", "s3cret")
    await browser.send(f"{one}/variables/delete", key="DEEP")
    assert (await project.api.get(f"{url}/{made['id']}")).body["variables"] == []


async def test_others_see_schedules_and_maintainers_take_them_over(project: CiProject) -> None:
    base, url = f"/{project.path}/-/pipeline_schedules", f"{project.url}/pipeline_schedules"
    made = (await project.api.post(url, {"description": "Mine", "ref": "topic", "cron": "0 4 * * *"})).body
    one = f"{base}/{made['id']}"
    actions = {}
    for role in (Role.REPORTER, Role.DEVELOPER, Role.MAINTAINER):
        person = await project.forge.new_member(project.id, role)
        async with browsing(project.forge, person) as browser:
            await browser.get(base)
            found = re.findall(rf'(?:action|href)="{base}/([^"]*)"', browser.text)
            actions[role] = [path.removeprefix(f"{made['id']}/") for path in found]
            await browser.get(f"{one}/edit")
            if role == Role.MAINTAINER:
                assert "Take ownership of it" in words(browser)
                await browser.send(f"{one}/take_ownership")
                assert "It runs with your rights now." in browser.text
                owner = (await project.api.get(f"{url}/{made['id']}")).body["owner"]
                assert owner["id"] == person.id
            await browser.get(f"/{project.path}/-/pipelines")
            assert ("pipelines/new" in browser.text) == (role >= Role.DEVELOPER)
    assert actions == {
        Role.REPORTER: [],
        Role.DEVELOPER: ["new", "play"],
        Role.MAINTAINER: ["new", "play", "edit", "take_ownership"],
    }
