"""Merge request settings: how merges are made, status checks and their deliveries."""

from typing import Any

import pytest

from tests.api_server.pages.settings.conftest import Scene, new_scene
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, SharedForges
from tests.support.merge_requests import open_merge_request

SECRET = "hmac-of-the-tests"


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    """One of the test's own."""
    return await new_scene(forge)


def page_of(scene: Scene) -> str:
    return f"{scene.of_project}/-/settings/merge_requests"


async def checks_of(scene: Scene) -> list[dict[str, Any]]:
    return list((await scene.owner.api.get(f"{scene.api}/external_status_checks")).body)


async def new_check(scene: Scene, **values: Any) -> dict[str, Any]:
    check = {"name": "Quality", "external_url": "https://198.51.100.7/hook"} | values
    made = await scene.owner.api.post(f"{scene.api}/external_status_checks", check)
    assert made.status == 201, made
    return dict(made.body)


async def test_only_maintainers_open_it(scene: Scene) -> None:
    async with scene.browsing("developer") as browser:
        assert (await browser.get(page_of(scene))).status == 403
        await browser.send(f"{page_of(scene)}/update", merge_method="ff")
        assert browser.status == 403
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page_of(scene))).path == "/-/sign_in"


async def test_merge_settings_are_saved_also_those_that_are_switched_off(
    scene: Scene, maintainer: Browser
) -> None:
    await maintainer.get(page_of(scene))
    await maintainer.send(
        f"{page_of(scene)}/update",
        merge_method="ff",
        squash_option="always",
        only_allow_merge_if_pipeline_succeeds="true",
        remove_source_branch_after_merge="true",
    )
    assert (maintainer.status, maintainer.path) == (200, page_of(scene))
    saved = (await scene.owner.api.get(scene.api)).body
    assert (saved["merge_method"], saved["squash_option"]) == ("ff", "always")
    assert saved["only_allow_merge_if_pipeline_succeeds"]
    await maintainer.send(f"{page_of(scene)}/update")  # every box is empty
    saved = (await scene.owner.api.get(scene.api)).body
    assert not saved["only_allow_merge_if_pipeline_succeeds"]
    assert (saved["merge_method"], saved["remove_source_branch_after_merge"]) == ("ff", False)


async def test_a_check_is_made_and_its_secret_never_shown(scene: Scene, maintainer: Browser) -> None:
    (branch,) = (await scene.owner.api.get(f"{scene.api}/protected_branches")).body
    await maintainer.get(page_of(scene))
    fields = {"name": "Quality", "external_url": "https://198.51.100.7/hook", "shared_secret": SECRET}
    limited = {"applies_to": "some", "protected_branch_ids[]": str(branch["id"])}
    await maintainer.send(f"{page_of(scene)}/status_checks", **fields, **limited)
    (check,) = await checks_of(scene)
    one = f"{page_of(scene)}/status_checks/{check['id']}"
    assert (maintainer.status, maintainer.path, SECRET in maintainer.text) == (200, one, False)
    assert (check["hmac"], [each["name"] for each in check["protected_branches"]]) == (True, ["main"])
    await maintainer.send(
        f"{one}/update", name="Renamed", external_url=fields["external_url"], applies_to="all"
    )
    (changed,) = await checks_of(scene)
    assert (changed["name"], changed["hmac"], changed["protected_branches"]) == ("Renamed", True, [])
    await maintainer.send(
        f"{one}/update", name="Renamed", external_url=fields["external_url"], forget_secret="true"
    )
    assert not (await checks_of(scene))[0]["hmac"]
    await maintainer.send(f"{one}/delete")
    assert (maintainer.path, "The status check is deleted." in maintainer.text) == (page_of(scene), True)
    assert await checks_of(scene) == []


async def test_a_refused_check_comes_back_without_its_secret(scene: Scene, maintainer: Browser) -> None:
    await new_check(scene)
    await maintainer.get(page_of(scene))
    fields = {"name": "Quality", "external_url": "https://198.51.100.7/other", "shared_secret": SECRET}
    await maintainer.send(f"{page_of(scene)}/status_checks", **fields)
    assert (maintainer.status, "Name has already been taken" in maintainer.text) == (422, True)
    assert (fields["external_url"] in maintainer.text, SECRET in maintainer.text) == (True, False)
    assert len(await checks_of(scene)) == 1


