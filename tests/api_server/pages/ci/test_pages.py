"""Pages of pipelines and jobs: their content, their buttons, and how a log is followed."""

import re
from html import unescape

import pytest

from api_server.pages.ci import logs
from api_server.web.routes import Role
from tests.api_server.pages.ci.conftest import LOG, ONE_JOB, Scene, handed_out, running
from tests.support.browser import Browser, browsing
from tests.support.ci import MANUAL_JOB, bring
from tests.support.forge import Forge

PATHS = (
    *("pipelines", "jobs", "jobs/{id}", "jobs/{id}/raw"),
    *("jobs/{id}/artifacts/browse", "jobs/{id}/artifacts/file/top.txt"),
)


async def test_every_url_that_the_api_names_opens(browser: Browser, scene: Scene) -> None:
    api = scene.project.api
    shown = [
        *(await api.get(f"{scene.project.url}/pipelines")).body,
        *(await api.get(f"{scene.project.url}/jobs")).body,
        *(await api.get(f"{scene.project.url}/pipelines/{scene.pipeline['id']}/bridges")).body,
    ]
    assert len(shown) > 5
    for entity in shown:
        path = entity["web_url"].removeprefix(scene.forge.base)
        await browser.get(path)
        assert (browser.status, browser.path) == (200, path)


async def test_a_pipeline_shows_stages_in_their_order_with_needs_and_why_it_failed(
    browser: Browser, scene: Scene
) -> None:
    await browser.get(scene.page(f"pipelines/{scene.pipeline['id']}"))
    assert re.findall(r"<h3>(\w+)</h3>", browser.text) == ["build", "test", "deploy"]
    text = browser.words
    assert "unit needs compile" in text
    assert "child needs nothing downstream pipeline" in text
    assert "lint (allowed to fail): Script failure" in text
    assert "from-the-file" not in browser.text


async def test_needs_of_other_projects_and_pipelines_are_named(browser: Browser, scene: Scene) -> None:
    text = (
        "use: {script: x, needs: [{project: a/b, ref: main, job: made}, {pipeline: $ID, job: built}]}\n"
        "status: {needs: {pipeline: c/d}}\n"
    )
    pipeline = await scene.project.pipeline(text, branch="across")
    await browser.get(scene.page(f"pipelines/{pipeline['id']}"))
    assert "needs made of a/b (main), built of pipeline $ID" in browser.words
    assert "mirrors the status of a pipeline of c/d" in browser.words
    (job,) = (await scene.project.jobs(pipeline)).values()
    await browser.get(scene.page(f"jobs/{job['id']}"))
    assert "Needs made of a/b (main), built of pipeline $ID" in browser.words
    (bridge,) = (await scene.project.bridges(pipeline)).values()
    await browser.get(scene.page(f"jobs/{bridge['id']}"))
    assert "Mirrors status of a pipeline of c/d" in browser.words


async def test_a_child_pipeline_names_its_parent(browser: Browser, scene: Scene) -> None:
    (bridge,) = (await scene.project.bridges(scene.pipeline)).values()
    await browser.get(scene.page(f"pipelines/{bridge['downstream_pipeline']['id']}"))
    assert f"Parent Pipeline {scene.pipeline['id']} , job child" in browser.words


async def test_a_pipeline_tells_what_is_wrong_with_its_file(browser: Browser, scene: Scene) -> None:
    broken = await scene.forge.database.value(
        "UPDATE pipelines SET yaml_errors = 'jobs:a <config> is wrong' WHERE id = %(id)s RETURNING id",
        id=scene.pipeline["id"],
    )
    await browser.get(scene.page(f"pipelines/{broken}"))
    assert "jobs:a &lt;config&gt; is wrong" in browser.text


async def test_lists_are_filtered_and_paged(browser: Browser, scene: Scene) -> None:
    await browser.get(scene.page("jobs?status=failed"))
    assert (browser.words.count(" Job "), "lint" in browser.text) == (1, True)
    await browser.get(scene.page("pipelines?status=canceled&ref=topic"))
    assert "No pipelines match the filters." in browser.text
    await browser.get(scene.page("pipelines?status=&ref=topic&per_page=1"))
    assert 'href="?status=&amp;ref=topic&amp;per_page=1&amp;page=2"' in browser.text
    await browser.get(scene.page("pipelines?status=wrong"))
    assert browser.status == 400


async def test_a_job_shows_its_log_and_what_it_left(browser: Browser, scene: Scene) -> None:
    job = scene.jobs["compile"]
    await browser.get(scene.page(f"jobs/{job['id']}"))
    assert "<script>alert" not in browser.text
    assert "ready &lt;script&gt;alert(1)&lt;/script&gt;" in browser.text
    assert '<span class="took">01:05</span>' in browser.text
    assert 'id="L4"' in browser.text
    assert "style=" not in browser.text
    assert "Browse" in browser.words
    await browser.get(scene.page(f"jobs/{job['id']}/raw"))
    assert browser.text.encode() == LOG
    assert browser.headers["Content-Type"].startswith("text/plain")


