"""Pages of projects: access, content, and that their addresses do not hide those of other services."""

import re
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import quote, urlsplit

import attrs
import pytest

from api_server.git import file_history
from api_server.git.repositories import Repository
from api_server.pages.files import TreePath
from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person

SCRIPT = "<script>alert(1)</script>"
#: Names of files that are hard to write into addresses, or look like other addresses.
ODD_NAMES = ["a b&c#1?.txt", "100%.txt", "ü/☃.txt", "x/-/raw/main/y", "raw/x.git/info/refs", "<b>.txt"]


@attrs.frozen
class Scene:
    """A private project in a group of `owner`, with `people` in each role, and a public one."""

    forge: Forge
    owner: Person
    people: dict[str, Person]
    private: dict[str, Any]
    public: dict[str, Any]

    def path(self, below: str = "") -> str:
        return f"/{self.private['path_with_namespace']}{below}"

    async def commit(self, project: dict[str, Any], branch: str, files: dict[str, str], message: str) -> str:
        actions = [{"action": "create", "file_path": name, "content": text} for name, text in files.items()]
        body = {"branch": branch, "start_branch": "main", "commit_message": message, "actions": actions}
        made = await self.owner.api.post(f"/projects/{project['id']}/repository/commits", body)
        assert made.status == 201, made
        return str(made.body["id"])


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    group = await forge.group(owner, visibility="private")
    inner = await forge.root.post(
        "/groups", {"name": "Inner", "path": "inner", "parent_id": group["id"], "visibility": "private"}
    )
    values = {"initialize_with_readme": True, "description": SCRIPT}
    private = await forge.project(owner, namespace_id=inner.body["id"], **values)
    public = await forge.project(owner, visibility="public", **values)
    made = Scene(forge, owner, await forge.people(private["id"]), private, public)
    await made.commit(private, "main", dict.fromkeys(ODD_NAMES, SCRIPT), f"Odd {SCRIPT}\n\n{SCRIPT}")
    return made


@pytest.fixture
async def visitor(scene: Scene) -> AsyncIterator[Browser]:
    """A browser in which nobody has signed in."""
    async with browsing(scene.forge) as opened:
        yield opened


BELOW = [
    "",
    "/-/tree/main",
    "/-/blob/main/README.md",
    "/-/blame/main/README.md",
    "/-/images/main/README.md",
    "/-/commits/main",
    "/-/branches",
    "/-/tags",
    "/-/releases",
]


