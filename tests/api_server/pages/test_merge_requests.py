"""Pages of merge requests, as a browser without scripts gets them, and what their buttons do."""

import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import attrs
import pytest

from api_server.pages.merge_requests import OBSTACLES
from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, new_project, open_merge_request


@attrs.frozen
class Scene:
    """A project with a check that cannot be reached; `reporter` may look."""

    forge: Forge
    project: dict[str, Any]
    owner: Person
    reporter: Person
    check_id: int

    @property
    def path(self) -> str:
        return f"/{self.project['path_with_namespace']}/-/merge_requests"

    async def merge_request(self, branch: str, **values: Any) -> dict[str, Any]:
        return await open_merge_request(self.owner, self.project, branch, **values)

    async def read(self, iid: int) -> dict[str, Any]:
        return dict((await self.owner.api.get(f"/projects/{self.project['id']}/merge_requests/{iid}")).body)


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, reporter = await forge.user("owner"), await forge.user("reporter")
    project = await new_project(forge, owner)
    await forge.member("projects", project["id"], reporter, Role.REPORTER)
    values = {"name": "scanner", "external_url": "http://unreachable.invalid/hook?key=hidden"}
    check = await owner.api.post(f"/projects/{project['id']}/external_status_checks", values)
    assert check.status == 201, check
    return Scene(forge, project, owner, reporter, check.body["id"])


@pytest.fixture
async def browser(scene: Scene) -> AsyncIterator[Browser]:
    """The owner's."""
    async with browsing(scene.forge, scene.owner) as opened:
        yield opened


def words(browser: Browser) -> str:
    """What the page says, without its elements."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", browser.text)).split())


async def test_a_merge_request_shows_what_it_brings(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("shown", title="A <b>bold</b> one", description="<i>first</i>\nsecond")
    note = f"/projects/{scene.project['id']}/merge_requests/{made['iid']}/notes"
    await scene.owner.api.post(note, {"body": "`<b>` <script>said</script>said"})
    path = made["web_url"].removeprefix(scene.forge.base)
    await browser.get(path)
    assert (browser.status, browser.path) == (200, path)
    for text in (
        "A &lt;b&gt;bold&lt;/b&gt; one",
        '<section class="markdown"><p><i>first</i>\nsecond</p>\n</section>',
        '<section class="markdown"><p><code>&lt;b&gt;</code> said</p>\n</section>',
    ):
        assert text in browser.text
    text = words(browser)
    assert re.search(r"@@ -0,0 \+1 @@ \+\d+", text)
    assert "It can be merged." in text
    assert "wants to merge shown into main" in text
    assert "key=hidden" not in browser.text


async def test_the_list_is_by_state(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("listed", title="Listed by state")
    await browser.get(scene.path)
    assert "Listed by state" in browser.text
    one = f"/projects/{scene.project['id']}/merge_requests/{made['iid']}"
    await scene.owner.api.put(one, {"state_event": "close"})
    assert "Listed by state" not in (await browser.get(scene.path)).text
    assert "Listed by state" in (await browser.get(f"{scene.path}?state=closed")).text
    assert "It was closed by" in words(await browser.get(f"{scene.path}/{made['iid']}"))


async def test_it_is_merged_as_it_was_seen(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("merged", title="To be merged")
    page = f"{scene.path}/{made['iid']}"
    await browser.get(page)
    await commit(scene.owner.api, scene.project, "merged")
    await browser.send(f"{page}/merge")
    assert browser.status == 409  # something else than what was looked at
    assert (await scene.read(made["iid"]))["state"] == "opened"
    await (await browser.get(page)).send(f"{page}/merge", remove_source_branch="true")
    assert (browser.status, browser.path) == (200, page)
    assert "It was merged by" in words(browser)
    branch = await scene.owner.api.get(f"/projects/{scene.project['id']}/repository/branches/merged")
    assert branch.status == 404


async def test_it_is_said_why_it_cannot_be_merged(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("draft", title="Draft: not yet")
    await browser.get(f"{scene.path}/{made['iid']}")
    assert f"It cannot be merged now. {OBSTACLES['draft_status']}" in words(browser)
    assert '<button class="main">Merge' not in browser.text


async def test_an_obstacle_leads_to_where_it_is_removed(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("demanded", title="Against the demands")
    page, project = f"{scene.path}/{made['iid']}", f"/projects/{scene.project['id']}"
    demands = f'<a href="{scene.path.removesuffix("merge_requests")}settings/merge_requests">What a merge demands</a>'
    checks = '<a href="#checks">The checks</a>'
    demand = {"only_allow_merge_if_all_status_checks_passed": True}
    assert (await scene.owner.api.put(project, demand)).status == 200
    await browser.get(page)
    assert (checks in browser.text, 'id="checks"' in browser.text, demands in browser.text) == (
        True,
        True,
        True,
    )
    async with browsing(scene.forge, scene.reporter) as looking:
        await looking.get(page)
        assert (checks in looking.text, demands in looking.text) == (True, False)
    assert (await scene.owner.api.put(project, dict.fromkeys(demand, False))).status == 200
    await browser.get(page)
    assert ("It can be merged." in browser.text, checks in browser.text) == (True, False)


async def test_a_delivery_of_a_paused_check_says_so(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("paused", title="To a paused check")
    paused = "UPDATE external_status_checks SET paused_at = now(), pause_reason = 'x' WHERE id = %(id)s"
    await scene.forge.execute(paused, id=scene.check_id)
    await browser.get(f"{scene.path}/{made['iid']}")
    assert "the check is paused: nothing is sent until it is resumed" in words(browser)
    check = (
        f"{scene.path.removesuffix('merge_requests')}settings/merge_requests/status_checks/{scene.check_id}"
    )
    assert f'<a href="{check}">scanner</a>' in browser.text
    api = f"/projects/{scene.project['id']}/external_status_checks/{scene.check_id}"
    assert (await scene.owner.api.put(api, {"paused": False})).status == 200


async def test_every_reason_of_the_service_has_words(scene: Scene) -> None:
    """Those that the database's functions yield."""
    source = await scene.forge.database.value(
        "SELECT string_agg(pg_get_functiondef(oid), ' ') FROM pg_proc"
        " WHERE proname IN ('detailed_merge_status', 'ci_merge_status')"
    )
    yielded = set(re.findall(r"(?:THEN|ELSE|\),) '(\w+)'", source)) - {"mergeable"}
    assert yielded == set(OBSTACLES)


