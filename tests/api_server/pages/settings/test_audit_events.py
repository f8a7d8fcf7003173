"""Audit events of a project and of a group: who sees which, filters, and download as a file."""

import csv
import io

import orjson
import pytest

from tests.api_server.pages.settings.conftest import Scene, new_scene
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, SharedForges


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    return await new_scene(forge)


@pytest.fixture(scope="module")
async def labelled(scene: Scene) -> Scene:
    """A scene in which the owner and the developer have each done something that is recorded."""
    variable = {"key": "OWNERS", "value": "12345678"}
    assert (await scene.owner.api.post(f"{scene.api}/variables", variable)).status == 201
    release = {"tag_name": "v1", "ref": "main", "name": "<b>Developers' release</b>"}
    made = await scene.people["developer"].api.post(f"{scene.api}/releases", release)
    assert made.status == 201, made
    group_variable = {"key": "OF_GROUP", "value": "12345678"}
    url = f"/groups/{scene.group['id']}/variables"
    assert (await scene.owner.api.post(url, group_variable)).status == 201
    return scene


async def test_maintainers_see_everything_and_developers_what_they_have_done(labelled: Scene) -> None:
    page = f"{labelled.of_project}/-/audit_events"
    async with labelled.browsing("maintainer") as browser:
        await browser.get(page)
        assert browser.status == 200
        assert ("OWNERS" in browser.text, "release_created, #" in browser.text) == (True, True)
        assert "&lt;b&gt;Developers" in browser.text
        assert f'<a href="/{labelled.owner.username}">' in browser.text
    async with labelled.browsing("developer") as browser:
        await browser.get(page)
        assert ("OWNERS" in browser.text, "release_created, #" in browser.text) == (False, True)
        assert "Maintainers see all events." in browser.text
        await browser.get(f"{page}/export?format=ndjson")
        events = [orjson.loads(line) for line in browser.text.splitlines()]
        assert {event["author_id"] for event in events} == {labelled.people["developer"].id}


async def test_reporters_are_refused_and_strangers_sign_in(labelled: Scene) -> None:
    pages = [f"{labelled.of_project}/-/audit_events", f"{labelled.of_project}/-/audit_events/export"]
    async with labelled.browsing("reporter") as browser:
        assert [(await browser.get(page)).status for page in pages] == [403, 403]
    async with browsing(labelled.forge) as stranger:
        for page in [*pages, f"{labelled.of_group}/-/audit_events"]:
            assert (await stranger.get(page)).path == "/-/sign_in"
    async with labelled.browsing("maintainer") as browser:
        assert (await browser.get(f"{labelled.of_group}/-/audit_events")).status == 404


async def test_a_group_has_its_own(labelled: Scene, owner: Browser) -> None:
    await owner.get(f"{labelled.of_group}/-/audit_events")
    assert owner.status == 200
    assert ("OF_GROUP" in owner.text, "OWNERS" in owner.text) == (True, False)


async def test_filters_narrow_the_list_and_its_files(labelled: Scene, maintainer: Browser) -> None:
    page = f"{labelled.of_project}/-/audit_events"
    developer = labelled.people["developer"]
    await maintainer.get(f"{page}?author_username={developer.username}&event_type=&created_after=")
    assert ("OWNERS" in maintainer.text, "release_created, #" in maintainer.text) == (False, True)
    await maintainer.get(f"{page}?created_before=2001-01-01T00:00")
    assert "No audit events match the filters." in maintainer.text
    await maintainer.get(f"{page}?created_before=yesterday")
    assert maintainer.status == 400
    await maintainer.get(f"{page}/export?author_username={developer.username}&format=csv")
    rows = list(csv.DictReader(io.StringIO(maintainer.text)))
    shown = (await labelled.owner.api.get(f"{labelled.api}/audit_events?author_id={developer.id}")).body
    assert [row["id"] for row in rows] == [str(event["id"]) for event in shown]


async def test_a_filter_does_not_lead_to_what_others_have(labelled: Scene, maintainer: Browser) -> None:
    """The filters of administrators' lists do not work here."""
    await maintainer.get(f"{labelled.of_project}/-/audit_events?entity_type=User&entity_id=1&own_author_id=1")
    assert "OWNERS" in maintainer.text
    assert "the instance" not in maintainer.text


async def test_the_licence_decides_as_in_the_api(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    person = await forge.user("owner")
    project = await forge.project(person)
    async with browsing(forge, person) as browser:
        for path in ("", "/export"):
            await browser.get(f"/{project['path_with_namespace']}/-/audit_events{path}")
            assert browser.status == 403
            assert "not available on the free tier" in browser.text
