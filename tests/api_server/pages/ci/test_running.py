"""Manually started pipelines, schedules, and the reasons why a pending job waits."""

import re
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.ci import ONE_JOB, CiProject, ci_project
from tests.support.forge import Forge, Person, new_name


@pytest.fixture
async def project(forge: Forge) -> CiProject:
    made = await ci_project(forge)
    await made.commit(ONE_JOB)
    return made


@pytest.fixture
async def browser(project: CiProject) -> AsyncIterator[Browser]:
    """The developer's browser."""
    async with browsing(project.forge, project.developer) as opened:
        yield opened


async def test_a_pipeline_runs_with_variables(browser: Browser, project: CiProject) -> None:
    base = f"/{project.path}/-/pipelines"
    assert f'href="{base}/new"' in (await browser.get(base)).text
    await browser.get(f"{base}/new")
    for variables, ref, told in (
        ("A=1\nno", "topic", "Line 2 of the variables is not in the form NAME=value."),
        ("A=1", "nothing", "Reference not found"),
    ):
        await browser.send(base, ref=ref, variables=variables)
        assert (browser.status, told in browser.words) == (400, True)
        assert f">\n{variables}</textarea>" in browser.text
        assert f'value="{ref}"' in browser.text
    await browser.send(base, ref="topic", variables="WORD=se=cret\r\n\r\nEMPTY=")
    made = re.fullmatch(rf"{base}/(\d+)", browser.path)
    assert made, browser.path
    given = await project.api.get(f"{project.url}/pipelines/{made[1]}/variables")
    assert [(each["key"], each["value"]) for each in given.body] == [("WORD", "se=cret"), ("EMPTY", "")]


async def test_who_lacks_the_file_is_led_to_where_it_is_written(browser: Browser, project: CiProject) -> None:
    base = f"/{project.path}/-/pipelines"
    link = f'href="/{project.path}/-/new/main?file_name=.gitlab-ci.yml"'
    assert link in (await browser.get(f"{base}/new")).text
    assert "Missing CI config file" in browser.text
    assert link not in (await browser.get(f"{base}/new?ref=topic")).text


async def test_the_file_that_is_missing_is_the_one_that_the_project_names(forge: Forge) -> None:
    file = "ci/main & more.yml"
    alice = await forge.user("alice")
    project = await forge.project(alice, initialize_with_readme=True, ci_config_path=file)
    home = f"/{project['path_with_namespace']}"
    link = f'href="{home}/-/new/main?file_name=ci/main%20%26%20more.yml"'
    async with browsing(forge, alice) as browser:
        for page in (home, f"{home}/-/pipelines", f"{home}/-/pipelines/new"):
            assert link in (await browser.get(page)).text
        assert "Create ci/main &amp; more.yml" in browser.text
        await browser.get(f"{home}/-/new/main?file_name=ci/main%20%26%20more.yml")
        assert 'value="ci/main &amp; more.yml"' in browser.text
        assert "Build it here" in browser.text
        await browser.send(f"{home}/-/create/main", file_name=file, content="{}", commit_message="Begin")
        assert link not in (await browser.get(home)).text


async def test_a_schedule_is_made_changed_played_and_deleted(browser: Browser, project: CiProject) -> None:
    base, url = f"/{project.path}/-/pipeline_schedules", f"{project.url}/pipeline_schedules"
    assert "No schedules yet." in (await browser.get(base)).words
    await browser.get(f"{base}/new")
    sent = {
        "description": "Every <night>",
        "ref": "topic",
        "cron": "0 4 * * *",
        "cron_timezone": "Europe/Berlin",
    }
    await browser.send(base, **sent | {"cron": "at night"})
    assert (browser.status, "Cron expression is invalid syntax." in browser.words) == (400, True)
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
    assert "A pipeline of the schedule starts shortly." in browser.text
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
                assert "take ownership in the list of schedules" in browser.words
                await browser.send(f"{one}/take_ownership")
                assert "You are now the owner of the schedule." in browser.text
                owner = (await project.api.get(f"{url}/{made['id']}")).body["owner"]
                assert owner["id"] == person.id
            await browser.get(f"/{project.path}/-/pipelines")
            assert ("pipelines/new" in browser.text) == (role >= Role.DEVELOPER)
    assert actions == {
        Role.REPORTER: [],
        Role.DEVELOPER: ["new", "play"],
        Role.MAINTAINER: ["new", "play", "edit", "take_ownership"],
    }


