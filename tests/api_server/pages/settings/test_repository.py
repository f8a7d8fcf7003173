"""Settings of a repository and of merging: mirrors, protected refs, status checks and their deliveries."""

from typing import Any

import pytest

from api_server.pages.settings.repository import remedy
from tests.api_server.pages.settings.conftest import Scene, new_scene
from tests.support.browser import Browser, browsing
from tests.support.forge import SharedForges
from tests.support.merge_requests import open_merge_request
from tests.support.ports import free_port

SECRET = "s3cret:with@odd/characters"


def page_of(scene: Scene) -> str:
    return f"{scene.of_project}/-/settings/repository"


async def branches_of(scene: Scene) -> dict[str, tuple[int, int, bool]]:
    """Return who may push and merge, and whether by force, by the rules' names."""
    rules = await scene.read("/protected_branches")
    return {
        rule["name"]: (
            rule["push_access_levels"][0]["access_level"],
            rule["merge_access_levels"][0]["access_level"],
            rule["allow_force_push"],
        )
        for rule in rules
    }


async def test_only_maintainers_open_it(scene: Scene) -> None:
    async with scene.browsing("developer") as browser:
        assert (await browser.get(page_of(scene))).status == 403
        await browser.send(f"{page_of(scene)}/branches", name="v1")
        assert browser.status == 403
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page_of(scene))).path == "/-/sign_in"
    async with scene.browsing("maintainer") as browser:
        assert (await browser.get(page_of(scene))).status == 200


async def test_a_mirror_is_made_with_credentials_that_are_never_shown(
    scene: Scene, maintainer: Browser
) -> None:
    fields = {
        "url": "https://198.51.100.7/team/copy.git",
        "user": "mirror user",
        "password": SECRET,
        "auth_method": "password",
        "branches": "regex",
        "mirror_branch_regex": "main|release/.*",
        "keep_divergent_refs": "true",
        "enabled": "true",
    }
    await maintainer.get(page_of(scene))
    await maintainer.send(f"{page_of(scene)}/mirrors", **fields)
    assert (maintainer.status, maintainer.path) == (200, page_of(scene))
    (mirror,) = await scene.read("/remote_mirrors")
    assert mirror["url"] == "https://*****:*****@198.51.100.7/team/copy.git"
    assert (mirror["mirror_branch_regex"], mirror["keep_divergent_refs"], mirror["enabled"]) == (
        "main|release/.*",
        True,
        True,
    )
    assert (SECRET in maintainer.text, "mirror user" in maintainer.text) == (False, False)
    assert mirror["url"] in maintainer.text
    credentials = "SELECT credentials FROM remote_mirrors WHERE id = %(id)s"
    before = await scene.forge.database.value(credentials, id=mirror["id"])
    change = fields | {"url": mirror["url"], "user": "", "password": "", "branches": "protected"}
    await maintainer.send(f"{page_of(scene)}/mirrors/{mirror['id']}", **change)
    (changed,) = await scene.read("/remote_mirrors")
    assert (changed["only_protected_branches"], changed["mirror_branch_regex"]) == (True, None)
    assert await scene.forge.database.value(credentials, id=mirror["id"]) == before


