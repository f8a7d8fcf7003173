"""The documents: named files exist, links have targets, and lines are not too long."""

import functools
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "api_server", "common", "docs", "forgelet", "scripts", "storage_edge", "tests")
#: The contract is written by others; only links to it are checked.
CONTRACT = "docs/service-api.md"
DOCUMENTS = sorted(
    str(path.relative_to(CHECKOUT))
    for path in [*CHECKOUT.glob("docs/*.md"), *CHECKOUT.glob("*.md")]
    if path.name != "CHANGELOG.md"
)
OURS = [name for name in DOCUMENTS if name != CONTRACT]
LONGEST_LINE = 120
LONGEST_PAGE = 300
#: Pages that a program writes, or whose figures it writes.
GENERATED = {
    "docs/ci-keywords.md",
    "docs/commands.md",
    "docs/compatibility.md",
    "docs/performance.md",
    "docs/settings.md",
}

_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
_IN_A_FOLDER = re.compile("|".join(rf"{re.escape(folder)}/" for folder in FOLDERS))
#: `refs/...` are git's, the others those of a data directory and of a backup.
_SOURCE_OR_FOLDER = re.compile(r"(?!refs/|secrets/|database/).*(\.(py|sql|mjs|sh)|/)")
#: A test, or a module of tests.
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_there_are_documents() -> None:
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", CONTRACT} <= set(DOCUMENTS)


@pytest.mark.parametrize("name", OURS)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    there = _tails()
    assert [path for path in _named(name) if path.rstrip("/") not in there] == []


@pytest.mark.parametrize("name", OURS)
def test_every_module_that_a_document_runs_exists(name: str) -> None:
    assert [
        module for module in re.findall(r"python -m ([\w.]+)", _text(name)) if not find_spec(module)
    ] == []


@pytest.mark.parametrize("name", OURS)
def test_every_test_that_a_document_names_exists(name: str) -> None:
    def is_there(module: str, test: str) -> bool:
        file = CHECKOUT / module
        return file.exists() and (not test or f"def {test}(" in file.read_text(encoding="utf-8"))

    assert [named for named in _TEST.findall(_text(name)) if not is_there(*named)] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    assert [link for link in _LINK.findall(_text(name)) if not _leads_somewhere(name, link)] == []


@pytest.mark.parametrize("name", OURS)
def test_lines_are_short_enough_to_read(name: str) -> None:
    prose, _ = _parts(name)
    long = [line for line in prose if len(_LINK.sub("]", line)) > LONGEST_LINE and not line.startswith("|")]
    assert long == []


@pytest.mark.parametrize("name", [name for name in OURS if name not in GENERATED])
def test_pages_are_short_enough_to_read(name: str) -> None:
    assert len(_text(name).splitlines()) <= LONGEST_PAGE


def test_the_overview_names_every_page() -> None:
    named = set(_LINK.findall(_text("README.md")))
    assert sorted(name for name in DOCUMENTS if name.startswith("docs/") and name not in named) == []


def _text(name: str) -> str:
    return (CHECKOUT / name).read_text(encoding="utf-8")


def _parts(name: str) -> tuple[list[str], list[str]]:
    """Return the lines of a document's prose, and those of its code blocks."""
    prose: list[str] = []
    code: list[str] = []
    inside = False
    for line in _text(name).splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        else:
            (code if inside else prose).append(line)
    assert not inside, "a code block without an end"
    return prose, code


def _named(name: str) -> Iterator[str]:
    """Yield words in backticks and code blocks that look like a path of ours: source files, folders, and everything
    below our own folders."""
    prose, code = _parts(name)
    spans = re.findall(r"`([^`]+)`", "\n".join(prose))
    for word in " ".join([*spans, *code]).split():
        path = word.strip("(),;:\"'").removesuffix(".")
        if _PATH.fullmatch(path) and (_IN_A_FOLDER.match(path) or _SOURCE_OR_FOLDER.fullmatch(path)):
            yield path


@functools.cache
def _tails() -> set[str]:
    """Return the paths of the repository, complete and without their first folders: `ci/jobs/queries.py` is one of
    them."""
    found = set()
    for folder in FOLDERS:
        for path in (CHECKOUT / folder).rglob("*"):
            parts = path.relative_to(CHECKOUT).parts
            found |= {"/".join(parts[start:]) for start in range(len(parts))}
    return found | set(FOLDERS)


def _leads_somewhere(name: str, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = (CHECKOUT / name).parent / path if path else CHECKOUT / name
    return target.exists() and (not anchor or anchor in _anchors(target.read_text(encoding="utf-8")))


def _anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings: lower case, without punctuation, hyphens for spaces."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
