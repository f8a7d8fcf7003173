"""Pages of merge requests without scripts: their content, their forms and buttons, and who sees them."""

import re
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from api_server.pages import merge_request_forms
from api_server.pages.merge_requests import OBSTACLES
from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, new_project, open_merge_request


@attrs.frozen
class Scene:
    """A project with an unreachable check; `reporter` may only read."""

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

    async def read(self, iid: int, below: str = "") -> Any:
        return (await self.owner.api.get(f"/projects/{self.project['id']}/merge_requests/{iid}{below}")).body


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
    """The owner's browser."""
    async with browsing(scene.forge, scene.owner) as opened:
        yield opened


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
    text = browser.words
    assert re.search(r"@@ -0,0 \+1 @@ \+\d+", text)
    assert "Ready to merge." in text
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
    assert "Closed by" in (await browser.get(f"{scene.path}/{made['iid']}")).words


async def test_it_is_merged_as_it_was_seen(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("merged", title="To be merged")
    page = f"{scene.path}/{made['iid']}"
    await browser.get(page)
    await commit(scene.owner.api, scene.project, "merged")
    await browser.send(f"{page}/merge")
    assert browser.status == 409  # not what the visitor has seen
    assert (await scene.read(made["iid"]))["state"] == "opened"
    await (await browser.get(page)).send(f"{page}/merge", remove_source_branch="true")
    assert (browser.status, browser.path) == (200, page)
    assert "Merged by" in browser.words
    branch = await scene.owner.api.get(f"/projects/{scene.project['id']}/repository/branches/merged")
    assert branch.status == 404


async def test_it_is_said_why_it_cannot_be_merged(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("draft", title="Draft: not yet")
    await browser.get(f"{scene.path}/{made['iid']}")
    assert f"Merge blocked: {OBSTACLES['draft_status']}" in browser.words
    assert '<button class="main">Merge' not in browser.text


async def test_an_obstacle_leads_to_where_it_is_removed(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("demanded", title="Against the demands")
    page, project = f"{scene.path}/{made['iid']}", f"/projects/{scene.project['id']}"
    demands = f'<a href="{scene.path.removesuffix("merge_requests")}settings/merge_requests">Merge request settings</a>'
    checks = '<a href="#checks">View status checks</a>'
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
    assert ("Ready to merge." in browser.text, checks in browser.text) == (True, False)


async def test_a_delivery_of_a_paused_check_says_so(browser: Browser, scene: Scene) -> None:
    made = await scene.merge_request("paused", title="To a paused check")
    paused = "UPDATE external_status_checks SET paused_at = now(), pause_reason = 'x' WHERE id = %(id)s"
    await scene.forge.execute(paused, id=scene.check_id)
    await browser.get(f"{scene.path}/{made['iid']}")
    assert "the status check is paused: nothing is sent until it is resumed" in browser.words
    check = (
        f"{scene.path.removesuffix('merge_requests')}settings/merge_requests/status_checks/{scene.check_id}"
    )
    assert f'<a href="{check}">scanner</a>' in browser.text
    api = f"/projects/{scene.project['id']}/external_status_checks/{scene.check_id}"
    assert (await scene.owner.api.put(api, {"paused": False})).status == 200


async def test_every_reason_of_the_service_has_words(scene: Scene) -> None:
    """This applies to every reason that the database's functions yield."""
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
    assert "Merge request approved." in browser.text
    await browser.send(f"{page}/unapprove")
    assert "Approved by no one yet" in browser.words


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
    assert re.search(r"failed scanner ?: open, .* (no attempts yet|attempts?, last .*: \w+)", browser.words)
    await browser.send(f"{page}/redeliver", check_id=str(scene.check_id), delivery_id=str(sent["id"]))
    assert "Redelivery queued." in browser.text
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
    assert "Status check retried." in browser.text
    (answer,) = (await scene.owner.api.get(f"{one}/status_checks/{scene.check_id}/responses")).body
    assert answer["retried_at"] is not None


async def test_who_may_only_look_has_no_buttons_and_no_deliveries(scene: Scene) -> None:
    made = await scene.merge_request("looked-at", title="To be looked at")
    page = f"{scene.path}/{made['iid']}"
    async with browsing(scene.forge, scene.reporter) as looking:
        await looking.get(page)
        assert (looking.status, "Deliveries" in looking.text) == (200, False)
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


@pytest.fixture
async def reporter(scene: Scene) -> AsyncIterator[Browser]:
    async with browsing(scene.forge, scene.reporter) as opened:
        yield opened


async def test_a_merge_request_is_made_of_two_branches(browser: Browser, scene: Scene) -> None:
    await commit(scene.owner.api, scene.project, "12-make-it/fast-now", start_branch="main")
    await browser.get(scene.path)
    assert f'href="{scene.path}/new"' in browser.text
    await browser.get(f"{scene.path}/new")
    assert '<option value="12-make-it/fast-now">12-make-it/fast-now</option>' in browser.text
    assert '<option value="main" selected>main</option>' in browser.text
    await browser.get(f"{scene.path}/new?merge_request%5Bsource_branch%5D=12-make-it/fast-now")
    assert (browser.status, 'name="title" type="text" value="Change ' in browser.text) == (200, True)
    assert "1 file changed" in browser.text
    fields = {"description": "Because\n\n- of <this>", "draft": "true", "labels": "one, two"}
    ids = {"reviewer_ids[]": str(scene.reporter.id), "squash": "true", "remove_source_branch": "false"}
    await browser.send(scene.path, title="Faster", **fields, **ids)
    iid = int(browser.path.rpartition("/")[2])
    assert (browser.status, browser.title) == (200, f'Draft: Faster <span class="quiet">!{iid}</span>')
    made = await scene.read(iid)
    assert {
        key: made[key] for key in ("title", "description", "labels", "squash", "draft", "source_branch")
    } == {
        "title": "Draft: Faster",
        "description": "Because\n\n- of <this>",
        "labels": ["one", "two"],
        "squash": True,
        "draft": True,
        "source_branch": "12-make-it/fast-now",
    }
    assert [person["id"] for person in made["reviewers"]] == [scene.reporter.id]
    await browser.get(f"{scene.path}/new?source_branch=12-make-it/fast-now")
    await browser.send(scene.path, title="Again", description="Not lost")
    assert (browser.status, "Another open merge request already exists" in browser.words) == (409, True)
    assert 'value="Again"' in browser.text
    assert ">\nNot lost</textarea>" in browser.text


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?source_branch=nothing", "The source or target branch does not exist."),
        ("?source_branch=main", "main has no commits that are not already in main."),
    ],
)
async def test_branches_that_cannot_be_merged_are_told(
    browser: Browser, scene: Scene, query: str, told: str
) -> None:
    await browser.get(f"{scene.path}/new{query}")
    assert (browser.status, told in browser.words) == (200, True)
    assert 'name="title"' not in browser.text


async def test_a_merge_request_is_edited_closed_and_opened_again(browser: Browser, scene: Scene) -> None:
    made = await open_merge_request(
        scene.owner, scene.project, "edited", labels="old", reviewer_ids=[scene.reporter.id]
    )
    path = f"{scene.path}/{made['iid']}"
    await browser.get(f"{path}/edit")
    await browser.send(f"{path}/edit", title=" ", description="Kept")
    assert (
        browser.status,
        "Title can't be blank." in browser.words,
        ">\nKept</textarea>" in browser.text,
    ) == (
        400,
        True,
        True,
    )
    await browser.send(
        f"{path}/edit", title="New title", description="Text", labels="", **{"reviewer_ids[]": ""}
    )
    assert (browser.status, browser.path) == (200, path)
    after = await scene.read(made["iid"])
    assert (after["title"], after["description"], after["labels"], after["reviewers"]) == (
        "New title",
        "Text",
        [],
        [],
    )
    for button, expected in (
        ("draft", {"title": "Draft: New title", "state": "opened"}),
        ("close", {"title": "Draft: New title", "state": "closed"}),
        ("reopen", {"title": "Draft: New title", "state": "opened"}),
        ("draft", {"title": "New title", "state": "opened"}),
    ):
        await browser.get(path)
        assert f'action="{path}/{button}"' in browser.text
        await browser.send(f"{path}/{button}")
        after = await scene.read(made["iid"])
        assert {key: after[key] for key in expected} == expected


async def test_people_talk_and_resolve_threads(browser: Browser, reporter: Browser, scene: Scene) -> None:
    made = await open_merge_request(scene.owner, scene.project, "talk")
    path = f"{scene.path}/{made['iid']}"
    await reporter.get(path)
    await reporter.send(f"{path}/notes", body="  ")
    assert (reporter.status, "Comment can't be blank." in reporter.words) == (400, True)
    await reporter.send(f"{path}/notes", body="Is <b>this</b> right?", thread="true")
    assert (reporter.status, reporter.path) == (200, path)
    assert "Is <b>this</b> right?" in reporter.text
    assert "unresolved" in reporter.text
    (thread,) = await scene.read(made["iid"], "/discussions")
    at = f"{path}/discussions/{thread['id']}"
    assert f'action="{at}/resolve"' not in reporter.text
    await browser.get(path)
    await browser.send(f"{at}/notes", body="")
    assert browser.status == 400
    assert '<details class="reply" open>' in browser.text
    await browser.send(f"{at}/notes", body="It is.")
    await browser.send(f"{at}/resolve", resolved="true")
    assert "2 comments" in browser.words
    (thread,) = await scene.read(made["iid"], "/discussions")
    assert [(note["body"], note["resolved"]) for note in thread["notes"]] == [
        ("Is <b>this</b> right?", True),
        ("It is.", True),
    ]
    await browser.send(f"{at}/resolve", resolved="false")
    assert "unresolved" in browser.text


async def test_the_newest_threads_are_shown_first_of_many(
    browser: Browser, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api_server.pages.merge_requests.MAX_THREADS", 2)
    made = await open_merge_request(scene.owner, scene.project, "many")
    url = f"/projects/{scene.project['id']}/merge_requests/{made['iid']}/notes"
    for number in range(3):
        assert (await scene.owner.api.post(url, {"body": f"Note {number}"})).status == 201
    path = f"{scene.path}/{made['iid']}"
    text = (await browser.get(path)).words
    assert ("Note 0" in text, "Note 2" in text) == (False, True)
    text = (await browser.get(f"{path}?page=1")).words
    assert ("Note 0" in text, "Note 2" in text) == (True, False)
    first = (await scene.read(made["iid"], "/discussions"))[0]
    await browser.send(f"{path}/discussions/{first['id']}/notes", body="Answer")
    assert (browser.path_qs, "Answer" in browser.text) == (f"{path}?page=1", True)


async def test_readers_comment_and_change_nothing(reporter: Browser, scene: Scene) -> None:
    made = await open_merge_request(scene.owner, scene.project, "readers")
    path = f"{scene.path}/{made['iid']}"
    await reporter.get(path)
    actions = set(re.findall(r'action="([^"]*)"', reporter.text))
    assert actions == {"/-/sign_out", f"{path}/notes"}
    for button in ("close", "edit", "draft"):
        await reporter.get(path)
        await reporter.send(f"{path}/{button}", title="Mine", draft="true")
        assert reporter.status == 403
    assert "/new" not in (await reporter.get(scene.path)).text
    assert (await reporter.get(f"{scene.path}/new")).status == 403
    assert (await scene.read(made["iid"]))["title"] == made["title"]


async def test_a_comment_is_edited_and_deleted_by_its_author(scene: Scene) -> None:
    """It is marked as edited only if its text has changed; other people see neither form, and are refused."""
    made = await open_merge_request(scene.owner, scene.project, "reworded")
    stranger = await scene.forge.new_member(scene.project["id"], Role.DEVELOPER)
    here = f"{scene.path}/{made['iid']}"
    notes = f"/projects/{scene.project['id']}/merge_requests/{made['iid']}/notes"
    thread = f"/projects/{scene.project['id']}/merge_requests/{made['iid']}/discussions"
    begun = (await scene.reporter.api.post(thread, {"body": "Frist"}, expect=201)).body
    note = begun["notes"][0]["id"]
    for resolved in (True, False):
        await scene.owner.api.put(f"{thread}/{begun['id']}", {"resolved": resolved}, expect=200)
    async with browsing(scene.forge, scene.reporter) as author, browsing(scene.forge, stranger) as other:
        await author.get(here)
        assert "· edited" not in author.text
        await author.send(f"{here}/notes/{note}/edit", body=" ")
        assert (author.status, "Your comment is empty." in author.words) == (400, True)
        await author.send(f"{here}/notes/{note}/edit", body="First **now**")
        assert (author.status, author.path, "First <strong>now</strong>" in author.text) == (200, here, True)
        assert "· edited" in author.text
        assert f"{here}/notes/{note}/edit" not in (await other.get(here)).text
        for deed in ("edit", "delete"):
            assert (await other.send(f"{here}/notes/{note}/{deed}", body="Mine")).status == 403
        assert (await scene.owner.api.get(f"{notes}/{note}")).body["body"] == "First **now**"
        await author.send(f"{here}/notes/{note}/delete")
        assert "Comment deleted." in author.text
    assert (await scene.owner.api.get(f"{notes}/{note}")).status == 404


async def test_what_is_not_offered_is_typed(
    browser: Browser, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form offers only some branches and people, but always those of the merge request."""
    for branch in ("z-source", "z-target"):
        await commit(scene.owner.api, scene.project, branch, start_branch="main")
    last = await scene.forge.new_member(scene.project["id"], Role.DEVELOPER, "zoe")
    await browser.get(f"{scene.path}/new")
    assert '<option value="z-source">z-source</option>' in browser.text
    monkeypatch.setattr(merge_request_forms, "_MAX_BRANCHES", 1)
    monkeypatch.setattr(merge_request_forms, "_MAX_PEOPLE", 1)
    await browser.get(f"{scene.path}/new")
    assert ('list="source_branch-offered"' in browser.text, "z-source" in browser.text) == (True, False)
    await browser.get(f"{scene.path}/new?source_branch=z-source&target_branch=z-target")
    fields = {"source_branch": "z-source", "target_branch": "z-target", "title": "Typed"}
    await browser.send(scene.path, **fields, reviewer_names="@nobody-is-called-so")
    text = "No user with the username @nobody-is-called-so."
    assert (browser.status, text in browser.words) == (400, True)
    await browser.send(scene.path, **fields, reviewer_names=f"@{last.username}")
    iid = int(browser.path.rpartition("/")[2])
    made = await scene.read(iid)
    assert [each["id"] for each in made["reviewers"]] == [last.id]
    assert (made["target_branch"], made["assignees"]) == ("z-target", [])
    await browser.get(f"{scene.path}/{iid}/edit")
    assert 'value="z-target"' in browser.text
    assert re.search(rf'name="reviewer_ids\[\]" value="{last.id}" checked', browser.text)