INPUTS = """
spec:
  inputs:
    environment: {options: [staging, production], default: staging, description: Where to deploy}
    replicas: {type: number, description: How many}
    dry: {type: boolean, default: false}
    steps: {type: array, default: [make, test]}
    note: {default: "line one\\nline two"}
    size:
      rules:
        - {if: '$[[ inputs.environment ]] == "staging"', options: [s], default: s}
        - {options: [l, xl], default: l}
    pattern: {regex: ^v\\d, default: v1}
---
"$[[ inputs.environment ]] $[[ inputs.replicas ]] $[[ inputs.dry ]] $[[ inputs.size ]]":
  script: $[[ inputs.steps ]]
  resource_group: <$[[ inputs.note ]]>
"""


async def test_a_pipeline_is_run_with_the_inputs_of_its_file(browser: Browser, project: CiProject) -> None:
    base = f"/{project.path}/-/pipelines"
    await project.commit(INPUTS, branch="inputs")
    await browser.get(f"{base}/new")
    assert 'name="inputs[' not in browser.text
    await browser.send(base, ref="inputs", shows="true")
    assert browser.path_qs == f"{base}/new?ref=inputs"
    fields = re.findall(r'<(input|select|textarea)[^>]* name="(inputs\[\w+\])"', browser.text)
    assert fields == [
        ("select", "inputs[environment]"),
        ("input", "inputs[replicas]"),
        ("select", "inputs[dry]"),
        ("input", "inputs[steps]"),
        ("textarea", "inputs[note]"),
        ("select", "inputs[size]"),
        ("input", "inputs[pattern]"),
    ]
    assert re.findall(r'<option value="([^"]*)" selected', browser.text) == [
        "staging",
        "false",
        "",
    ]
    for hint in ("Where to deploy", "How many A number.", "A JSON array", "Must match ^v\\d."):
        assert hint in browser.words
    sent = {
        "ref": "inputs",
        "inputs[environment]": "production",
        "inputs[note]": "x\r\ny",
        "inputs[dry]": "true",
        "inputs[size]": "",
    }
    await browser.send(base, **sent, **{"inputs[replicas]": "", "inputs[steps]": '["a"]'})
    assert browser.status == 400
    problem = '<p class="wrong" id="inputs[replicas]-problem">Required value has not been provided.</p>'
    assert (problem in browser.text, 'role="alert"' in browser.text) == (True, False)
    assert re.findall(r'<option value="([^"]*)" selected', browser.text) == [
        "production",
        "true",
        "",
    ]
    assert 'value="[&#34;a&#34;]"' in browser.text
    assert "x\r\ny</textarea>" in browser.text
    await browser.send(base, **sent, **{"inputs[replicas]": "3", "inputs[steps]": '["a"]'})
    assert (browser.status, "production 3 true l" in browser.words) == (200, True)
    group = "SELECT resource_group FROM jobs WHERE project_id = %(id)s"
    assert await project.forge.database.value(group, id=project.id) == "<x\ny>"


async def test_a_refused_run_shows_the_inputs_of_the_branch_that_was_written(
    browser: Browser, project: CiProject
) -> None:
    base = f"/{project.path}/-/pipelines"
    await project.commit(INPUTS, branch="more")
    await browser.get(f"{base}/new")
    await browser.send(base, ref="more")
    assert (browser.status, 'name="inputs[replicas]"' in browser.text) == (400, True)
    assert 'value="v1"' in browser.text
    await browser.send(base, ref="nowhere")
    assert "Reference not found" in browser.words


