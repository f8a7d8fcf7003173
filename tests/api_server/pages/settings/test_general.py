"""General settings of projects and groups: names, visibility, archiving, moving, deleting."""

from typing import Any

import pytest

from api_server.pages.settings import general
from tests.api_server.pages.settings.conftest import Scene, new_scene
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, new_name


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    """One of the test's own."""
    return await new_scene(forge)


async def project_of(scene: Scene) -> dict[str, Any]:
    return dict((await scene.owner.api.get(scene.api)).body)


async def test_maintainers_open_it_and_nobody_below(scene: Scene) -> None:
    page = f"{scene.of_project}/-/edit"
    async with scene.browsing("developer") as browser:
        assert (await browser.get(page)).status == 403
        await browser.send(f"{page}/update", name="Another")
        assert browser.status == 403
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page)).path == "/-/sign_in"
    async with scene.browsing("maintainer") as browser:
        await browser.get(f"{scene.of_project}/edit")
        assert (browser.status, browser.path) == (200, page)
        assert "Delete the project" not in browser.text
        for path in ("archive", "path", "transfer", "delete"):
            await browser.send(f"{page}/{path}", confirmation=scene.project["path_with_namespace"])
            assert browser.status == 403
    assert (await project_of(scene))["name"] == scene.project["name"]


async def test_what_was_saved_is_what_the_api_has(scene: Scene, owner: Browser) -> None:
    page = f"{scene.of_project}/-/edit"
    await owner.get(page)
    await owner.send(
        f"{page}/update",
        name="Another <name>",
        description="With\ntwo lines",
        default_branch="main",
        repository_access_level="private",
        builds_access_level="disabled",
        visibility="private",
    )
    assert (owner.status, owner.path, "The settings are saved." in owner.text) == (200, page, True)
    saved = await project_of(scene)
    assert (saved["name"], saved["description"]) == ("Another <name>", "With\ntwo lines")
    assert (saved["repository_access_level"], saved["builds_access_level"]) == ("private", "disabled")
    assert "Another &lt;name&gt;" in owner.text


async def test_a_refused_form_comes_back(scene: Scene, owner: Browser) -> None:
    page = f"{scene.of_project}/-/edit"
    await owner.get(page)
    await owner.send(f"{page}/update", name="N" * 300, default_branch="no such branch")
    assert (owner.status, "N" * 300 in owner.text, 'id="name-problem"' in owner.text) == (400, True, True)
    await owner.send(f"{page}/update", name="Fine", visibility="public")  # in a private group
    assert (owner.status, "public is not allowed in a private group." in owner.text) == (400, True)
    assert (await project_of(scene))["name"] == scene.project["name"]


async def test_a_project_is_archived_and_used_again(scene: Scene, owner: Browser) -> None:
    page = f"{scene.of_project}/-/edit"
    await owner.get(page)
    await owner.send(f"{page}/archive")
    assert (owner.path, "The project is archived" in owner.text) == (page, True)
    assert (await project_of(scene))["archived"]
    await owner.send(f"{page}/unarchive")
    assert not (await project_of(scene))["archived"]


async def test_a_project_moves_and_its_old_address_leads_to_the_new_one(
    scene: Scene, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_name("moved")
    await owner.get(f"{scene.of_project}/-/edit")
    await owner.send(f"{scene.of_project}/-/edit/path", path="no/path")
    assert (owner.status, 'id="move-path-problem"' in owner.text) == (400, True)
    await owner.send(f"{scene.of_project}/-/edit/path", path=name)
    moved = f"/{scene.group['full_path']}/{name}"
    assert (owner.status, owner.path) == (200, f"{moved}/-/edit")
    assert (await owner.get(f"{scene.of_project}/-/edit")).path == f"{moved}/-/edit"
    assert f'<option value="{scene.owner.username}">' in owner.text
    monkeypatch.setattr(general, "MAX_PER_PAGE", 1)  # what is not offered is typed
    assert 'name="namespace" type="text"' in (await owner.get(f"{moved}/-/edit")).text
    await owner.send(f"{moved}/-/edit/transfer", namespace=scene.owner.username)
    assert owner.path == f"/{scene.owner.username}/{name}/-/edit"
    assert (await project_of(scene))["path_with_namespace"] == f"{scene.owner.username}/{name}"


async def test_a_project_is_deleted_by_who_types_its_path(scene: Scene, owner: Browser) -> None:
    page, path = f"{scene.of_project}/-/edit", scene.project["path_with_namespace"]
    await owner.get(page)
    for typed in ("", scene.project["path"], path.upper()):
        await owner.send(f"{page}/delete", confirmation=typed)
        assert (owner.status, f"Type {path} to confirm." in owner.text) == (422, True)
    await owner.send(f"{page}/delete", confirmation=f" {path} ")
    assert (owner.path, f"The project {path} is deleted." in owner.text) == ("/", True)
    assert (await scene.owner.api.get(scene.api)).status == 404


async def test_a_group_is_changed_and_deleted_by_its_owners(scene: Scene, owner: Browser) -> None:
    page, api = f"{scene.of_group}/-/edit", f"/groups/{scene.group['id']}"
    name = new_name("renamed")
    await owner.get(page)
    await owner.send(f"{page}/update", name="", path=name)
    assert (owner.status, 'id="name-problem"' in owner.text) == (400, True)
    fields = {"description": "D", "visibility": "internal", "project_creation_level": "noone"}
    await owner.send(f"{page}/update", name="New name", path=name, **fields)
    assert (owner.status, owner.path) == (200, f"/groups/{name}/-/edit")
    saved = (await scene.owner.api.get(api)).body
    assert fields.items() <= saved.items()
    assert (saved["name"], saved["full_path"]) == ("New name", name)
    async with scene.browsing("maintainer") as browser:  # of a project in it
        assert (await browser.get(f"/groups/{name}/-/edit")).status == 403
    await owner.send(f"/groups/{name}/-/edit/delete", confirmation=scene.group["full_path"])
    assert (owner.status, f"Type {name} to confirm." in owner.text) == (422, True)
    await owner.send(f"/groups/{name}/-/edit/delete", confirmation=name)
    assert (owner.path, f"The group {name} is deleted." in owner.text) == ("/", True)
    assert (await scene.owner.api.get(api)).status == 404


@pytest.mark.parametrize("path", ["update", "archive", "path", "transfer", "delete"])
async def test_forms_that_are_not_ours_do_nothing(scene: Scene, owner: Browser, path: str) -> None:
    before = await project_of(scene)
    await owner.get(f"{scene.of_project}/-/edit")
    fields = {"name": "Another", "path": "another", "namespace": scene.owner.username}
    fields["confirmation"] = scene.project["path_with_namespace"]
    await owner.send(f"{scene.of_project}/-/edit/{path}", csrf_token="another", **fields)
    assert owner.status == 403
    assert await project_of(scene) == before
