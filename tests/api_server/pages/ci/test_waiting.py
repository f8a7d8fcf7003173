"""Why a pending job waits: the first thing that is missing, and where those who may change it find it."""

from api_server.web.routes import Role
from tests.support.browser import browsing
from tests.support.ci import ci_project
from tests.support.forge import Forge, new_name

FREE = "It waits for a runner that is free."


async def test_a_job_says_what_it_waits_for_step_by_step(forge: Forge) -> None:
    project = await ci_project(forge)
    owner = await forge.user("owner")
    await forge.member("projects", project.id, owner, Role.OWNER)
    tag = new_name("tag")
    pipeline = await project.pipeline(f"build:\n  script: echo\n  tags: [{tag}, other-{tag}]\n")
    (job,) = (await project.jobs(pipeline)).values()
    made = {"runner_type": "project_type", "project_id": project.id, "tag_list": "linux"}
    runner = (await forge.root.post("/user/runners", made)).body
    page, settings = f"/{project.path}/-/jobs/{job['id']}", f"/{project.path}/-/settings"
    runners = f'<a href="{settings}/ci_cd#runners">Runners of this project</a>'

    async def change(**values: object) -> None:
        assert (await forge.root.put(f"/runners/{runner['id']}", values)).status == 200

    async def verify() -> None:
        assert (await forge.anonymous.post("/runners/verify", {"token": runner["token"]})).status == 200

    async with browsing(forge, owner) as browser:
        for values, text, link in (
            (
                {"tag_list": f"linux,{tag}"},
                f"No runner of its project has the tags {', '.join(job['tag_list'])}.",
                runners,
            ),
            (
                {"tag_list": f"{tag},other-{tag},linux", "access_level": "ref_protected", "paused": True},
                "take jobs of protected branches and tags only, and topic is none.",
                f'<a href="{settings}/repository#branches">Protected branches</a>',
            ),
            ({"access_level": "not_protected"}, "All runners that could take it are paused.", runners),
            (
                {"paused": False},
                "The only runner that could take it was never heard of: start it again, and look into its own log.",
                runners,
            ),
        ):
            await change(**values)
            await browser.get(page)
            assert (text in browser.text, link in browser.text, "stuck" in browser.text) == (True, True, True)
            await browser.get(f"/{project.path}/-/pipelines/{pipeline['id']}")
            assert (text in browser.text, link in browser.text) == (True, True)
        async with browsing(forge, project.developer) as developer:
            await developer.get(page)
            assert ("was never heard of" in developer.text, runners in developer.text) == (True, False)
        await verify()
        await browser.get(page)
        assert (FREE in browser.text, "stuck" in browser.text) == (True, False)
        lately = "UPDATE runners SET contacted_at = contacted_at - interval '3 hours' WHERE id = %(id)s"
        await forge.execute(lately, id=runner["id"])
        await browser.get(page)
        assert "The only runner that could take it was last heard of 20" in browser.text
        assert (
            await owner.api.put(f"/projects/{project.id}", {"builds_access_level": "disabled"})
        ).status == 200
        assert (await browser.get(page)).status == 403  # nobody sees its jobs


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