async def test_it_is_approved_and_not_any_more(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("approved", title="To be approved")
    page = f"{scene.path}/{made['iid']}"
    await (await browser.get(page)).send(f"{page}/approve")
    assert "You approve of it." in browser.text
    await browser.send(f"{page}/unapprove")
    assert "Approved by nobody yet" in words(browser)


async def test_deliveries_are_shown_and_sent_again(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("checked", title="To be checked")
    page = f"{scene.path}/{made['iid']}"
    deliveries = f"/projects/{scene.project['id']}/external_status_checks/{scene.check_id}/deliveries"
    sent = (await scene.owner.api.get(deliveries)).body[0]
    async with scene.forge.database.transaction() as transaction:
        await transaction.run(
            "UPDATE status_check_deliveries SET status = 'failed', next_attempt_at = NULL WHERE id = %(id)s",
            id=sent["id"],
        )
    await browser.get(page)
    assert re.search(
        r"failed scanner ?: open, .* (not tried yet|attempts?, the last .*: \w+)", words(browser)
    )
    await browser.send(f"{page}/redeliver", check_id=str(scene.check_id), delivery_id=str(sent["id"]))
    assert "The message is sent again." in browser.text
    answer = await scene.owner.api.get(f"{deliveries}/{sent['id']}")
    assert answer.body["status"] == "queued"
    events = (await scene.owner.api.get(f"/projects/{scene.project['id']}/audit_events")).body
    assert "status_check_delivery_redelivered" in [event["details"]["event_name"] for event in events]


async def test_a_check_that_failed_is_asked_again(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("retried", title="To be retried")
    one = f"/projects/{scene.project['id']}/merge_requests/{made['iid']}"
    values = {"sha": made["sha"], "external_status_check_id": scene.check_id, "status": "failed"}
    assert (await scene.owner.api.post(f"{one}/status_check_responses", values)).status == 201
    page = f"{scene.path}/{made['iid']}"
    await (await browser.get(page)).send(f"{page}/retry_check", check_id=str(scene.check_id))
    assert "The check is asked again." in browser.text
    (answer,) = (await scene.owner.api.get(f"{one}/status_checks/{scene.check_id}/responses")).body
    assert answer["retried_at"] is not None


async def test_who_may_only_look_has_no_buttons_and_no_deliveries(scene: Scene) -> None:
    made = await scene.merge_request("looked-at", title="To be looked at")
    page = f"{scene.path}/{made['iid']}"
    async with browsing(scene.forge, scene.reporter) as looking:
        await looking.get(page)
        assert (looking.status, "What was sent to them" in looking.text) == (200, False)
        assert re.findall(r'action="([^"]+)"', looking.text) == ["/-/sign_out", f"{page}/notes"]
        for action in ("merge", "approve", "redeliver"):
            await looking.send(f"{page}/{action}", sha=made["sha"], check_id="1", delivery_id="1")
            assert looking.status == 403, action
            await looking.get(page)
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page)).path == "/-/sign_in"
    assert (await scene.read(made["iid"]))["state"] == "opened"


async def test_those_of_public_projects_are_for_everybody_to_look_at(scene: Scene) -> None:
    project = await new_project(scene.forge, scene.owner, visibility="public")
    made = await open_merge_request(scene.owner, project, "public")
    path = f"/{project['path_with_namespace']}/-/merge_requests"
    async with browsing(scene.forge) as stranger:
        assert "Add a feature" in (await stranger.get(path)).text
        await stranger.get(f"{path}/{made['iid']}")
        assert (stranger.status, "<form" in stranger.text) == (200, False)
        assert (await stranger.get(f"{path}/999")).status == 404
