"""Where projects and groups are found, by whom, and redirects from GitLab's addresses to our pages."""

import itertools
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from api_server.pages.gitlab_addresses import ADDRESSES
from tests.support.browser import Browser, browsing
from tests.support.checkout import CHECKOUT
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person

VISIBILITIES = ("private", "internal", "public")


@attrs.frozen
class Scene:
    """Projects and groups of each visibility, all of which have `word` in their names."""

    forge: Forge
    word: str
    owner: Person
    other: Person
    boss: Person
    projects: dict[str, dict[str, Any]]


#: A worker that takes over tests of others may set up a scene more than once.
_SCENES = itertools.count(1)


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, word = await forge.user("owner"), f"found{next(_SCENES)}"
    projects = {}
    for visibility in VISIBILITIES:
        named = {"name": f"{word} {visibility}", "path": f"{word}-{visibility}", "visibility": visibility}
        await forge.group(owner, **named)
        projects[visibility] = await forge.project(owner, **named, description=f"A <b>{visibility}</b> one")
    return Scene(
        forge,
        word,
        owner,
        await forge.user("other"),
        await forge.user("boss", admin=True),
        projects,
    )


@pytest.fixture
async def stranger(scene: Scene) -> AsyncIterator[Browser]:
    async with browsing(scene.forge) as opened:
        yield opened


def found_in(browser: Browser, word: str) -> list[str]:
    """Return the visibilities of the listed entities, in order."""
    return re.findall(rf'<a class="strong" href="/\S+?">[^<]*{word} (\w+)</a>', browser.text)


#: The visitor and the page, and the visibilities of the entities that she is shown.
LISTS = [
    ("stranger", "/", {"public"}),
    ("stranger", "/explore/projects", {"public"}),
    ("stranger", "/explore/groups", {"public"}),
    ("owner", "/", {"public", "internal", "private"}),
    ("owner", "/explore/projects", {"public", "internal", "private"}),
    ("owner", "/dashboard/groups", {"public", "internal", "private"}),
    ("owner", "/explore/groups", {"public", "internal", "private"}),
    ("other", "/", set()),
    ("other", "/explore/projects", {"public", "internal"}),
    ("other", "/dashboard/groups", set()),
    ("other", "/explore/groups", {"public", "internal"}),
    ("boss", "/", set()),
    ("boss", "/explore/projects", {"public", "internal", "private"}),
    ("boss", "/explore/groups", {"public", "internal", "private"}),
]


async def test_each_list_has_what_its_reader_may_see(scene: Scene) -> None:
    deviations = Deviations()
    for who, path, expected in LISTS:
        with deviations.of(f"{path} of {who}"):
            async with browsing(scene.forge, getattr(scene, who, None)) as browser:
                await browser.get(path, params={"search": scene.word})
                assert browser.status == 200
                listed = found_in(browser, scene.word)
                assert (set(listed), len(listed)) == (expected, len(expected))
                assert ("match the search" in browser.text) is (not expected)
    assert not deviations, deviations.report


async def test_whoever_is_in_no_project_is_shown_what_there_is(scene: Scene) -> None:
    """An administrator who signs in for the first time sees something."""
    for person, shows_private in ((scene.other, False), (scene.boss, True)):
        async with browsing(scene.forge, person) as browser:
            await browser.get("/", params={"per_page": "100"})
            assert browser.title == "Your projects"
            assert (
                "You are not a member of any project yet. All projects that you can access are listed."
                in browser.text
            )
            listed = found_in(browser, scene.word)
            assert ("private" in listed, "public" in listed) == (shows_private, True)
    async with browsing(scene.forge, scene.owner) as browser:
        assert "You are in no project yet" not in (await browser.get("/")).text
        assert set(found_in(browser, scene.word)) == set(VISIBILITIES)


async def test_a_list_says_what_a_project_is_and_has_pages(scene: Scene, stranger: Browser) -> None:
    await stranger.get("/", params={"search": scene.word})
    path = scene.projects["public"]["path_with_namespace"]
    item = re.search(rf'<li><a class="strong" href="/{path}">.*?</li>', stranger.text, re.DOTALL)
    assert item is not None
    assert '<span class="badge">public</span>' in item[0]
    assert "A &lt;b&gt;public&lt;/b&gt; one" in item[0]
    assert '<p class="quiet">Last activity <time' in item[0]
    async with browsing(scene.forge, scene.owner) as browser:
        seen = []
        for number in (1, 2, 3):
            await browser.get("/", params={"search": scene.word, "per_page": "1", "page": str(number)})
            assert f"Page {number} of 3, 3 entries" in browser.text
            seen += found_in(browser, scene.word)
            links = set(re.findall(r'rel="(prev|next)" href="([^"]+)"', browser.text))
            near = {("prev", number - 1)} - {("prev", 0)} | {("next", number + 1)} - {("next", 4)}
            query = f"search={scene.word}&amp;per_page=1"
            assert links == {(rel, f"?{query}&amp;page={at}") for rel, at in near}
        assert sorted(seen) == sorted(VISIBILITIES)
        await browser.get("/", params={"search": scene.word, "page": "7"})
        assert (browser.status, 'rel="prev" href="?search=' in browser.text) == (200, True)