async def test_a_refused_mirror_comes_back_without_its_password(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    for fields, problem in (
        ({"url": "not an address"}, "new-mirror-url-problem"),
        ({"url": "no scheme", "password": SECRET}, "new-mirror-url-problem"),
        (
            {"url": "https://198.51.100.7/x.git", "branches": "regex"},
            "new-mirror-mirror_branch_regex-problem",
        ),
        (
            {"url": "https://198.51.100.7/x.git", "branches": "regex", "mirror_branch_regex": "("},
            "new-mirror-mirror_branch_regex-problem",
        ),
    ):
        await maintainer.send(f"{page_of(scene)}/mirrors", **{"branches": "all", "password": SECRET} | fields)
        assert maintainer.status in (400, 422), maintainer.text
        assert f'id="{problem}"' in maintainer.text, maintainer.text
        assert f'value="{fields["url"]}"' in maintainer.text
        assert SECRET not in maintainer.text
    fields = {"url": f"https://me:{SECRET}@198.51.100.7/x.git", "branches": "regex"}
    await maintainer.send(f"{page_of(scene)}/mirrors", **fields)
    assert (maintainer.status, SECRET in maintainer.text) == (422, False)
    assert 'value="https://198.51.100.7/x.git"' in maintainer.text
    assert "Enter the credentials again: they are not shown." in maintainer.text
    assert await scene.read("/remote_mirrors") == []


async def test_a_mirror_is_synced_and_deleted_and_its_failure_is_explained(
    scene: Scene, maintainer: Browser
) -> None:
    async with scene.forge.instance_settings(outbound_local_requests_whitelist=["127.0.0.1"]):
        target = {"url": f"http://127.0.0.1:{free_port()}/x.git", "enabled": True}
        made = (await scene.owner.api.post(f"{scene.api}/remote_mirrors", target)).body
        one = f"{page_of(scene)}/mirrors/{made['id']}"
        await maintainer.get(page_of(scene))
        assert "or with Sync now." in maintainer.text
        await maintainer.send(f"{one}/sync")
        assert "The mirror will be updated shortly." in maintainer.text
        await scene.owner.api.until(
            f"{scene.api}/remote_mirrors/{made['id']}", lambda shown: shown["update_status"] == "to_retry"
        )
    await maintainer.get(page_of(scene))
    assert "The target does not respond. Check that it is running, then sync." in maintainer.text
    assert "Will be retried at 20" in maintainer.text
    await scene.owner.api.put(f"{scene.api}/remote_mirrors/{made['id']}", {"enabled": False})
    await maintainer.get(page_of(scene))
    assert "The mirror is disabled." in maintainer.text
    await maintainer.send(f"{one}/sync")
    assert "Nothing was done: " in maintainer.text
    await maintainer.send(f"{one}/delete")
    assert "Mirror deleted." in maintainer.text
    assert await scene.read("/remote_mirrors") == []
    assert [event["author_id"] for event in await scene.events("deploy_key_added")] == []


async def test_the_public_key_of_a_mirror_is_shown(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    fields = {"url": "ssh://git@198.51.100.7/x.git", "auth_method": "ssh_public_key", "branches": "all"}
    await maintainer.send(f"{page_of(scene)}/mirrors", **fields)
    (mirror,) = await scene.read("/remote_mirrors")
    key = await scene.read(f"/remote_mirrors/{mirror['id']}/public_key")
    assert f'<code class="token">{key["public_key"]}</code>' in maintainer.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("fatal: Authentication failed for 'https://x/'", "Change them"),
        ("git@x: Permission denied (publickey).", "Change them"),
        ("Could not resolve host: exmple.org", "Correct the URL"),
        (
            "The refs of the target could not be listed: Failed to connect to 127.0.0.1",
            "Check that it is running",
        ),
        (
            "Some refs have diverged and have not been updated on the remote:\n\nrefs/heads/x",
            "Merge their commits here",
        ),
        ("refs/heads/x: pre-receive hook declined", "Allow the account"),
        ("remote: Repository not found", "create the repository"),
        ("Something that nobody has heard of", "Correct the target"),
    ],
)
def test_each_failure_has_something_to_do(error: str, words: str) -> None:
    assert words in remedy(error)


async def test_branches_are_protected_changed_and_unprotected(scene: Scene, maintainer: Browser) -> None:
    before = await branches_of(scene)
    await maintainer.get(page_of(scene))
    fields = {"name": "release/*", "push_access_level": "0", "merge_access_level": "30"}
    await maintainer.send(f"{page_of(scene)}/branches", **fields, allow_force_push="true")
    assert (maintainer.status, maintainer.path) == (200, page_of(scene))
    assert await branches_of(scene) == before | {"release/*": (0, 30, True)}
    await maintainer.send(f"{page_of(scene)}/branches", **fields)
    assert (maintainer.status, "already exists" in maintainer.text) == (409, True), maintainer.text
    rule = f"{page_of(scene)}/branches/release/*"
    levels = {"push_access_level": "40", "merge_access_level": "40", "allow_force_push": "false"}
    await maintainer.send(f"{rule}/update", **levels)
    assert (await branches_of(scene))["release/*"] == (40, 40, False)
    await maintainer.send(f"{rule}/unprotect")
    assert await branches_of(scene) == before
    await maintainer.send(f"{page_of(scene)}/branches", name="")
    assert (maintainer.status, 'id="new-branch-name-problem"' in maintainer.text) == (400, True)