@pytest.mark.parametrize("below", BELOW)
async def test_strangers_sign_in_first_and_others_are_told_nothing(scene: Scene, below: str) -> None:
    paths = [scene.path(below), f"/nobody/nothing{below}"]
    async with browsing(scene.forge) as stranger:
        for path in paths:
            async with stranger.session.get(f"{stranger.base}{path}", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, f"/-/sign_in?return_to={path}")
                assert "Set-Cookie" not in answer.headers
    answers = []
    async with browsing(scene.forge) as outsider:
        await outsider.enter(scene.forge, scene.people["stranger"])
        for path in paths:
            await outsider.get(path)
            answers.append((outsider.status, outsider.text.replace(path, "")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


async def test_roles_open_what_they_open_in_the_api(scene: Scene) -> None:
    for role, person in scene.people.items():
        async with browsing(scene.forge) as member:
            await member.enter(scene.forge, person)
            for below, of_api in (("", ""), ("/-/tree/main", "/repository/tree")):
                by_api = await person.api.get(f"/projects/{scene.private['id']}{of_api}")
                assert (await member.get(scene.path(below))).status == by_api.status, (role, below)


async def test_a_closed_repository_is_closed_here_too(scene: Scene, visitor: Browser) -> None:
    project = await scene.forge.project(scene.owner, visibility="public", initialize_with_readme=True)
    path, url = f"/{project['path_with_namespace']}", f"/projects/{project['id']}"
    assert (await visitor.get(f"{path}/-/tree/main")).status == 200
    await scene.owner.api.put(url, {"repository_access_level": "private"})
    assert "You do not have access to the repository" in (await visitor.get(path)).text
    assert (await visitor.get(f"{path}/-/tree/main")).path == "/-/sign_in"
    await visitor.enter(scene.forge, scene.people["stranger"])
    await visitor.get(f"{path}/-/tree/main")
    assert (visitor.status, visitor.title) == (403, "Access denied")
    await scene.owner.api.post(f"{url}/archive")
    assert "archived" in (await visitor.get(path)).text


async def test_the_blocked_see_nothing(scene: Scene, visitor: Browser) -> None:
    person = await scene.forge.user()
    await scene.forge.member("projects", scene.private["id"], person, Role.DEVELOPER)
    await visitor.enter(scene.forge, person)
    assert (await visitor.get(scene.path())).status == 200
    await scene.forge.root.post(f"/users/{person.id}/block")
    assert (await visitor.get(scene.path())).path == "/-/sign_in"


async def test_what_has_moved_redirects_with_what_is_below_it(scene: Scene, visitor: Browser) -> None:
    project = await scene.forge.project(scene.owner, initialize_with_readme=True)
    old = project["path_with_namespace"]
    await scene.owner.api.put(f"/projects/{project['id']}", {"path": f"{project['path']}-moved"})
    await visitor.enter(scene.forge, scene.owner)
    for below in ("", "/-/tree/main", "/-/blob/main/README.md"):
        await visitor.get(f"/{old}{below}")
        assert (visitor.status, visitor.path) == (200, f"/{old}-moved{below}")
    await visitor.get(f"/{old.upper()}")
    assert visitor.path == f"/{old}-moved"


async def test_clone_addresses_and_groups_lead_to_their_pages(scene: Scene, visitor: Browser) -> None:
    await visitor.enter(scene.forge, scene.owner)
    assert (await visitor.get(scene.path(".git"))).path == scene.path()
    assert (await visitor.get(scene.path("/"))).path == scene.path()
    group = scene.private["namespace"]["full_path"]
    assert (await visitor.get(f"/{group}")).path == f"/groups/{group}"
    assert scene.private["name"] in visitor.text
    above = group.partition("/")[0]
    assert "Inner" in (await visitor.get(f"/groups/{above}")).text
    assert (await visitor.get(f"/{scene.owner.username}")).title == scene.owner.username.title()
    assert scene.public["name"] in visitor.text


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_files_of_any_name_are_found_by_links(scene: Scene, visitor: Browser, name: str) -> None:
    await visitor.enter(scene.forge, scene.people["reporter"])
    folder, _, last = name.rpartition("/")
    await visitor.get(scene.path(quote(f"/-/tree/main/{folder}".removesuffix("/"))))
    address = scene.path("/-/blob/main/") + quote(name, safe="/:@!$&'()*+,;=~").replace("&", "&amp;")
    assert f'href="{address}"' in visitor.text, visitor.text
    await visitor.get(scene.path(quote(f"/-/blob/main/{name}")))
    assert (visitor.status, visitor.path) == (200, scene.path(f"/-/blob/main/{name}"))
    assert last.replace("<", "&lt;").replace(">", "&gt;").replace("&c", "&amp;c") in visitor.title
    assert "&lt;script&gt;" in visitor.text
    assert SCRIPT not in visitor.text
    await visitor.get(scene.path(quote(f"/-/raw/main/{name}")))
    assert (visitor.status, visitor.text) == (200, SCRIPT), "raw files open for whoever is signed in"


async def test_texts_of_others_are_escaped(scene: Scene, visitor: Browser) -> None:
    await visitor.enter(scene.forge, scene.people["reporter"])
    sha = (await scene.owner.api.get(f"/projects/{scene.private['id']}/repository/commits/main")).body["id"]
    for below in ("", "/-/commits/main", f"/-/commit/{sha}", f"/-/commit/{sha[:10]}"):
        await visitor.get(scene.path(below))
        assert (visitor.status, "<script" in visitor.text, "&lt;script&gt;" in visitor.text) == (
            200,
            False,
            True,
        )


@pytest.mark.parametrize(
    ("below", "status"),
    [
        ("/-/tree/none", 404),
        ("/-/tree/main/none", 404),
        ("/-/tree/main/README.md", 404),
        ("/-/blob/main/none", 404),
        ("/-/commit/0000000", 404),
        ("/-/commit/main...main", 404),
        ("/-/compare/main", 404),
        ("/-/nothing", 404),
        ("/-/", 404),
        ("/-/commits/main?page=0", 400),
        ("/-/branches?page=x", 400),
        ("/-/branches?page=99999999999", 200),
        ("/-/branches?search=%FF", 400),
        ("/-/tree/%FF", 400),
        ("/-/tree/main?page=9999999", 405),
    ],
)
async def test_what_cannot_be_shown_is_told_on_a_page(scene: Scene, below: str, status: int) -> None:
    async with browsing(scene.forge) as member:
        await member.enter(scene.forge, scene.people["reporter"])
        await member.get(scene.path(below))
        assert (member.status, member.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
        async with member.session.head(f"{member.base}{scene.path(below)}") as answer:
            assert answer.status == status


async def test_pages_of_a_list_are_walked(scene: Scene, visitor: Browser) -> None:
    url = f"/projects/{scene.public['id']}/repository/branches"
    for number in range(21):
        made = await scene.owner.api.post(url, {"branch": f"topic/{number:02}", "ref": "main"})
        assert made.status == 201
    path = f"/{scene.public['path_with_namespace']}/-/branches"
    await visitor.get(f"{path}?search=TOPIC&page=1")
    assert 'href="?search=TOPIC&amp;page=2"' in visitor.text
    assert "Page 1 of 2, 21 entries" in visitor.text
    await visitor.get(f"{path}?search=TOPIC&page=2")
    assert visitor.text.count("topic/") < visitor.text.count("/-/tree/") * 4
    assert 'rel="prev"' in visitor.text
    assert 'rel="next"' not in visitor.text


async def test_only_pages_with_a_form_give_strangers_a_cookie(scene: Scene) -> None:
    public = f"/{scene.public['path_with_namespace']}"
    async with browsing(scene.forge) as stranger:
        for path, sets in (
            ("/", False),
            (public, False),
            (f"{public}/-/tree/main", False),
            ("/-/sign_in", True),
        ):
            await stranger.get(path)
            assert (stranger.status, "Set-Cookie" in stranger.headers) == (200, sets), path


async def test_git_finds_its_own_addresses_as_before(scene: Scene, visitor: Browser) -> None:
    public = f"/{scene.public['path_with_namespace']}"
    await visitor.get(f"{public}.git/info/refs?service=git-upload-pack")
    assert visitor.headers["Content-Type"] == "application/x-git-upload-pack-advertisement"
    await visitor.get(f"{public}/info/refs?service=git-upload-pack")
    assert visitor.headers["Content-Type"] == "application/x-git-upload-pack-advertisement"
    for path in ("/favicon.ico", "/robots.txt", "/api"):
        assert (await visitor.get(path)).status == 404, path


async def test_large_and_binary_files_are_not_shown(scene: Scene, visitor: Browser) -> None:
    files = {"large.txt": "x" * 300_000, "long.txt": "line\n" * 6000, "empty.txt": ""}
    await scene.commit(scene.public, "sizes", files, "Sizes")
    path = f"/{scene.public['path_with_namespace']}/-/blob/sizes"
    assert "too large to display" in (await visitor.get(f"{path}/large.txt")).text
    assert "This file is empty" in (await visitor.get(f"{path}/empty.txt")).text
    await visitor.get(f"{path}/long.txt")
    assert 'id="L5000"' in visitor.text
    assert 'id="L5001"' not in visitor.text
    assert "Only the first 5000 lines" in visitor.text
    await visitor.get(f"{path.replace('/blob/', '/commit/')}")
    assert "oo large to display" in visitor.text


async def test_a_folder_has_the_last_commits_of_its_entries(scene: Scene, visitor: Browser) -> None:
    project = await scene.forge.project(scene.owner, visibility="public", initialize_with_readme=True)
    first = await scene.commit(project, "main", {"src/a.py": "1", "src/README": "In <b>"}, "Add <sources>")
    second = await scene.commit(project, "main", {"docs/b.md": "2" * 2000}, "Add documents")
    path = f"/{project['path_with_namespace']}"
    await visitor.get(path)
    rows = _rows(visitor)
    assert [(name, size) for name, size, _ in rows] == [
        ("docs/", ""),
        ("src/", ""),
        ("README.md", rows[2][1]),
    ]
    assert [commit for _, _, commit in rows[:2]] == [second, first]
    assert "Add &lt;sources&gt;</a>" in visitor.text
    assert '<section class="markdown">' in visitor.text
    await visitor.get(f"{path}/-/tree/main/src")
    assert _rows(visitor) == [("README", "6 bytes", first), ("a.py", "1 byte", first)]
    assert "In &lt;b&gt;" in visitor.text
    assert f'<a class="mono" href="{path}/-/commit/{first}">{first[:8]}</a>' in visitor.text, (
        "the folder's own"
    )
    await visitor.get(f"{path}/-/tree/main/docs")
    assert _rows(visitor) == [("b.md", "2.0 KiB", second)]


def _rows(browser: Browser) -> list[tuple[str, str, str]]:
    """Return names, sizes and last commits of the files that the page lists."""
    row = (
        r'<tr><td><a [^>]*>([^<]+)</a></td>\n<td class="message"><a [^>]*/commit/(\w+)">'
        r'.*?<td class="number quiet">(.*?)</td>'
    )
    found = re.findall(row, browser.text, re.DOTALL)
    return [(name, size, commit) for name, commit, size in found]


async def test_what_takes_too_long_to_find_is_left_out(
    scene: Scene, visitor: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await scene.forge.project(scene.owner, visibility="public", initialize_with_readme=True)
    await scene.commit(project, "main", {"a.txt": "1"}, "Add one")
    path = f"/{project['path_with_namespace']}"

    async def last_commits(*_: object) -> dict[str, str]:
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(file_history, "last_commits", last_commits)
        await visitor.get(path)
        assert (visitor.status, _rows(visitor), "a.txt" in visitor.text) == (200, [], True)
    assert len(_rows(await visitor.get(path))) == 2, "and it is looked for again"


async def test_the_newest_pipeline_of_the_last_commit_is_there(scene: Scene, visitor: Browser) -> None:
    project = await scene.forge.project(scene.owner, visibility="public", initialize_with_readme=True)
    await scene.commit(project, "main", {".gitlab-ci.yml": "one:\n  script: [echo]\n"}, "Build it")
    pipelines = await scene.owner.api.until(f"/projects/{project['id']}/pipelines")
    path = f"/{project['path_with_namespace']}"
    link = (
        f'href="{path}/-/pipelines/{pipelines[0]["id"]}" aria-label="Pipeline {pipelines[0]["id"]}: pending"'
    )
    assert link in (await visitor.get(path)).text
    await scene.owner.api.put(f"/projects/{project['id']}", {"builds_access_level": "private"})
    assert "/-/pipelines/" not in (await visitor.get(path)).text


async def test_lines_have_the_commits_that_they_come_from(scene: Scene, visitor: Browser) -> None:
    project = await scene.forge.project(scene.owner, visibility="public", initialize_with_readme=True)
    text = "".join(f"line {number}\n" for number in range(1, 521))
    first = await scene.commit(project, "main", {"a/b.txt": text}, "Add <lines>")
    action = {"action": "update", "file_path": "a/b.txt", "content": text.replace("line 3\n", "<b>\n")}
    body = {"branch": "main", "commit_message": "Change one", "actions": [action]}
    url = f"/projects/{project['id']}/repository/commits"
    second = (await scene.owner.api.post(url, body, expect=201)).body["id"]
    path = f"/{project['path_with_namespace']}/-/blame"
    await visitor.get(f"{path}/main/a/b.txt")
    assert re.findall(r'<tr><td><a [^>]*/commit/(\w+)" title="([^"]*)"', visitor.text) == [
        (first, "Add &lt;lines&gt;"),
        (second, "Change one"),
        (first, "Add &lt;lines&gt;"),
    ]
    assert '<a class="number" id="L3" href="#L3" tabindex="-1">3</a>&lt;b&gt;\n' in visitor.text
    assert (
        f'href="{path}/{first}/a/b.txt" aria-label="View blame prior to {second[:8]}">prior blame</a>'
        in visitor.text
    )
    assert ('id="L500"' in visitor.text, 'id="L501"' in visitor.text) == (True, False)
    assert 'href="?page=2"' in visitor.text
    await visitor.get(f"{path}/main/a/b.txt?page=2")
    assert (visitor.text.count('class="number"'), 'id="L520"' in visitor.text) == (20, True)
    for below, status in (
        ("/main/a", 200),
        ("/main/none", 404),
        ("/main/a/b.txt?page=0", 400),
        ("/main/a/b.txt?page=9", 200),
    ):
        assert (await visitor.get(f"{path}{below}")).status == status, below
    assert "This file has no lines" in visitor.text


async def test_every_address_that_the_api_gives_opens(scene: Scene, visitor: Browser) -> None:
    """This includes branches whose names are hard to write into addresses, and bots."""
    token = {"name": "bot", "scopes": ["api"], "expires_at": "2999-01-31"}
    await scene.owner.api.post(f"/projects/{scene.private['id']}/access_tokens", token, expect=201)
    sha = await scene.commit(scene.private, "fix/#1&%", {"odd.txt": "x"}, "Odd branch")
    await scene.owner.api.post(
        f"/projects/{scene.private['id']}/releases", {"tag_name": "v1/a#b", "ref": "main", "name": "One"}
    )
    url = f"/projects/{scene.private['id']}"
    of_group = f"/groups/{scene.private['namespace']['id']}"
    found: set[str] = set()
    for path in (
        *(url, f"{url}/repository/commits", f"{url}/repository/commits/{sha}", f"{url}/repository/branches"),
        *(f"{url}/repository/tags", f"{url}/releases", f"{url}/members", f"{url}/users", of_group, "/groups"),
        *(f"{of_group}/projects", "/projects", "/users", "/user", "/namespaces", f"{of_group}/members"),
        f"{url}/repository/compare?from=main&to=fix%2F%231%26%25",
    ):
        answer = await scene.owner.api.get(path)
        assert answer.status == 200, path
        found |= set(_addresses(answer.body))
    assert len(found) > 15
    await visitor.enter(scene.forge, scene.owner)
    for address in sorted(found):
        assert address.startswith(scene.forge.base)
        split = urlsplit(address)
        await visitor.get(split.path + (f"#{split.fragment}" if split.fragment else ""))
        assert visitor.status == 200, address


def _addresses(body: Any) -> Any:
    """Return every `web_url`, and the addresses of releases."""
    if isinstance(body, dict):
        for name, value in body.items():
            if name in ("web_url", "self") and isinstance(value, str) and "/api/v4/" not in value:
                yield value
            yield from _addresses(value)
    elif isinstance(body, list):
        for value in body:
            yield from _addresses(value)


def test_the_trail_of_a_deep_folder_has_a_most_of_links() -> None:
    repository = cast("Repository", None)
    assert TreePath(repository, "main", "1" * 40, "a/b/c").trail == [("a", "a"), ("b", "a/b"), ("c", "a/b/c")]
    trail = TreePath(repository, "main", "1" * 40, "a/" * 2_000 + "b").trail
    assert (len(trail), trail[-1][0], len(trail[0][1])) == (50, "b", 2 * 1_952 - 1)