@pytest.mark.parametrize(
    ("query", "status"), [("page=0", 400), ("page=x", 400), ("page=9999999", 405), ("search=%00", 400)]
)
async def test_what_makes_no_sense_is_a_page(stranger: Browser, query: str, status: int) -> None:
    await stranger.get(f"/explore/projects?{query}")
    assert (stranger.status, "text/html" in stranger.headers["Content-Type"]) == (status, True)


async def test_a_stranger_learns_how_to_get_an_account(stranger: Browser) -> None:
    await stranger.get("/")
    assert "compatible with GitLab's API" in stranger.text.replace("&#39;", "'")
    await stranger.get("/help")
    assert "The administrator of this service creates accounts." in stranger.text
    assert f"git clone {stranger.base}/group/project.git" in stranger.text
    await stranger.get("/-/sign_in")
    assert "Ask the administrator of this service." in stranger.text
    await stranger.get("/dashboard/groups")
    assert (stranger.title, stranger.path_qs) == ("Sign in", "/-/sign_in?return_to=/dashboard/groups")


def test_help_names_documents_that_there_are() -> None:
    text = (CHECKOUT / "api_server/pages/templates/help.html").read_text()
    named = re.findall(r"<code>(\S+\.md)</code>", text)
    assert len(named) > 5
    assert [name for name in named if not (CHECKOUT / "docs" / name).exists()] == []


async def location_of(browser: Browser, path: str) -> tuple[int, str | None]:
    async with browser.session.get(f"{browser.base}{path}", allow_redirects=False) as answer:
        return answer.status, answer.headers.get("Location")


def example_of(pattern: str) -> tuple[str, dict[str, str]]:
    """Return an address that matches, and its parameters."""
    values: dict[str, str] = {}

    def fill(found: re.Match[str]) -> str:
        name, rule = found[1], found[2] or ""
        plain = {"project": "group/app", "full_path": "group/app", "iid": "7", "id": "7"}
        values[name] = plain.get(name) or (rule.partition("|")[0] if "|" in rule else "some")
        return values[name]

    return re.sub(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}", fill, pattern), values


async def test_every_address_of_gitlab_leads_to_a_page_that_answers(scene: Scene) -> None:
    """Pages of a certain entity answer 404, because these do not exist here."""
    deviations = Deviations()
    async with browsing(scene.forge, scene.boss) as browser:
        for pattern, target in ADDRESSES.items():
            address, values = example_of(pattern)
            with deviations.of(address):
                assert await location_of(browser, address) == (302, target.format(**values))
                await browser.get(address)
                assert browser.status == (404 if "{" in target.partition("?")[0] else 200)
    assert not deviations, deviations.report


REDIRECTED = [
    ("/explore?search=a%26b&page=2", (302, "/explore/projects?search=a%26b&page=2")),
    ("/admin/users/o'neil?state=x", (302, "/admin/users?search=o%27neil&state=x")),
    ("/users/%5Cevil.example/projects", (302, "/%5Cevil.example")),
    ("/admin/projects//evil.example", (404, None)),
    ("/group/app/tree/main/a%20b?x=1", (302, "/group/app/-/tree/main/a%20b?x=1")),
    ("/group/inner/app/blob/main/tree/x", (302, "/group/inner/app/-/blob/main/tree/x")),
    ("/group/app/merge_requests/7", (302, "/group/app/-/merge_requests/7")),
    ("/group/app/pipelines", (302, "/group/app/-/pipelines")),
    ("/group/tree/main", (404, None)),
]


async def test_addresses_keep_their_query_and_lead_to_nobody_else(stranger: Browser) -> None:
    deviations = Deviations()
    for path, expected in REDIRECTED:
        with deviations.of(path):
            assert await location_of(stranger, path) == expected
    assert not deviations, deviations.report


async def test_a_project_that_is_called_like_a_page_is_found(scene: Scene) -> None:
    group = await scene.forge.group(scene.owner)
    inner = {"name": "app", "path": "app", "parent_id": group["id"]}
    group = (await scene.owner.api.post("/groups", inner)).body
    await scene.forge.project(scene.owner, namespace_id=group["id"], path="pipelines", name="Tubes")
    async with browsing(scene.forge, scene.owner) as browser:
        await browser.get(f"/{quote(group['full_path'])}/pipelines")
        assert (browser.status, browser.title) == (200, "Tubes")


async def test_signing_out_takes_the_form_of_its_page(scene: Scene, stranger: Browser) -> None:
    assert "You are not signed in." in (await stranger.get("/users/sign_out")).text
    async with browsing(scene.forge, scene.owner) as browser:
        await browser.get("/users/sign_out")
        assert f"You are signed in as {scene.owner.username}." in browser.text
        assert (await browser.get("/")).title == "Your projects"
        await browser.get("/users/sign_out")
        await browser.send("/-/sign_out")
        assert (await browser.get("/")).title == "Public projects"