async def test_tags_are_protected_and_unprotected(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    await maintainer.send(f"{page_of(scene)}/tags", name="v*", create_access_level="30")
    (rule,) = await scene.read("/protected_tags")
    assert (rule["name"], rule["create_access_levels"][0]["access_level"]) == ("v*", 30)
    await maintainer.send(f"{page_of(scene)}/tags/v*/unprotect")
    assert await scene.read("/protected_tags") == []


@pytest.mark.parametrize("path", ["mirrors", "branches", "tags", "branches/main/unprotect", "mirrors/1/sync"])
async def test_forms_that_are_not_ours_do_nothing(scene: Scene, maintainer: Browser, path: str) -> None:
    before = await branches_of(scene)
    await maintainer.get(page_of(scene))
    fields = {"url": "https://198.51.100.7/x.git", "branches": "all", "name": "x"}
    await maintainer.send(f"{page_of(scene)}/{path}", csrf_token="another", **fields)
    assert maintainer.status == 403
    assert (await branches_of(scene), await scene.read("/remote_mirrors")) == (before, [])


HMAC_SECRET = "hmac-of-the-tests"


def merging_page_of(scene: Scene) -> str:
    return f"{scene.of_project}/-/settings/merge_requests"


async def new_check(scene: Scene, **values: Any) -> dict[str, Any]:
    check = {"name": "Quality", "external_url": "https://198.51.100.7/hook"} | values
    made = await scene.owner.api.post(f"{scene.api}/external_status_checks", check)
    assert made.status == 201, made
    return dict(made.body)


async def test_only_maintainers_open_merge_settings(scene: Scene) -> None:
    async with scene.browsing("developer") as browser:
        assert (await browser.get(merging_page_of(scene))).status == 403
        await browser.send(f"{merging_page_of(scene)}/update", merge_method="ff")
        assert browser.status == 403
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(merging_page_of(scene))).path == "/-/sign_in"


async def test_merge_settings_are_saved_also_those_that_are_switched_off(
    scene: Scene, maintainer: Browser
) -> None:
    await maintainer.get(merging_page_of(scene))
    await maintainer.send(
        f"{merging_page_of(scene)}/update",
        merge_method="ff",
        squash_option="always",
        only_allow_merge_if_pipeline_succeeds="true",
        remove_source_branch_after_merge="true",
    )
    assert (maintainer.status, maintainer.path) == (200, merging_page_of(scene))
    saved = await scene.read()
    assert (saved["merge_method"], saved["squash_option"]) == ("ff", "always")
    assert saved["only_allow_merge_if_pipeline_succeeds"]
    await maintainer.send(f"{merging_page_of(scene)}/update")  # every box is empty
    saved = await scene.read()
    assert not saved["only_allow_merge_if_pipeline_succeeds"]
    assert (saved["merge_method"], saved["remove_source_branch_after_merge"]) == ("ff", False)


async def test_a_check_is_made_and_its_secret_never_shown(scene: Scene, maintainer: Browser) -> None:
    (branch,) = await scene.read("/protected_branches")
    await maintainer.get(merging_page_of(scene))
    fields = {"name": "Quality", "external_url": "https://198.51.100.7/hook", "shared_secret": HMAC_SECRET}
    limited = {"applies_to": "some", "protected_branch_ids[]": str(branch["id"])}
    await maintainer.send(f"{merging_page_of(scene)}/status_checks", **fields, **limited)
    (check,) = await scene.read("/external_status_checks")
    one = f"{merging_page_of(scene)}/status_checks/{check['id']}"
    assert (maintainer.status, maintainer.path, HMAC_SECRET in maintainer.text) == (200, one, False)
    assert (check["hmac"], [each["name"] for each in check["protected_branches"]]) == (True, ["main"])
    await maintainer.send(
        f"{one}/update", name="Renamed", external_url=fields["external_url"], applies_to="all"
    )
    (changed,) = await scene.read("/external_status_checks")
    assert (changed["name"], changed["hmac"], changed["protected_branches"]) == ("Renamed", True, [])
    await maintainer.send(
        f"{one}/update", name="Renamed", external_url=fields["external_url"], forget_secret="true"
    )
    assert not (await scene.read("/external_status_checks"))[0]["hmac"]
    await maintainer.send(f"{one}/delete")
    assert (maintainer.path, "Status check deleted." in maintainer.text) == (
        merging_page_of(scene),
        True,
    )
    assert await scene.read("/external_status_checks") == []


