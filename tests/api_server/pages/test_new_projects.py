"""The forms that create projects and groups: their choices, their results, and their refusals."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person, new_name


@pytest.fixture
async def person(forge: Forge) -> Person:
    return await forge.user()


@pytest.fixture
async def browser(forge: Forge, person: Person) -> AsyncIterator[Browser]:
    async with browsing(forge, person) as opened:
        yield opened


def options(page: str) -> list[tuple[str, str, bool]]:
    """Return values, texts and the selected option of the page's select."""
    found = re.findall(r'<option value="(\d+)"( selected)?>([^<]*)<', page)
    return [(value, text, bool(selected)) for value, selected, text in found]


def wrong(page: str) -> dict[str, str]:
    """Return the errors at the fields, by the fields' names."""
    found = re.findall(r'<p class="wrong" id="([\w-]+)-problem">([^<]*)<', page)
    return {name: unescape(text) for name, text in found}


async def test_a_project_is_made_and_its_page_says_what_comes_next(
    browser: Browser, person: Person, forge: Forge
) -> None:
    await browser.get("/")
    assert '<a class="button main" href="/projects/new">New project</a>' in browser.text
    await browser.get("/projects/new")
    name = new_name("Made Here")
    await browser.send("/projects", name=name, path="", description="By <hand>", visibility="internal")
    path = f"/{person.username}/{name.lower().replace(' ', '-')}"
    assert (browser.status, browser.path) == (200, path)
    assert f"Project {name} created." in browser.text
    assert "git push --set-upstream origin main" in browser.text
    made = (await person.api.get(f"/projects/{path[1:].replace('/', '%2F')}")).body
    assert {key: made[key] for key in ("name", "description", "visibility", "empty_repo")} == {
        "name": name,
        "description": "By <hand>",
        "visibility": "internal",
        "empty_repo": True,
    }
    await browser.get("/projects/new")
    await browser.send(
        "/projects", name=new_name("read"), visibility="private", initialize_with_readme="true"
    )
    assert "README.md" in browser.text
    assert "git push" not in browser.text


async def test_what_is_refused_is_shown_at_its_field(browser: Browser, person: Person, forge: Forge) -> None:
    group = await forge.group(person, visibility="private")
    await browser.get(f"/projects/new?namespace_id={group['id']}")
    assert options(browser.text)[0][1:] == (person.username, False)
    assert (str(group["id"]), group["full_path"], True) in options(browser.text)
    sent = {
        "name": "My <app>",
        "description": "Two\nlines",
        "visibility": "public",
        "namespace_id": str(group["id"]),
    }
    await browser.send("/projects", **sent)
    assert (browser.status, browser.title) == (400, "New project")
    assert wrong(browser.text) == {"visibility": "Visibility public is not allowed in a private group."}
    assert 'value="My &lt;app&gt;"' in browser.text
    assert ">\nTwo\nlines</textarea>" in browser.text
    assert '<input type="radio" name="visibility" value="public" checked>' in browser.text
    assert re.search(r'name="initialize_with_readme" value="true"(?! checked)', browser.text)
    assert (str(group["id"]), group["full_path"], True) in options(browser.text)
    await browser.send("/projects", name="", path="", visibility="private")
    assert browser.status == 400
    assert "Project name is missing." in browser.text
    taken = await forge.project(person)
    await browser.send("/projects", name=taken["name"], path=taken["path"], visibility="private")
    assert wrong(browser.text) == {
        "name": "Project name has already been taken.",
        "path": "Path has already been taken.",
    }
    assert "namespace.name" not in browser.text


@pytest.mark.parametrize("level", ["developer", "maintainer", "noone"])
async def test_only_groups_are_offered_in_which_the_visitor_makes_projects(forge: Forge, level: str) -> None:
    owner, member, admin = await forge.user(), await forge.user(), await forge.user(admin=True)
    group = await forge.group(owner, project_creation_level=level)
    hidden = await forge.group(owner, visibility="private")
    await forge.member("groups", group["id"], member, Role.DEVELOPER)
    offered = {}
    for name, person in {"owner": owner, "member": member, "admin": admin}.items():
        async with browsing(forge, person) as browser:
            await browser.get("/projects/new")
            offered[name] = group["full_path"] in [text for _, text, _ in options(browser.text)]
            await browser.get(f"/groups/{group['full_path']}")
            shown = f'href="/projects/new?namespace_id={group["id"]}"' in browser.text
            assert shown == offered[name], (name, level)
            if not offered[name]:
                await browser.get("/projects/new")
                await browser.send("/projects", name="x", visibility="private", namespace_id=str(group["id"]))
                assert (browser.status, "Access denied." in browser.text) == (403, True)
    assert offered == {
        "owner": level != "noone",
        "member": level == "developer",
        "admin": level != "noone",
    }
    async with browsing(forge, member) as browser:
        assert (await browser.get(f"/projects/new?namespace_id={hidden['id']}")).status == 404


async def test_groups_are_made_at_the_top_and_within(browser: Browser, person: Person, forge: Forge) -> None:
    await browser.get("/groups/new")
    path = new_name("team-")
    await browser.send("/groups", name="The Team", path=path, visibility="internal", description="Us")
    assert (browser.status, browser.path, browser.title) == (200, f"/groups/{path}", "The Team")
    parent = (await person.api.get(f"/groups/{path}")).body
    await browser.get(f"/groups/new?parent_id={parent['id']}")
    assert "New subgroup in The Team" in browser.text
    assert 'value="public"' not in browser.text
    await browser.send("/groups", name="Inner", path="a b", visibility="internal")
    assert browser.status == 400
    assert list(wrong(browser.text)) == ["path"]
    assert "New subgroup in The Team" in browser.text
    await browser.send("/groups", name="Inner", path="inner", visibility="internal")
    assert (browser.status, browser.path) == (200, f"/groups/{path}/inner")
    made = (await person.api.get(f"/groups/{path}%2Finner")).body
    assert {key: made[key] for key in ("name", "visibility", "parent_id")} == {
        "name": "Inner",
        "visibility": "internal",
        "parent_id": parent["id"],
    }


async def test_who_may_not_make_groups_has_no_button(browser: Browser, person: Person, forge: Forge) -> None:
    button = 'href="/groups/new"'
    assert button in (await browser.get("/dashboard/groups")).text
    assert (await forge.root.put(f"/users/{person.id}", {"can_create_group": False})).status == 200
    assert button not in (await browser.get("/dashboard/groups")).text
    await browser.get("/groups/new")
    await browser.send("/groups", name="x", path=new_name("x"))
    assert browser.status == 403
    async with browsing(forge) as stranger:
        await stranger.get("/")
        assert "/projects/new" not in stranger.text
        assert (await stranger.get("/projects/new")).path == "/-/sign_in"
