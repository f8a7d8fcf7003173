"""Markdown becomes what GitLab shows, nothing that a browser would run or load, and never takes long."""

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.pages.text import markdown
from api_server.pages.text.colours import Budget, lexer_named, lexer_of_file
from api_server.pages.text.markdown import MOST_NESTED, MOST_REFERENCES, Reference, Surroundings, TooNested

FOLDER = Path(__file__).parent
HOSTILE = tomllib.loads((FOLDER / "hostile.toml").read_text())
EXAMPLES = tomllib.loads((FOLDER / "examples.toml").read_text())
HERE = Surroundings("https://forge.example", "group/app", "main", "docs")

#: What pages may have of a text: elements, and their attributes beside `align`.
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
    """Lists what must not be there."""

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


def rendered(text: str, at: Surroundings = HERE) -> str:
    """References stand in double brackets."""
    parts = markdown.joined(markdown.to_parts(text, at, Budget(1.5, 2**19)))
    return "".join(part if isinstance(part, str) else f"[[{part[0]} {part[1]}]]" for part in parts)


def problems_of(html: str) -> list[str]:
    parser = Strict()
    parser.feed(html)
    parser.close()
    return parser.problems


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_become_what_gitlab_shows(name: str) -> None:
    example: dict[str, Any] = EXAMPLES[name]
    at = Surroundings("https://forge.example", "group/app", "feature/x", "docs")
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
    assert rendered(text, Surroundings("https://forge.example")) == (
        '<p><a>a</a> c <a href="https://example.com" rel="nofollow noopener noreferrer">e</a>'
        ' <a href="/-/user_settings">f</a> <a href="#h">g</a></p>\n'
    )


@pytest.mark.parametrize("text", ["> " * 5000, "<div>" * 5000, "<b>" * 5000, "</x>".join(["<div>"] * 5000)])
def test_too_many_elements_within_each_other_are_refused(text: str) -> None:
    with pytest.raises(TooNested):
        rendered(text)


def test_deep_texts_of_people_are_not() -> None:
    lists = "\n".join("  " * depth + f"- {depth}" for depth in range(MOST_NESTED // 2 - 1))
    assert rendered(lists).count("<li>") == MOST_NESTED // 2 - 1
    assert rendered("<p>one" * 5000).count("<p>") == 5000


def test_references_are_counted() -> None:
    parts = markdown.to_parts("!1 " * (MOST_REFERENCES + 5), HERE, Budget(1, 1))
    assert sum(isinstance(part, Reference) for part in parts) == MOST_REFERENCES
    assert "!1 !1 !1 !1 !1" in rendered("!1 " * (MOST_REFERENCES + 5))


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