async def test_a_refused_check_comes_back_without_its_secret(scene: Scene, maintainer: Browser) -> None:
    await new_check(scene)
    await maintainer.get(merging_page_of(scene))
    fields = {"name": "Quality", "external_url": "https://198.51.100.7/other", "shared_secret": HMAC_SECRET}
    await maintainer.send(f"{merging_page_of(scene)}/status_checks", **fields)
    assert (maintainer.status, "Name has already been taken" in maintainer.text) == (422, True)
    assert (fields["external_url"] in maintainer.text, HMAC_SECRET in maintainer.text) == (True, False)
    assert len(await scene.read("/external_status_checks")) == 1


async def test_credentials_in_the_address_of_a_check_are_kept_and_not_shown(
    scene: Scene, maintainer: Browser
) -> None:
    url = f"https://hook:{HMAC_SECRET}@198.51.100.7/hook"
    check = await new_check(scene, external_url=url)
    one = f"{merging_page_of(scene)}/status_checks/{check['id']}"
    for page in (merging_page_of(scene), one):
        await maintainer.get(page)
        assert (
            "https://*****:*****@198.51.100.7/hook" in maintainer.text,
            HMAC_SECRET in maintainer.text,
        ) == (
            True,
            False,
        )
    address = "https://*****:*****@198.51.100.7/hook"
    await maintainer.send(f"{one}/update", name="Renamed", external_url=address, applies_to="all")
    (changed,) = await scene.read("/external_status_checks")
    assert (changed["name"], changed["external_url"]) == ("Renamed", url)
    await maintainer.send(f"{one}/update", name="", external_url=url.replace("/hook", "/other"))
    assert (maintainer.status, HMAC_SECRET in maintainer.text) == (422, False)
    assert 'value="https://198.51.100.7/other"' in maintainer.text
    assert "Enter the credentials again" in maintainer.text


async def test_deliveries_are_shown_with_what_happens_next_and_sent_again(
    scene: Scene, maintainer: Browser
) -> None:
    check = await new_check(scene)
    await open_merge_request(scene.owner, scene.project)
    (delivery,) = (
        await scene.owner.api.get(f"{scene.api}/external_status_checks/{check['id']}/deliveries")
    ).body
    one = f"{merging_page_of(scene)}/status_checks/{check['id']}"
    await maintainer.get(one)
    assert f"#{delivery['id']}</a>" in maintainer.text
    await maintainer.get(f"{one}?status=delivered")
    assert "No deliveries match the filter." in maintainer.text
    await maintainer.get(f"{one}/deliveries/{delivery['id']}")
    assert (maintainer.status, delivery["webhook_id"] in maintainer.text) == (200, True)
    sent = maintainer.hidden | {"back": one}
    for said in (True, False):  # as by a double click
        await maintainer.post(f"{one}/deliveries/{delivery['id']}/redeliver", sent)
        assert (maintainer.path, "Redelivery queued." in maintainer.text) == (one, said)
    assert len(await scene.events("status_check_delivery_redelivered")) == 1
    paused = (
        "UPDATE external_status_checks SET paused_at = now(), pause_reason = 'It failed.' WHERE id = %(id)s"
    )
    await scene.forge.execute(paused, id=check["id"])
    await maintainer.get(one)
    assert "nothing is sent until it is resumed" in maintainer.text
    await maintainer.send(f"{one}/resume", back=one)
    assert (maintainer.path, "Status check resumed." in maintainer.text) == (one, True)
    assert not (await scene.read("/external_status_checks"))[0]["paused"]


async def test_a_check_of_another_project_is_none_here(scene: Scene, maintainer: Browser) -> None:
    other = await new_scene(scene.forge)
    check = await new_check(other)
    await maintainer.get(f"{merging_page_of(scene)}/status_checks/{check['id']}")
    assert maintainer.status == 404
    await maintainer.get(merging_page_of(scene))
    await maintainer.send(f"{merging_page_of(scene)}/status_checks/{check['id']}/delete")
    assert maintainer.status == 404
    assert len(await other.read("/external_status_checks")) == 1


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
async def test_forms_of_checks_that_are_not_ours_do_nothing(
    scene: Scene, maintainer: Browser, path: str
) -> None:
    await maintainer.get(merging_page_of(scene))
    fields = {"name": "Quality", "external_url": "https://198.51.100.7/hook", "merge_method": "ff"}
    await maintainer.send(f"{merging_page_of(scene)}/{path}", csrf_token="another", **fields)
    assert (maintainer.status, await scene.read("/external_status_checks")) == (403, [])
    assert (await scene.read())["merge_method"] == "merge"
