"""Generated documents are up to date with the code."""

import pytest

from scripts.documents import DOCS, PARTS, comparison, document, routes, untested
from tests.support.forge import Forge

WRITTEN = comparison()
#: Beginnings of the description of each endpoint.
KINDS = ("as GitLab", "differs: ", "beyond: ")
LINES = [(name, line) for lines in WRITTEN["endpoints"].values() for name, line in lines.items()]


@pytest.mark.parametrize("page", PARTS)
def test_the_pages_are_what_the_code_says(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text == document(page), "python -m scripts.documents"
    assert text.count("<!-- generated: ") == len(PARTS[page])


def test_each_endpoint_has_one_line() -> None:
    named = [name for name, _ in LINES]
    assert sorted(named) == sorted(routes()), "write a line into docs/compatibility.toml"


def test_of_each_line_it_is_said_what_was_tried() -> None:
    assert list(untested(WRITTEN)) == []
    assert list(WRITTEN["tests"]) == [name for name, _ in LINES], "in the order of the lines, and no others"


def test_a_line_of_which_nothing_was_tried_is_refused() -> None:
    here, gone = "scripts/test_references.py::test_each_endpoint_has_one_line", "test_none.py::test_it"
    elsewhere = "GET /a/" + "zyxw"[::-1]  # a word that does not occur in this file
    said = {
        "endpoints": {"All": dict.fromkeys(("GET /a", "GET /b", "GET /c", "GET /d", elsewhere), "")},
        "tests": {"GET /a": [here], "GET /b": [], "GET /c": [here, gone, f"{here}s"], elsewhere: [here]},
    }
    assert list(untested(said)) == [
        "GET /b: name a test of it below [tests] in docs/compatibility.toml",
        f"GET /c: there is no test {gone}",
        f"GET /c: there is no test {here}s",
        "GET /d: name a test of it below [tests] in docs/compatibility.toml",
        f"{elsewhere}: scripts/test_references.py does not name it",
    ]


def test_a_line_says_how_it_is_beside_gitlab() -> None:
    as_gitlab, *others = KINDS
    good = [
        name
        for name, line in LINES
        if (line == as_gitlab or (line.startswith(tuple(others)) and len(line) > len("differs: ")))
        and "|" not in line
    ]
    assert [name for name, _ in LINES if name not in good] == []


def test_what_passes_parameters_over_is_not_as_gitlab() -> None:
    found = routes()
    assert [name for name, line in LINES if line == "as GitLab" and found[name].ignores] == []


@pytest.mark.parametrize("what", WRITTEN["absent"])
async def test_what_is_not_here_is_gitlabs_404(forge: Forge, what: str) -> None:
    path = WRITTEN["absent"][what].replace(":id", str((await forge.project())["id"]))
    url = f"{forge.base}{path}" if path.startswith("/api/") else path
    for client in (forge.root, forge.anonymous):
        answer = await client.get(url)
        assert answer.status == 404
        assert path != url or answer.body == {"error": "404 Not Found"}