async def test_credentials_in_the_address_of_a_check_are_kept_and_not_shown(
    scene: Scene, maintainer: Browser
) -> None:
    url = f"https://hook:{SECRET}@198.51.100.7/hook"
    check = await new_check(scene, external_url=url)
    one = f"{page_of(scene)}/status_checks/{check['id']}"
    for page in (page_of(scene), one):
        await maintainer.get(page)
        assert ("https://*****:*****@198.51.100.7/hook" in maintainer.text, SECRET in maintainer.text) == (
            True,
            False,
        )
    address = "https://*****:*****@198.51.100.7/hook"
    await maintainer.send(f"{one}/update", name="Renamed", external_url=address, applies_to="all")
    (changed,) = await checks_of(scene)
    assert (changed["name"], changed["external_url"]) == ("Renamed", url)
    await maintainer.send(f"{one}/update", name="", external_url=url.replace("/hook", "/other"))
    assert (maintainer.status, SECRET in maintainer.text) == (422, False)
    assert 'value="https://198.51.100.7/other"' in maintainer.text
    assert "Type the credentials again" in maintainer.text


async def test_deliveries_are_shown_with_what_happens_next_and_sent_again(
    scene: Scene, maintainer: Browser
) -> None:
    check = await new_check(scene)
    await open_merge_request(scene.owner, scene.project)
    (delivery,) = (
        await scene.owner.api.get(f"{scene.api}/external_status_checks/{check['id']}/deliveries")
    ).body
    one = f"{page_of(scene)}/status_checks/{check['id']}"
    await maintainer.get(one)
    assert f"No. {delivery['id']}</a>" in maintainer.text
    await maintainer.get(f"{one}?status=delivered")
    assert "No deliveries are like that." in maintainer.text
    await maintainer.get(f"{one}/deliveries/{delivery['id']}")
    assert (maintainer.status, delivery["webhook_id"] in maintainer.text) == (200, True)
    sent = maintainer.hidden | {"back": one}
    for said in (True, False):  # as by a double click
        await maintainer.post(f"{one}/deliveries/{delivery['id']}/redeliver", sent)
        assert (maintainer.path, "The message is sent again." in maintainer.text) == (one, said)
    assert len(await scene.events("status_check_delivery_redelivered")) == 1
    paused = (
        "UPDATE external_status_checks SET paused_at = now(), pause_reason = 'It failed.' WHERE id = %(id)s"
    )
    await scene.forge.execute(paused, id=check["id"])
    await maintainer.get(one)
    assert "nothing is sent until it is resumed" in maintainer.text
    await maintainer.send(f"{one}/resume", back=one)
    assert (maintainer.path, "The check is resumed" in maintainer.text) == (one, True)
    assert not (await checks_of(scene))[0]["paused"]


async def test_a_check_of_another_project_is_none_here(scene: Scene, maintainer: Browser) -> None:
    other = await new_scene(scene.forge)
    check = await new_check(other)
    await maintainer.get(f"{page_of(scene)}/status_checks/{check['id']}")
    assert maintainer.status == 404
    await maintainer.get(page_of(scene))
    await maintainer.send(f"{page_of(scene)}/status_checks/{check['id']}/delete")
    assert maintainer.status == 404
    assert len(await checks_of(other)) == 1


async def test_without_a_licence_the_merge_settings_stay(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    person = await forge.user("owner")
    project = await forge.project(person)
    async with browsing(forge, person) as browser:
        await browser.get(f"/{project['path_with_namespace']}/-/settings/merge_requests")
        assert (browser.status, "not available on the free tier" in browser.text) == (200, True)


@pytest.mark.parametrize(
    "path", ["update", "status_checks", "status_checks/1/delete", "status_checks/1/update"]
)
async def test_forms_that_are_not_ours_do_nothing(scene: Scene, maintainer: Browser, path: str) -> None:
    await maintainer.get(page_of(scene))
    fields = {"name": "Quality", "external_url": "https://198.51.100.7/hook", "merge_method": "ff"}
    await maintainer.send(f"{page_of(scene)}/{path}", csrf_token="another", **fields)
    assert (maintainer.status, await checks_of(scene)) == (403, [])
    assert (await scene.owner.api.get(scene.api)).body["merge_method"] == "merge"