async def test_only_what_differs_from_the_defaults_counts_as_given(
    browser: Browser, project: CiProject
) -> None:
    base = f"/{project.path}/-/pipelines"
    names = [f"i{number}" for number in range(21)]
    declared = ", ".join(f'{name}: {{default: "{name}\\n"}}' for name in names)
    job = "job: {script: '$[[ inputs.i0 ]]', tags: ['$[[ inputs.i1 ]]']}"
    await project.commit(f"spec: {{inputs: {{{declared}}}}}\n---\n{job}\n", branch="many")
    await browser.get(f"{base}/new?ref=many")
    sent = {f"inputs[{name}]": f"{name}\r\n" for name in names}
    await browser.send(base, ref="many", **sent | {"inputs[i1]": "mine"})
    assert (browser.status, browser.path.startswith(f"{base}/")) == (200, True)
    (job,) = (await project.api.get(f"{project.url}/jobs")).body
    assert job["tag_list"] == ["mine"]
    await browser.get(f"{base}/new?ref=many")
    await browser.send(base, ref="many", **dict.fromkeys(sent, "other"))
    assert (browser.status, "A pipeline can take up to 20 inputs" in browser.words) == (400, True)


async def test_a_schedule_has_inputs(browser: Browser, project: CiProject) -> None:
    base, url = f"/{project.path}/-/pipeline_schedules", f"{project.url}/pipeline_schedules"
    made = (await project.api.post(url, {"description": "Nightly", "ref": "topic", "cron": "0 4 * * *"})).body
    one = f"{base}/{made['id']}"
    await browser.get(f"{one}/edit")
    assert "The CI/CD configuration file on this branch or tag declares no inputs." in browser.words
    await project.commit(INPUTS)
    await browser.get(f"{one}/edit")
    assert re.findall(r'<option value="(\w+)"', browser.text) == [
        "environment", "replicas", "dry", "steps", "note", "size", "pattern"
    ]  # fmt: skip
    await browser.send(f"{one}/inputs", name="replicas", value="x" * 1023)
    assert (browser.status, "exceeds max serialized size: 1024 characters" in browser.words) == (400, True)
    await browser.send(f"{one}/inputs", name="note", value="a\r\nb")
    await browser.send(f"{one}/inputs/delete", name="gone")
    assert (await project.api.get(f"{url}/{made['id']}")).body["inputs"] == [
        {"name": "note", "value": "a\nb"}
    ]
    await browser.send(f"{one}/inputs/delete", name="note")
    await browser.send(f"{one}/inputs", name="replicas", value="3")
    await browser.send(f"{one}/inputs", name="environment", value="production")
    assert "replicas 3" in browser.words
    shown = (await project.api.get(f"{url}/{made['id']}")).body["inputs"]
    assert shown == [{"name": "replicas", "value": "3"}, {"name": "environment", "value": "production"}]
    await browser.send(f"{one}/inputs/delete", name="replicas")
    assert (await project.api.get(f"{url}/{made['id']}")).body["inputs"] == shown[1:]
    assert "not in the file" not in browser.words
    await project.commit(ONE_JOB)
    await browser.get(f"{one}/edit")
    assert "not in the CI/CD file: pipelines are not created" in browser.words


FREE = "Waiting for a free runner."


