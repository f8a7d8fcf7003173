"""Texts on pages: the HTML of Markdown, links to named entities, and that no text blocks other requests."""

import base64
import io
import json
import re
import tomllib
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import Browser as Chromium

from api_server.pages import files
from api_server.pages.text import markdown, rendering
from api_server.pages.text.colours import Budget, lexer_named, lexer_of_file
from api_server.pages.text.markdown import MAX_NESTED, MAX_REFERENCES, Reference, TextContext, TooNested
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.pages.conftest import complaints_of
from tests.support.browser import COOKIE, Browser, browsing, new_session
from tests.support.forge import Forge, Person
from tests.support.merge_requests import open_merge_request

FOLDER = Path(__file__).parent
HOSTILE = tomllib.loads((FOLDER / "hostile.toml").read_text())
EXAMPLES = tomllib.loads((FOLDER / "examples.toml").read_text())
HERE = TextContext("https://forge.example", "group/app", "main", "docs")

#: Elements that a text may contain, and their attributes besides `align`.
ALLOWED: dict[str, set[str]] = {
    **{tag: set() for tag in markdown._TAGS - {"h1"}},
    "a": {"href", "name", "title", "rel", "class", "aria-label"},
    "img": {"src", "alt", "title", "width", "height", "loading"},
    "input": {"type", "disabled", "checked", "aria-label"},
    "pre": {"tabindex"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "span": {"class"},
    "ol": {"start"},
    "details": {"open"},
    "abbr": {"title"},
}
OUR_CLASSES = re.compile(r"anchor|wide|s-[a-z]+")
OUTSIDE = re.compile(r"(https?:|mailto:|//|[/\\]{2})", re.IGNORECASE)


class Strict(HTMLParser):
    """A parser that lists forbidden content."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        extra = values.keys() - ALLOWED.get(tag, set()) - {"align"}
        if tag not in ALLOWED or extra or len(values) < len(attrs):
            self.problems.append(f"{tag} {sorted(extra)}")
        if not OUR_CLASSES.fullmatch(values.get("class", "anchor")):
            self.problems.append(f"class {values['class']}")
        if tag == "input" and (values.get("type") != "checkbox" or "disabled" not in values):
            self.problems.append("a field")
        self._check_addresses(values)

    def _check_addresses(self, values: dict[str, str]) -> None:
        source, target = values.get("src", "/x/-/images/x"), values.get("href", "#")
        if not re.fullmatch(r"/[^/\\\s][^\\\s]*/-/images/[^\\\s]*", source):
            self.problems.append(f"src {source}")
        if not re.match(r"#|/[^/\\\s]", target) and not (
            OUTSIDE.match(target) and "nofollow" in values.get("rel", "")
        ):
            self.problems.append(f"href {target}")

    def handle_comment(self, data: str) -> None:
        self.problems.append(f"comment {data}")

    def handle_decl(self, decl: str) -> None:
        self.problems.append(f"declaration {decl}")


def rendered(text: str, at: TextContext = HERE) -> str:
    """Return the HTML with references in double brackets."""
    parts = markdown.join_strings(markdown.to_parts(text, at, Budget(1.5, 2**19)))
    return "".join(part if isinstance(part, str) else f"[[{part[0]} {part[1]}]]" for part in parts)


def problems_of(html: str) -> list[str]:
    parser = Strict()
    parser.feed(html)
    parser.close()
    return parser.problems


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_become_what_gitlab_shows(name: str) -> None:
    example: dict[str, Any] = EXAMPLES[name]
    at = TextContext("https://forge.example", "group/app", "feature/x", "docs")
    assert rendered(example["text"], at) == example["html"]
    assert problems_of(example["html"]) == []


def test_hostile_texts_become_harmless() -> None:
    assert len(HOSTILE) >= 100
    assert {name: rendered(case["text"]) for name, case in HOSTILE.items()} == {
        name: case["html"] for name, case in HOSTILE.items()
    }
    assert {name: found for name, case in HOSTILE.items() if (found := problems_of(case["html"]))} == {}


PIECES = sorted(
    {part for case in HOSTILE.values() for part in re.split(r"([\s=\"'<>/\\:()\[\]])", case["text"]) if part}
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join))
def test_no_text_becomes_what_is_not_allowed(text: str) -> None:
    assert problems_of(rendered(text)) == []


@given(st.text() | st.sampled_from([case["text"] for case in HOSTILE.values()]))
def test_what_a_link_or_image_says_stays_in_its_place(text: str) -> None:
    """Whatever is written into the attributes of a tag, the browser reads one element."""
    for written in (
        f"[a](<{text}>)",
        f"![{text}](x.png)",
        f"![a]({text})",
        f'<a href="{text}" title="{text}">a</a>',
    ):
        assert problems_of(rendered(written)) == []


def test_outside_of_projects_relative_links_lead_nowhere() -> None:
    text = "[a](b.md) ![c](d.png) [e](https://example.com) [f](/-/user_settings) [g](#h)"
    assert rendered(text, TextContext("https://forge.example")) == (
        '<p><a>a</a> c <a href="https://example.com" rel="nofollow noopener noreferrer">e</a>'
        ' <a href="/-/user_settings">f</a> <a href="#h">g</a></p>\n'
    )


@pytest.mark.parametrize("text", ["> " * 5000, "<div>" * 5000, "<b>" * 5000, "</x>".join(["<div>"] * 5000)])
def test_too_many_elements_within_each_other_are_refused(text: str) -> None:
    with pytest.raises(TooNested):
        rendered(text)


def test_deep_texts_of_people_are_not() -> None:
    lists = "\n".join("  " * depth + f"- {depth}" for depth in range(MAX_NESTED // 2 - 1))
    assert rendered(lists).count("<li>") == MAX_NESTED // 2 - 1
    assert rendered("<p>one" * 5000).count("<p>") == 5000


def test_references_are_counted() -> None:
    parts = markdown.to_parts("!1 " * (MAX_REFERENCES + 5), HERE, Budget(1, 1))
    assert sum(isinstance(part, Reference) for part in parts) == MAX_REFERENCES
    assert "!1 !1 !1 !1 !1" in rendered("!1 " * (MAX_REFERENCES + 5))


@pytest.mark.parametrize("language", ["perl", "rst", "php"])
def test_colours_end_when_their_time_is_over(language: str) -> None:
    """Some lexers would take minutes for these."""
    source = {"perl": "m{", "rst": "`a ", "php": "<?php "}[language] * 100_000
    budget = Budget(0.05, 2**20)
    assert budget.coloured(source, lexer_named(language)) is None
    assert budget.coloured("x", lexer_named("python")) is None


def test_colours_are_for_so_much_source() -> None:
    budget = Budget(5, 10)
    assert budget.coloured("12345678", lexer_named("python")) == '<span class="s-number">12345678</span>'
    assert budget.coloured("123", lexer_named("python")) is None


def test_lines_stay_lines() -> None:
    source = '"""one\n\ntwo <b>"""\n\n\nx = 1\n\n'
    assert Budget(5, 1000).coloured(source, lexer_of_file("a.py", source)) == (
        '<span class="s-string">"""one</span>\n\n<span class="s-string">two &lt;b&gt;"""</span>\n\n\n'
        'x = <span class="s-number">1</span>\n\n'
    )


@pytest.mark.parametrize(
    ("name", "source", "language"),
    [
        ("a.py", "", "python"),
        (".gitlab-ci.yml", "", "yaml"),
        ("Dockerfile", "", "docker"),
        ("a.h", "#include <iostream>\n", "c"),
        ("a.pl", "#!/usr/bin/perl\nuse strict;\nmy $x = 1;\n", "perl"),
        ("CMakeLists.txt", "", "cmake"),
        ("run", "#!/usr/bin/env python3\n", "python"),
        ("run", "#! /bin/sh\n", "bash"),
        ("a.txt", "", None),
        ("LICENSE", "MIT\n", None),
        ("run", "#!/opt/unheard-of\n", None),
    ],
)
def test_the_language_of_a_file(name: str, source: str, language: str | None) -> None:
    lexer = lexer_of_file(name, source)
    assert (lexer.aliases[0] if lexer else None) == language


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
#: The end of this text needs more memory or time than a child may use.
DEADLY = "".join(f"<b x={number}><p>" for number in range(95)) + "<p>x" * 200_000


@attrs.frozen
class Scene:
    forge: Forge
    owner: Person
    project: dict[str, Any]

    @property
    def path(self) -> str:
        return f"/{self.project['path_with_namespace']}"

    async def commit(self, files: dict[str, bytes | str], branch: str = "main") -> str:
        actions = [
            {
                "action": "create",
                "file_path": name,
                "content": base64.b64encode(
                    content.encode() if isinstance(content, str) else content
                ).decode(),
                "encoding": "base64",
            }
            for name, content in files.items()
        ]
        body = {"branch": branch, "start_branch": "main", "commit_message": "Add <files>", "actions": actions}
        url = f"/projects/{self.project['id']}/repository/commits"
        sent = io.BytesIO(json.dumps(body).encode())
        kind = {"Content-Type": "application/json"}
        made = await self.owner.api.request("POST", url, data=sent, headers=kind, expect=201)
        return str(made.body["id"])

    async def note(self, body: str) -> None:
        await self.owner.api.post(
            f"/projects/{self.project['id']}/merge_requests/1/notes", {"body": body}, expect=201
        )


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    project = await forge.project(owner, visibility="public", initialize_with_readme=True)
    made = Scene(forge, owner, project)
    await open_merge_request(owner, project, title="The <first> one")
    return made


@pytest.fixture
async def browser(scene: Scene) -> AsyncIterator[Browser]:
    async with browsing(scene.forge, scene.owner) as opened:
        yield opened


def text_of(browser: Browser) -> str:
    """Return the text that the page shows as HTML."""
    found = re.search(r'<section class="markdown">(.*?)</section>', browser.text, re.DOTALL)
    return found[1] if found else ""


async def test_the_description_of_a_group_is_markdown(scene: Scene, browser: Browser) -> None:
    group = await scene.forge.group(scene.owner, description="**Bold** <script>x</script>")
    await browser.get(f"/groups/{group['full_path']}")
    assert text_of(browser).strip() == "<p><strong>Bold</strong> </p>"


async def test_what_a_text_names_is_linked_if_it_exists(scene: Scene, browser: Browser) -> None:
    sha = await scene.commit({"one.txt": "1"}, "one")
    name = scene.owner.username
    await scene.commit(
        {"named.md": f"!1 !2 @{name} @{name.title()} @nobody-at-all {sha} {sha[:9]} 0123456"}, "named"
    )
    await browser.get(f"{scene.path}/-/blob/named/named.md")
    person = f'<a href="/{name}" title="{name.title()}">'
    commit = f'<a href="{scene.path}/-/commit/{sha}" title="Add &lt;files&gt;" class="mono">{sha[:8]}</a>'
    assert text_of(browser) == (
        f'<p><a href="{scene.path}/-/merge_requests/1" title="The &lt;first&gt; one">!1</a> !2 {person}@{name}</a>'
        f" {person}@{name.title()}</a> @nobody-at-all {commit} {commit} 0123456</p>\n"
    )
    async with browsing(scene.forge) as stranger:
        await stranger.get(f"{scene.path}/-/blob/named/named.md")
        assert f"@{name} @{name.title()}" in text_of(stranger), "strangers are not told who is here"
        assert commit in text_of(stranger)


async def test_what_a_guest_may_not_see_is_not_named(scene: Scene) -> None:
    guest = await scene.forge.user("guest")
    project = await scene.forge.project(
        scene.owner, visibility="private", initialize_with_readme=True, description="!1 and more"
    )
    await scene.forge.member("projects", project["id"], guest, Role.GUEST)
    await open_merge_request(scene.owner, project, title="A secret title")
    for person, link in ((scene.owner, True), (guest, False)):
        async with browsing(scene.forge, person) as looking:
            await looking.get(f"/{project['path_with_namespace']}")
            assert ("A secret title" in looking.text, "!1" in text_of(looking)) == (link, True)


async def test_a_text_that_ends_the_child_is_shown_as_written(
    scene: Scene, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["**before**", DEADLY[: 2**20 - 1], "**behind**"]
    for text in texts:
        await scene.note(text)
    await browser.get(f"{scene.path}/-/merge_requests/1")
    shown = re.findall(r'<section class="markdown">(.*?)</section>', browser.text, re.DOTALL)[-3:]
    assert shown[0] == "<p><strong>before</strong></p>\n"
    assert shown[1].startswith('<pre class="prose">&lt;b x=0&gt;')
    assert shown[2] == "<p><strong>behind</strong></p>\n"

    async def fail(_: object) -> None:
        raise AssertionError("all of them are known")

    monkeypatch.setattr(rendering, "_run_child", fail)
    await browser.get(f"{scene.path}/-/merge_requests/1")
    assert re.findall(r'<section class="markdown">(.*?)</section>', browser.text, re.DOTALL)[-3:] == shown


async def test_what_a_busy_machine_does_not_do_in_time_is_tried_again(
    scene: Scene, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.commit({"slow.md": "**strong**"}, "slow")
    with monkeypatch.context() as patched:
        patched.setattr(rendering, "_TIMEOUT", 0.0)
        await browser.get(f"{scene.path}/-/blob/slow/slow.md")
        assert text_of(browser) == '<pre class="prose">**strong**</pre>'
    await browser.get(f"{scene.path}/-/blob/slow/slow.md")
    assert text_of(browser) == "<p><strong>strong</strong></p>\n"


async def test_a_large_readme_is_rendered_and_a_larger_one_is_not(scene: Scene, browser: Browser) -> None:
    """The tests' watchdog checks that no step takes long."""
    line = "- [ ] *one* `two` [three](four.md) !1 and 0123456, as far as a line goes that somebody writes\n"
    large = "# Large\n\n```python\n" + "x = 1\n" * 1000 + "```\n\n" + line * 11_000
    await scene.commit({"large.md": large[: 2**20], "larger.md": large + line * 3_000}, "large")
    await browser.get(f"{scene.path}/-/blob/large/large.md")
    assert browser.text.count('type="checkbox"') == large[: 2**20].count("- [ ]")
    assert "too large to display" in (await browser.get(f"{scene.path}/-/blob/large/larger.md")).text


async def test_markdown_has_its_source_beside_it(scene: Scene, browser: Browser) -> None:
    await scene.commit({"docs/a.md": "# A\n\n[b](b.md) ![c](../c.png)\n"}, "docs")
    await browser.get(f"{scene.path}/-/blob/docs/docs/a.md")
    assert f'<a href="{scene.path}/-/blob/docs/docs/b.md">b</a>' in text_of(browser)
    assert f'<img src="{scene.path}/-/images/docs/c.png" alt="c" loading="lazy">' in text_of(browser)
    assert f'href="{scene.path}/-/blob/docs/docs/a.md?plain=1">Source</a>' in browser.text
    await browser.get(f"{scene.path}/-/blob/docs/docs/a.md?plain=1")
    assert text_of(browser) == ""
    assert 'id="L3"' in browser.text
    assert f'href="{scene.path}/-/blob/docs/docs/a.md">Rendered</a>' in browser.text


async def test_source_has_colours_and_lines(scene: Scene, browser: Browser) -> None:
    await scene.commit(
        {"a.py": "def f():\r\n    return '<b>'\n", "b.txt": "<b>\n", "c.md": b"\xff\xfe \xe9\n"}, "source"
    )
    await browser.get(f"{scene.path}/-/blob/source/a.py")
    assert (
        '<a class="number" id="L2" href="#L2" tabindex="-1">2</a>    <span class="s-keyword">return</span>'
        " <span class=\"s-string\">'&lt;b&gt;'</span>\n"
    ) in browser.text
    assert 'tabindex="-1">1</a>&lt;b&gt;\n' in (await browser.get(f"{scene.path}/-/blob/source/b.txt")).text
    assert "<p>\ufffd\ufffd \ufffd</p>" in (await browser.get(f"{scene.path}/-/blob/source/c.md")).text


async def test_texts_are_kept_up_to_a_size(scene: Scene) -> None:
    kept = scene.forge.server.app[SERVICES][rendering.RENDERED]
    assert kept.getsizeof(["ab", ["user", "ada", "@ada"]]) == 105
    assert kept.getsizeof(None) == 100
    assert kept.maxsize == 16 * 2**20


IMAGES = {
    "p.png": (PIXEL, 200, "image/png"),
    "renamed.txt": (b"GIF89a" + b"\0" * 10, 200, "image/gif"),
    "w.webp": (b"RIFF\0\0\0\0WEBPVP8 ", 200, "image/webp"),
    "j.jpeg": (b"\xff\xd8\xff\xe0", 200, "image/jpeg"),
    "s.svg": (SVG, 404, "text/html"),
    "s.png": (SVG, 404, "text/html"),
    "page.png": (b"<html><script>alert(1)</script>", 404, "text/html"),
    "text.png": (b"text", 404, "text/html"),
    "doc.png": (b"%PDF-1.4", 404, "text/html"),
    "large.png": (PIXEL + b"\0" * 2**20, 404, "text/html"),
    "streamed.png": (PIXEL + b"\0" * 2**19, 200, "image/png"),
}


async def test_images_of_the_repository_come_from_the_pages_own_origin(
    scene: Scene, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_IMAGE", 2**20)
    await scene.commit({name: content for name, (content, _, _) in IMAGES.items()}, "images")
    for name, (content, status, media_type) in IMAGES.items():
        url = f"{browser.base}{scene.path}/-/images/images/{name}"
        async with browser.session.get(url) as answer:
            found = answer.status, answer.headers["Content-Type"].partition(";")[0]
            assert found == (status, media_type), name
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            if status == 200:
                assert await answer.read() == content
                assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        if status == 200:
            known = {"If-None-Match": answer.headers["ETag"]}
            async with browser.session.get(url, headers=known) as answer:
                assert answer.status == 304
    await browser.get(f"{scene.path}/-/blob/images/p.png")
    assert f'<img class="shown" src="{scene.path}/-/images/images/p.png" alt="p.png">' in browser.text


async def test_images_are_shown_to_those_who_may_read_the_repository(scene: Scene) -> None:
    project = await scene.forge.project(scene.owner, visibility="private", initialize_with_readme=True)
    people = await scene.forge.people(project["id"])
    private = attrs.evolve(scene, project=project)
    await private.commit({"p.png": PIXEL}, "images")
    for role, status in (("guest", 403), ("reporter", 200), ("stranger", 404)):
        async with browsing(scene.forge, people[role]) as looking:
            answer = await looking.session.get(f"{looking.base}{private.path}/-/images/images/p.png")
            assert answer.status == status, role
            answer.release()
    async with browsing(scene.forge) as nobody:
        assert (await nobody.get(f"{private.path}/-/images/images/p.png")).path == "/-/sign_in"


async def test_a_document_is_offered(scene: Scene, browser: Browser) -> None:
    await scene.commit({"a.pdf": b"%PDF-1.4\n" + b"\0" * 300_000, "b.pdf": b"%PDF-1.4\n"}, "documents")
    for name in ("a.pdf", "b.pdf"):
        await browser.get(f"{scene.path}/-/blob/documents/{name}")
        link = f'This file is a PDF document: <a href="{scene.path}/-/raw/documents/{name}">open it</a>'
        assert link in browser.text


#: Chromium's result for a text: elements with the names of their attributes, and whether the page is still whole.
_LOOK = """() => {
    const text = document.querySelector('main > section.markdown');
    const elements = [...text.querySelectorAll('*')].map(
        each => [each.localName, [...each.attributes].map(attribute => attribute.name)]
    );
    const whole = document.querySelector('footer').parentElement === document.body
        && document.querySelectorAll('form').length;
    return {elements, whole, ran: window.ran === undefined, title: document.title};
}"""


async def test_chromium_runs_and_loads_nothing_of_hostile_texts(scene: Scene, chromium: Chromium) -> None:
    # a file with a NUL is not a text
    names = [name for name, case in HOSTILE.items() if "\0" not in case["text"]]
    texts = [HOSTILE[name]["text"].replace("alert(", "ran=(") for name in names]
    await scene.commit({f"docs/{number}.md": text for number, text in enumerate(texts)}, "hostile")
    context = await chromium.new_context(base_url=scene.forge.base)
    cookie = await new_session(scene.forge, scene.owner.id)
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": scene.forge.base}])
    page = await context.new_page()
    complaints = complaints_of(page)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    problems: list[str] = []
    for number, name in enumerate(names):
        path = f"{scene.path}/-/blob/hostile/docs/{number}.md"
        await page.goto(path)
        await page.evaluate(
            "document.querySelectorAll('main details').forEach(each => each.open = !each.open)"
        )
        seen = await page.evaluate(_LOOK)
        problems += [
            f"{name}: {element} {attributes}"
            for element, attributes in seen["elements"]
            if element not in ALLOWED or set(attributes) - ALLOWED[element] - {"align"}
        ]
        if (seen["whole"], seen["ran"], page.url) != (1, True, f"{scene.forge.base}{quote(path)}"):
            problems.append(f"{name}: {seen} {page.url}")
    await context.close()
    assert problems == []
    assert [url for url in requested if not url.startswith(f"{scene.forge.base}/")] == []
    assert [text for text in complaints if "status of 404" not in text] == [], (
        "images that are not there are missed"
    )


async def test_an_address_names_lines(scene: Scene, chromium: Chromium) -> None:
    """One line needs only the style sheet; several need the script, as after a click with the shift key."""
    await scene.commit({"long.txt": "line\n" * 300}, "lines")
    url = f"{scene.forge.base}{scene.path}/-/blob/lines/long.txt"
    chosen = """() => [...document.querySelectorAll('.row')].filter(
        row => getComputedStyle(row).backgroundColor !== 'rgba(0, 0, 0, 0)').map(row => row.firstChild.textContent)"""
    for scripts, hash_, lines in (
        (False, "#L7", [7]),
        (True, "#L7", [7]),
        (True, "#L200-198", [198, 199, 200]),
    ):
        context = await chromium.new_context(
            java_script_enabled=scripts, viewport={"width": 800, "height": 600}
        )
        page = await context.new_page()
        await page.goto(f"{url}{hash_}")
        assert await page.locator(".row").count() == 300
        if scripts:
            assert await page.evaluate(chosen) == [str(line) for line in lines]
            await page.locator("#L203").click(modifiers=["Shift"])
            assert page.url == f"{url}#L{lines[0]}-203"
            await page.wait_for_function("document.querySelectorAll('.chosen').length > 3")
            assert await page.evaluate(chosen) == [str(line) for line in range(lines[0], 204)]
        else:
            colour = await page.locator(".row", has=page.locator("#L7")).evaluate(
                "e => getComputedStyle(e).backgroundColor"
            )
            assert colour == "rgb(255, 246, 214)"
        await context.close()
