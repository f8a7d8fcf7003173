"""Repository settings: mirrors, protected branches and tags, as the API has them, and why a mirror waits."""

from typing import Any

import pytest

from api_server.pages.settings.repository import remedy
from tests.api_server.pages.settings.conftest import Scene, new_scene
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge
from tests.support.ports import free_port

SECRET = "s3cret:with@odd/characters"


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    """One of the test's own."""
    return await new_scene(forge)


def page_of(scene: Scene) -> str:
    return f"{scene.of_project}/-/settings/repository"


async def mirrors_of(scene: Scene) -> list[dict[str, Any]]:
    return list((await scene.owner.api.get(f"{scene.api}/remote_mirrors")).body)


async def branches_of(scene: Scene) -> dict[str, tuple[int, int, bool]]:
    """Who may push and merge, and whether by force, by the rules' names."""
    rules = (await scene.owner.api.get(f"{scene.api}/protected_branches")).body
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
    (mirror,) = await mirrors_of(scene)
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
    (changed,) = await mirrors_of(scene)
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
    assert "Type the credentials again: they are not shown." in maintainer.text
    assert await mirrors_of(scene) == []


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
        assert "The mirror is pushed in a moment." in maintainer.text
        await scene.owner.api.until(
            f"{scene.api}/remote_mirrors/{made['id']}", lambda shown: shown["update_status"] == "to_retry"
        )
    await maintainer.get(page_of(scene))
    assert "The target does not answer: see whether it runs, then sync." in maintainer.text
    assert "It is tried again 20" in maintainer.text
    await scene.owner.api.put(f"{scene.api}/remote_mirrors/{made['id']}", {"enabled": False})
    await maintainer.get(page_of(scene))
    assert "It is switched off: nothing is pushed" in maintainer.text
    await maintainer.send(f"{one}/sync")
    assert "Nothing was done: " in maintainer.text
    await maintainer.send(f"{one}/delete")
    assert "The mirror is deleted." in maintainer.text
    assert await mirrors_of(scene) == []
    assert [event["author_id"] for event in await scene.events("deploy_key_added")] == []


async def test_the_public_key_of_a_mirror_is_shown(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    fields = {"url": "ssh://git@198.51.100.7/x.git", "auth_method": "ssh_public_key", "branches": "all"}
    await maintainer.send(f"{page_of(scene)}/mirrors", **fields)
    (mirror,) = await mirrors_of(scene)
    key = (await scene.owner.api.get(f"{scene.api}/remote_mirrors/{mirror['id']}/public_key")).body
    assert f'<code class="token">{key["public_key"]}</code>' in maintainer.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("fatal: Authentication failed for 'https://x/'", "change them"),
        ("git@x: Permission denied (publickey).", "change them"),
        ("Could not resolve host: exmple.org", "correct the address"),
        ("The refs of the target could not be listed: Failed to connect to 127.0.0.1", "see whether it runs"),
        (
            "Some refs have diverged and have not been updated on the remote:\n\nrefs/heads/x",
            "Merge them here",
        ),
        ("refs/heads/x: pre-receive hook declined", "allow its account"),
        ("remote: Repository not found", "make the repository"),
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
    (rule,) = (await scene.owner.api.get(f"{scene.api}/protected_tags")).body
    assert (rule["name"], rule["create_access_levels"][0]["access_level"]) == ("v*", 30)
    await maintainer.send(f"{page_of(scene)}/tags/v*/unprotect")
    assert (await scene.owner.api.get(f"{scene.api}/protected_tags")).body == []


@pytest.mark.parametrize("path", ["mirrors", "branches", "tags", "branches/main/unprotect", "mirrors/1/sync"])
async def test_forms_that_are_not_ours_do_nothing(scene: Scene, maintainer: Browser, path: str) -> None:
    before = await branches_of(scene)
    await maintainer.get(page_of(scene))
    fields = {"url": "https://198.51.100.7/x.git", "branches": "all", "name": "x"}
    await maintainer.send(f"{page_of(scene)}/{path}", csrf_token="another", **fields)
    assert maintainer.status == 403
    assert (await branches_of(scene), await mirrors_of(scene)) == (before, [])
