"""Creating, editing and deleting branches, tags and releases in the browser."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person


@attrs.frozen
class Scene:
    forge: Forge
    project: dict[str, Any]
    owner: Person

    @property
    def path(self) -> str:
        return f"/{self.project['path_with_namespace']}/-"

    async def api(self, below: str) -> Any:
        return (await self.owner.api.get(f"/projects/{self.project['id']}/{below}")).body


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    return Scene(forge, await forge.project(owner, initialize_with_readme=True), owner)


@pytest.fixture
async def browser(scene: Scene) -> AsyncIterator[Browser]:
    async with browsing(scene.forge, scene.owner) as opened:
        yield opened


async def test_a_branch_is_made_and_deleted(browser: Browser, scene: Scene) -> None:
    await browser.get(f"{scene.path}/branches")
    assert f'href="{scene.path}/branches/new"' in browser.text
    await browser.get(f"{scene.path}/branches/new")
    for branch, ref, told in (
        ("a..b", "main", "Branch name is invalid."),
        ("main", "main", "Branch already exists."),
        ("new", "nothing", "Invalid reference name: nothing."),
    ):
        await browser.send(f"{scene.path}/branches", branch=branch, ref=ref)
        assert (browser.status, told in browser.words, f'value="{branch}"' in browser.text) == (
            400,
            True,
            True,
        )
    await browser.send(f"{scene.path}/branches", branch="topic/one", ref="main")
    assert (browser.status, browser.path) == (200, f"{scene.path}/tree/topic/one")
    rules = f"/projects/{scene.project['id']}/protected_branches"
    await scene.owner.api.post(rules, {"name": "topic/*"}, expect=201)
    developer = await scene.forge.new_member(scene.project["id"], Role.DEVELOPER)
    async with browsing(scene.forge, developer) as theirs:
        await theirs.get(f"{scene.path}/branches")
        assert ("topic/one" in theirs.text, "Delete topic/one" in theirs.text) == (True, False)
    await browser.get(f"{scene.path}/branches")
    assert "Delete topic/one" in browser.text
    assert "Delete main" not in browser.text
    await browser.send(f"{scene.path}/branches/delete", name="topic/one")
    assert (browser.path, "Branch topic/one deleted." in browser.text) == (
        f"{scene.path}/branches",
        True,
    )
    assert [branch["name"] for branch in await scene.api("repository/branches")] == ["main"]


async def test_a_tag_is_made_and_deleted(browser: Browser, scene: Scene) -> None:
    await browser.get(f"{scene.path}/tags/new")
    await browser.send(f"{scene.path}/tags", tag_name="v0.1", ref="nothing", message="Kept")
    assert (browser.status, "Target nothing is invalid." in browser.words) == (400, True)
    assert ">\nKept</textarea>" in browser.text
    await browser.send(f"{scene.path}/tags", tag_name="v0.1", ref="main", message="First")
    assert (browser.status, browser.path) == (200, f"{scene.path}/tags")
    assert (await scene.api("repository/tags/v0.1"))["message"] == "First"
    await browser.send(f"{scene.path}/tags/delete", name="v0.1")
    assert "v0.1" not in {each["name"] for each in await scene.api("repository/tags")}


async def test_a_release_is_made_edited_and_deleted(browser: Browser, scene: Scene) -> None:
    await browser.get(f"{scene.path}/releases/new?tag_name=v1")
    sent = {"tag_name": "v1", "ref": "main", "name": "One", "description": "It <b>works</b>."}
    links = {"link_name_0": "Docs", "link_url_0": "nowhere", "link_name_1": "", "link_url_1": ""}
    await browser.send(f"{scene.path}/releases", **sent | links)
    assert browser.status == 400
    assert 'value="nowhere"' in browser.text
    await browser.send(f"{scene.path}/releases", **sent | links | {"link_url_0": "https://docs.example.org"})
    assert (browser.status, browser.path, browser.title) == (200, f"{scene.path}/releases/v1", "One")
    made = await scene.api("releases/v1")
    assert (made["description"], [(link["name"], link["url"]) for link in made["assets"]["links"]]) == (
        "It <b>works</b>.",
        [("Docs", "https://docs.example.org")],
    )
    await browser.get(f"{scene.path}/releases/new")
    await browser.send(f"{scene.path}/releases", **sent)
    assert (browser.status, "Release already exists." in browser.words) == (409, True)
    await browser.get(f"{scene.path}/releases/v1/edit")
    await browser.send(f"{scene.path}/releases/v1/edit", name="x" * 256, description="Kept")
    assert (browser.status, ">\nKept</textarea>" in browser.text) == (400, True)
    await browser.send(f"{scene.path}/releases/v1/edit", name="First", description="Text")
    changed = await scene.api("releases/v1")
    assert (browser.path, changed["name"], changed["description"]) == (
        f"{scene.path}/releases/v1",
        "First",
        "Text",
    )
    await browser.get(f"{scene.path}/releases/v1/edit")
    await browser.send(f"{scene.path}/releases/v1/delete")
    assert (browser.path, await scene.api("releases")) == (f"{scene.path}/releases", [])
    assert [tag["name"] for tag in await scene.api("repository/tags")] == ["v1"]


async def test_a_release_gets_another_date_and_other_links(browser: Browser, scene: Scene) -> None:
    """An unchanged date keeps its fraction of a second."""
    scene = attrs.evolve(scene, project=await scene.forge.project(scene.owner, initialize_with_readme=True))
    await browser.get(f"{scene.path}/releases/new")
    sent = {"tag_name": "dated", "ref": "main", "description": ""}
    await browser.send(f"{scene.path}/releases", **sent, released_at="2999-12-31T10:20")
    assert (browser.status, "upcoming" in browser.words) == (200, True)
    assert (await scene.api("releases/dated"))["released_at"] == "2999-12-31T10:20:00.000Z"
    moved = {"released_at": "2026-11-01T10:20:30.456Z"}
    await scene.owner.api.put(f"/projects/{scene.project['id']}/releases/dated", moved, expect=200)
    edit = f"{scene.path}/releases/dated/edit"
    for typed, kept in (("2026-11-01T10:20:30", "10:20:30.456"), ("2026-11-01T10:21", "10:21:00.000")):
        await browser.get(edit)
        assert 'value="2026-11-01T10:20:30"' in browser.text
        await browser.send(edit, name="Dated", description="", released_at=typed)
        assert (await scene.api("releases/dated"))["released_at"] == f"2026-11-01T{kept}Z"
    links = f"{scene.path}/release_links"
    await browser.get(edit)
    await browser.send(links, name="Docs", url="nowhere", link_type="other")
    assert (browser.status, 'value="nowhere"' in browser.text) == (400, True)
    await browser.send(links, name="Docs", url="https://docs.example.org", link_type="runbook")
    assert (browser.path, "Link added." in browser.text) == (edit, True)
    (link,) = (await scene.api("releases/dated"))["assets"]["links"]
    changed = {"name": "Program", "url": "https://example.org/x", "link_type": "package"}
    await browser.send(f"{links}/{link['id']}/update", **changed)
    assert (browser.path, "Link updated." in browser.text) == (edit, True)
    (link,) = (await scene.api("releases/dated"))["assets"]["links"]
    assert {name: link[name] for name in changed} == changed
    await browser.send(f"{links}/{link['id']}/delete")
    assert (await scene.api("releases/dated"))["assets"]["links"] == []


async def test_readers_have_no_buttons_and_are_refused(scene: Scene) -> None:
    reporter = await scene.forge.new_member(scene.project["id"], Role.REPORTER)
    async with browsing(scene.forge, reporter) as browser:
        for page in ("branches", "tags", "releases"):
            await browser.get(f"{scene.path}/{page}")
            assert (browser.status, f"{page}/new" in browser.text, "/delete" in browser.text) == (
                200,
                False,
                False,
            )
            assert (await browser.get(f"{scene.path}/{page}/new")).status == 403
        await browser.get(f"{scene.path}/branches")
        await browser.send(f"{scene.path}/branches/delete", name="main")
        assert browser.status == 403
