"""Pages of pipelines and jobs, as a browser without scripts gets them."""

import re
from html import unescape

from tests.api_server.pages.ci.conftest import LOG, Scene
from tests.support.browser import Browser, browsing

PATHS = (
    *("pipelines", "jobs", "jobs/{id}", "jobs/{id}/raw"),
    *("jobs/{id}/artifacts/browse", "jobs/{id}/artifacts/file/top.txt"),
)


def words(browser: Browser) -> str:
    """What the page says, without its elements."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", browser.text)).split())


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
    text = words(browser)
    assert "unit needs compile" in text
    assert "child needs nothing started pipeline" in text
    assert "lint (allowed to fail): Its script failed" in text
    assert "from-the-file" not in browser.text


async def test_a_child_pipeline_names_its_parent(browser: Browser, scene: Scene) -> None:
    (bridge,) = (await scene.project.bridges(scene.pipeline)).values()
    await browser.get(scene.page(f"pipelines/{bridge['downstream_pipeline']['id']}"))
    assert f"Child of Pipeline {scene.pipeline['id']} , by its job child" in words(browser)


async def test_a_pipeline_tells_what_is_wrong_with_its_file(browser: Browser, scene: Scene) -> None:
    broken = await scene.forge.database.value(
        "UPDATE pipelines SET yaml_errors = 'jobs:a <config> is wrong' WHERE id = %(id)s RETURNING id",
        id=scene.pipeline["id"],
    )
    await browser.get(scene.page(f"pipelines/{broken}"))
    assert "jobs:a &lt;config&gt; is wrong" in browser.text


async def test_lists_are_filtered_and_paged(browser: Browser, scene: Scene) -> None:
    await browser.get(scene.page("jobs?status=failed"))
    assert (words(browser).count(" job "), "lint" in browser.text) == (1, True)
    await browser.get(scene.page("pipelines?status=canceled&ref=topic"))
    assert "No pipeline is like that." in browser.text
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
    assert "Browse" in words(browser)
    await browser.get(scene.page(f"jobs/{job['id']}/raw"))
    assert browser.text.encode() == LOG
    assert browser.headers["Content-Type"].startswith("text/plain")


async def test_a_failed_job_says_why(browser: Browser, scene: Scene) -> None:
    await browser.get(scene.page(f"jobs/{scene.jobs['lint']['id']}"))
    text = words(browser)
    assert "Its script failed: a command ended with a status other than 0. Its exit status was 3." in text
    assert "It has none." in text


async def test_artifacts_are_browsed_and_downloaded(browser: Browser, scene: Scene) -> None:
    archive = scene.page(f"jobs/{scene.jobs['compile']['id']}/artifacts")
    await browser.get(f"{archive}/browse")
    assert "out/" in words(browser)
    assert "top.txt 1 bytes" in words(browser)
    await browser.get(f"{archive}/browse/out")
    assert "1 folder, 1 file" in words(browser)
    await browser.get(f"{archive}/file/out/a.txt")
    assert (browser.text, browser.headers["Content-Disposition"][:10]) == ("hello", "attachment")
    await browser.get(f"{archive}/browse/nowhere")
    assert browser.status == 404


async def test_who_may_not_see_jobs_sees_none(scene: Scene) -> None:
    """A Guest, where they are not for everybody; a stranger is asked to sign in."""
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
        assert "Start this job" not in stranger.text
    await scene.maintainer.api.put(scene.project.url, {"visibility": "private"})


async def test_what_is_not_there_is_a_page_that_says_so(browser: Browser, scene: Scene) -> None:
    for path in ("jobs/999999999", "pipelines/999999999", "jobs/999999999/artifacts/browse"):
        await browser.get(scene.page(path))
        assert (browser.status, browser.title) == (404, "There is no such page"), path


async def test_pages_open_what_the_api_opens(scene: Scene) -> None:
    """To guests and to strangers, where logs are for members and the repository is too."""
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
