"""Why a pending job waits: the first thing that is missing, and where those who may change it find it."""

from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.browser import browsing
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge, Person, new_name

FREE = "It waits for a runner that is free."


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
        return f'<a href="/{self.project.path}/-/settings/ci_cd#runners">Runners of this project</a>'

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
                f"No runner of its project has the tags {', '.join(tags)}.",
                scene.runners,
            ),
            (
                {"tag_list": [*tags, "linux"], "access_level": "ref_protected", "paused": True},
                "take jobs of protected branches and tags only, and topic is none.",
                branches,
            ),
            ({"access_level": "not_protected"}, "All runners that could take it are paused.", scene.runners),
            (
                {"paused": False},
                "The only runner that could take it has not been started yet: start it with its token.",
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
        assert "The only runner that could take it was last heard of 20" in browser.text


async def test_a_job_without_tags_and_one_of_an_archived_project(forge: Forge) -> None:
    project = await ci_project(forge)
    owner = await forge.user("owner")
    await forge.member("projects", project.id, owner, Role.OWNER)
    job = await project.job()
    await forge.execute("UPDATE jobs SET tag_list = ARRAY['no-one-has-this'] WHERE id = %(id)s", id=job["id"])
    async with browsing(forge, owner) as browser:
        await browser.get(f"/{project.path}/-/jobs/{job['id']}")
        assert "Its project has no runner." in browser.text or "has the tag no-one-has-this." in browser.text
        assert (await owner.api.post(f"/projects/{project.id}/archive")).status == 201
        await browser.get(f"/{project.path}/-/jobs/{job['id']}")
        assert "Its project is archived: no runner gets its jobs." in browser.text
        assert f'<a href="/{project.path}/-/edit">General settings</a>' in browser.text