@attrs.frozen
class Scene:
    """A job that waits for a runner with two tags, and the only runner of its project."""

    forge: Forge
    project: CiProject
    owner: Person
    pipeline: dict[str, Any]
    job: dict[str, Any]
    runner: dict[str, Any]

    @property
    def page(self) -> str:
        return f"/{self.project.path}/-/jobs/{self.job['id']}"

    @property
    def runners(self) -> str:
        return f'<a href="/{self.project.path}/-/settings/ci_cd#runners">Project runners</a>'

    async def change(self, **values: object) -> None:
        assert (await self.forge.root.put(f"/runners/{self.runner['id']}", values)).status == 200


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    project, owner, tag = await ci_project(forge), await forge.user("owner"), new_name("tag")
    await forge.member("projects", project.id, owner, Role.OWNER)
    pipeline = await project.pipeline(f"build:\n  script: echo\n  tags: [{tag}, other-{tag}]\n")
    (job,) = (await project.jobs(pipeline)).values()
    made = {"runner_type": "project_type", "project_id": project.id, "tag_list": "linux"}
    runner = (await forge.root.post("/user/runners", made)).body
    return Scene(forge, project, owner, pipeline, job, runner)


async def test_the_first_thing_that_is_missing_is_said_and_where_it_is_changed(scene: Scene) -> None:
    tags, project = scene.job["tag_list"], scene.project
    branches = f'<a href="/{project.path}/-/settings/repository#branches">Protected branches</a>'
    async with browsing(scene.forge, scene.owner) as browser:
        for values, text, link in (
            (
                {"tag_list": tags[:1]},
                f"No runner of the project has the tags {', '.join(tags)}.",
                scene.runners,
            ),
            (
                {"tag_list": [*tags, "linux"], "access_level": "ref_protected", "paused": True},
                "run jobs of protected branches and tags only, and topic is not protected.",
                branches,
            ),
            ({"access_level": "not_protected"}, "All matching runners are paused.", scene.runners),
            (
                {"paused": False},
                "The only matching runner has not been started yet. Start the runner with its token.",
                scene.runners,
            ),
        ):
            await scene.change(**values)
            await browser.get(scene.page)
            assert (text in browser.text, link in browser.text, "stuck" in browser.text) == (True, True, True)
            await browser.get(f"/{project.path}/-/pipelines/{scene.pipeline['id']}")
            assert (text in browser.text, link in browser.text) == (True, True)
    async with browsing(scene.forge, project.developer) as developer:
        await developer.get(scene.page)
        assert ("has not been started yet" in developer.text, scene.runners in developer.text) == (
            True,
            False,
        )


async def test_a_runner_that_is_there_will_take_it_until_it_falls_silent(scene: Scene) -> None:
    await scene.change(tag_list=scene.job["tag_list"])
    verified = await scene.forge.anonymous.post("/runners/verify", {"token": scene.runner["token"]})
    assert verified.status == 200
    async with browsing(scene.forge, scene.owner) as browser:
        await browser.get(scene.page)
        assert (FREE in browser.text, "stuck" in browser.text) == (True, False)
        lately = "UPDATE runners SET contacted_at = contacted_at - interval '3 hours' WHERE id = %(id)s"
        await scene.forge.execute(lately, id=scene.runner["id"])
        await browser.get(scene.page)
        assert "The only matching runner last contacted the service at 20" in browser.text


async def test_a_job_without_tags_and_one_of_an_archived_project(forge: Forge) -> None:
    project = await ci_project(forge)
    owner = await forge.user("owner")
    await forge.member("projects", project.id, owner, Role.OWNER)
    job = await project.job()
    await forge.execute("UPDATE jobs SET tag_list = ARRAY['no-one-has-this'] WHERE id = %(id)s", id=job["id"])
    async with browsing(forge, owner) as browser:
        await browser.get(f"/{project.path}/-/jobs/{job['id']}")
        assert "The project has no runners." in browser.text or "has the tag no-one-has-this." in browser.text
        assert (await owner.api.post(f"/projects/{project.id}/archive")).status == 201
        await browser.get(f"/{project.path}/-/jobs/{job['id']}")
        assert "The project is archived, so runners do not run its jobs." in browser.text
        assert f'<a href="/{project.path}/-/edit">General settings</a>' in browser.text
