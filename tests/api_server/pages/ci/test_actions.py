"""What buttons on the pages of pipelines and jobs do: what the API does, for whom the API does it."""

from api_server.web.routes import Role
from tests.api_server.pages.ci.conftest import Scene, handed_out
from tests.support.browser import Browser, browsing
from tests.support.ci import MANUAL_JOB, bring
from tests.support.forge import Forge

TAGGED = "build:\n  script: echo\n  tags: [linux]\n"


async def test_a_job_is_canceled_and_tried_again(browser: Browser, scene: Scene) -> None:
    job = await scene.project.job(branch="buttons")
    page = scene.page(f"jobs/{job['id']}")
    await (await browser.get(page)).send(f"{page}/cancel")
    assert (browser.status, browser.path) == (200, page)
    assert "The job is canceled" in browser.text
    assert (await _shown(scene, job["id"]))["status"] == "canceled"
    await browser.send(f"{page}/retry")
    again = int(browser.path.rpartition("/")[2])
    assert again > job["id"]
    assert (await _shown(scene, again))["user"]["username"] == scene.project.developer.username
    assert f'href="{page}"' in browser.text  # the attempt before
    await browser.get(page)
    assert "A newer attempt has taken its place" in browser.text
    assert "Retry" not in browser.text


async def test_a_manual_job_is_started_with_variables_that_no_page_shows(
    browser: Browser, scene: Scene
) -> None:
    job = await scene.project.job(MANUAL_JOB + "  tags: [linux]\n", branch="manual")
    page = scene.page(f"jobs/{job['id']}")
    await browser.get(page)
    await browser.send(f"{page}/play", variables="GOOD=1\nno equals sign")
    assert browser.status == 400
    assert "Line 2 of the variables is not NAME=value." in browser.text
    assert "GOOD=1\nno equals sign</textarea>" in browser.text
    await browser.send(f"{page}/play", variables="WORD=se=cret\n\nOTHER=")
    assert (browser.status, browser.path) == (200, page)
    assert "se=cret" not in browser.text
    running = await handed_out(scene.project)
    while running.id != job["id"]:  # of other tests
        await running.finish()
        running = await handed_out(scene.project)
    assert (running.variables["WORD"], running.variables["OTHER"]) == ("se=cret", "")
    await running.finish()


async def test_erasing_is_audited_as_the_apis_is(scene: Scene) -> None:
    job = await scene.project.job(TAGGED, branch="erased")
    await bring(scene.forge, job["id"], "success")
    async with scene.forge.database.transaction() as transaction:
        await transaction.run(
            "INSERT INTO job_logs (job_id, size, closed, updated_at) VALUES (%(id)s, 0, true, %(now)s)",
            id=job["id"],
        )
    page = scene.page(f"jobs/{job['id']}")
    async with browsing(scene.forge, scene.maintainer) as browser:
        await (await browser.get(page)).send(f"{page}/erase")
        assert "The log and the artifacts are erased." in browser.text
        assert "It has been erased." in browser.text
    events = await scene.forge.root.get(f"{scene.project.url}/audit_events")
    assert [
        event["author_id"] for event in events.body if event["details"]["event_name"] == "job_erased"
    ] == [scene.maintainer.id]


async def test_a_pipeline_is_canceled_tried_again_and_deleted(scene: Scene) -> None:
    pipeline = await scene.project.pipeline(branch="whole")
    page = scene.page(f"pipelines/{pipeline['id']}")
    async with browsing(scene.forge, scene.maintainer) as browser:
        await (await browser.get(page)).send(f"{page}/cancel")
        assert await scene.project.statuses(pipeline) == {"build": "canceled"}
        await browser.send(f"{page}/retry")
        assert await scene.project.statuses(pipeline) == {"build": "pending"}
        await browser.send(f"{page}/delete")
        assert (browser.status, browser.path) == (200, scene.page("pipelines"))
    assert (await scene.project.api.get(f"{scene.project.url}/pipelines/{pipeline['id']}")).status == 404


async def test_nobody_is_shown_or_given_what_the_api_refuses_her(
    browser: Browser, scene: Scene, forge: Forge
) -> None:
    reporter = await forge.user("reporter")
    await forge.member("projects", scene.project.id, reporter, Role.REPORTER)
    job = await scene.project.job(branch="refused")
    page = scene.page(f"jobs/{job['id']}")
    async with browsing(forge, reporter) as reading:
        await reading.get(page)
        assert (reading.status, "Cancel" in reading.text) == (200, False)
        await reading.send(f"{page}/cancel")
        assert reading.status == 403
    await browser.get(page)
    assert (await browser.get(f"{page}/cancel")).status == 405
    assert (await browser._ask("POST", f"{page}/cancel", data={"csrf_token": "forged"})).status == 403
    deletion = scene.page(f"pipelines/{job['pipeline']['id']}/delete")
    await (await browser.get(page)).send(deletion)  # a Developer is no Owner
    assert browser.status == 403
    assert (await _shown(scene, job["id"]))["status"] == "pending"


async def test_what_cannot_be_done_any_more_is_told(browser: Browser, scene: Scene) -> None:
    job = await scene.project.job(branch="late")
    page = scene.page(f"jobs/{job['id']}")
    await browser.get(page)
    await bring(scene.forge, job["id"], "created")
    await browser.send(f"{page}/retry")
    assert (browser.status, "Job is not retryable" in browser.text) == (403, True)


async def _shown(scene: Scene, job_id: int) -> dict[str, object]:
    return dict((await scene.forge.root.get(f"{scene.project.url}/jobs/{job_id}")).body)