async def test_a_failed_job_says_why(browser: Browser, scene: Scene) -> None:
    await browser.get(scene.page(f"jobs/{scene.jobs['lint']['id']}"))
    text = browser.words
    assert "Script failure: a command exited with a status other than 0. Exit code: 3." in text
    assert "This job has no log." in text


async def test_artifacts_are_browsed_and_downloaded(browser: Browser, scene: Scene) -> None:
    archive = scene.page(f"jobs/{scene.jobs['compile']['id']}/artifacts")
    await browser.get(f"{archive}/browse")
    assert "out/" in browser.words
    assert "top.txt 1 byte" in browser.words
    await browser.get(f"{archive}/browse/out")
    assert "1 directory, 1 file" in browser.words
    await browser.get(f"{archive}/file/out/a.txt")
    assert (browser.text, browser.headers["Content-Disposition"][:10]) == ("hello", "attachment")
    await browser.get(f"{archive}/browse/nowhere")
    assert browser.status == 404


async def test_who_may_not_see_jobs_sees_none(scene: Scene) -> None:
    """A Guest, if they are not public; an anonymous visitor is asked to sign in."""
    answer = await scene.maintainer.api.put(scene.project.url, {"public_jobs": False})
    assert answer.status == 200
    async with browsing(scene.forge, scene.guest) as guest, browsing(scene.forge) as stranger:
        for path in [scene.page(path.format(id=scene.jobs["compile"]["id"])) for path in PATHS]:
            assert (await guest.get(path)).status == 403, path
            assert (await stranger.get(path)).path == "/-/sign_in", path
    await scene.maintainer.api.put(scene.project.url, {"public_jobs": True})


async def test_jobs_of_public_projects_are_for_everybody_to_look_at(scene: Scene) -> None:
    answer = await scene.maintainer.api.put(scene.project.url, {"visibility": "public"})
    assert answer.status == 200
    async with browsing(scene.forge) as stranger:
        for path in PATHS:
            await stranger.get(scene.page(path.format(id=scene.jobs["compile"]["id"])))
            assert stranger.status == 200, path
        assert (await stranger.get(scene.page("jobs/999999999/raw"))).status == 404
        await stranger.get(scene.page(f"jobs/{scene.jobs['release']['id']}"))
        assert "Run job" not in stranger.text
    await scene.maintainer.api.put(scene.project.url, {"visibility": "private"})


async def test_what_is_not_there_is_a_page_that_says_so(browser: Browser, scene: Scene) -> None:
    for path in ("jobs/999999999", "pipelines/999999999", "jobs/999999999/artifacts/browse"):
        await browser.get(scene.page(path))
        assert (browser.status, browser.title) == (404, "Page not found"), path


async def test_pages_open_what_the_api_opens(scene: Scene) -> None:
    """This applies to guests and anonymous visitors, when logs are for members only, and the repository too."""
    job, pipeline, api = scene.jobs["compile"]["id"], scene.pipeline["id"], scene.project.url
    of_api = {
        "tree/main": "repository/tree",
        "commits/main": "repository/commits",
        "releases": "releases",
        "merge_requests": "merge_requests",
        "pipelines": "pipelines",
        f"pipelines/{pipeline}": f"pipelines/{pipeline}",
        f"jobs/{job}": f"jobs/{job}",
        f"jobs/{job}/raw": f"jobs/{job}/trace",
        f"jobs/{job}/artifacts/browse": f"jobs/{job}/artifacts",
        "jobs/999999": "jobs/999999",
    }
    before = (await scene.forge.root.get(api)).body
    names = ("visibility", "public_jobs", "repository_access_level")
    closed = {"visibility": "public", "public_jobs": False, "repository_access_level": "private"}
    stranger, found = await scene.forge.user(), {}
    assert (await scene.forge.root.put(api, closed)).status == 200
    try:
        for person in (scene.guest, stranger):
            async with browsing(scene.forge, person) as browser:
                for path, route in of_api.items():
                    by_api = (await person.api.get(f"{api}/{route}")).status
                    found[person.username, path] = (await browser.get(scene.page(path))).status, by_api
    finally:
        assert (await scene.forge.root.put(api, {name: before[name] for name in names})).status == 200
    assert {where: both for where, both in found.items() if both[0] != both[1]} == {}
    assert {by_page for by_page, _ in found.values()} == {200, 403}


TAGGED = "build:\n  script: echo\n  tags: [linux]\n"


async def test_a_job_is_canceled_and_tried_again(browser: Browser, scene: Scene) -> None:
    job = await scene.project.job(branch="buttons")
    page = scene.page(f"jobs/{job['id']}")
    await (await browser.get(page)).send(f"{page}/cancel")
    assert (browser.status, browser.path) == (200, page)
    assert "Job canceled." in browser.text
    assert (await _shown(scene, job["id"]))["status"] == "canceled"
    await browser.send(f"{page}/retry")
    again = int(browser.path.rpartition("/")[2])
    assert again > job["id"]
    assert (await _shown(scene, again))["user"]["username"] == scene.project.developer.username
    assert f'href="{page}"' in browser.text  # the attempt before
    await browser.get(page)
    assert "This job was retried." in browser.text
    assert "Retry" not in browser.text


async def test_a_manual_job_is_started_with_variables_that_no_page_shows(
    browser: Browser, scene: Scene
) -> None:
    job = await scene.project.job(MANUAL_JOB + "  tags: [linux]\n", branch="manual")
    page = scene.page(f"jobs/{job['id']}")
    await browser.get(page)
    await browser.send(f"{page}/play", variables="GOOD=1\nno equals sign")
    assert browser.status == 400
    assert "Line 2 of the variables is not in the form NAME=value." in browser.text
    assert "GOOD=1\nno equals sign</textarea>" in browser.text
    await browser.send(f"{page}/play", variables="WORD=se=cret\n\nOTHER=")
    assert (browser.status, browser.path) == (200, page)
    assert "se=cret" not in browser.text
    running = await handed_out(scene.project)
    while running.id != job["id"]:  # jobs of other tests
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
        assert "Job log and artifacts erased." in browser.text
        assert "The log has been erased." in browser.text
    events = await scene.forge.root.get(f"{scene.project.url}/audit_events")
    assert [
        (event["author_id"], event["details"]["ip_address"])
        for event in events.body
        if event["details"]["event_name"] == "job_erased"
    ] == [(scene.maintainer.id, "127.0.0.1")]


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
    await (await browser.get(page)).send(deletion)  # a Developer is not an Owner
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


async def ask(browser: Browser, path: str, start: int, state: str, **headers: str) -> Browser:
    return await browser.get(
        f"{path}/log", params={"state": state}, headers={"Range": f"log={start}-"} | headers
    )


def said(browser: Browser) -> dict[str, str]:
    """Return the attributes of the log on the page, or in an answer."""
    (attributes,) = re.findall(r'<div id="log" ([^>]+)>', browser.text)
    return {name: unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', attributes)}


async def test_what_is_added_is_told_once(browser: Browser, scene: Scene) -> None:
    job, path = await running(scene, "told")
    await browser.get(path)
    assert "No output yet." in browser.text
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
    monkeypatch.setattr(logs, "MAX_LINES", 10)
    job, path = await running(scene, "long")
    await job.log(b"".join(b"line %d of many\n" % number for number in range(1, 501)))
    await browser.get(path)
    numbers = [int(number) for number in re.findall(r'id="L(\d+)"', browser.text)]
    assert numbers == list(range(491, 501))
    assert "line 491 of many" in browser.text
    assert "are left out" in browser.text
    await ask(browser, path, 0, "[1,[],[]]")  # from the start: not more at once
    assert re.findall(r'id="L(\d+)"', browser.text)[-1] == "10"
    follows = said(browser)
    await ask(browser, path, int(follows["next"]), follows["state"])
    assert 'id="L11"><a href="#L11">11</a><span>line 11 of many' in browser.text
    monkeypatch.setattr(logs, "COUNTED", 100)
    await browser.get(path)
    assert "<span>line 500 of many</span>" in browser.text  # and without numbers
    assert 'id="L' not in browser.text
    await job.finish()


async def test_a_log_that_may_show_secrets_is_for_who_could_run_the_job(scene: Scene, forge: Forge) -> None:
    reporter = await forge.user("reporter")
    await forge.member("projects", scene.project.id, reporter, Role.REPORTER)
    job, path = await running(scene, "debug", ONE_JOB + "  variables: {CI_DEBUG_TRACE: 'true'}\n")
    await job.log(b"+ secret=1\n")
    async with browsing(forge, reporter) as reading, browsing(forge, scene.project.developer) as developing:
        await reading.get(path)
        assert (reading.status, "secret=1" in reading.text) == (200, False)
        assert "Debug logging is enabled" in reading.text
        assert (await ask(reading, path, 0, "[1,[],[]]")).status == 403
        assert (await reading.get(f"{path}/raw")).status == 403
        assert "secret=1" in (await developing.get(path)).text
    await job.finish()
