"""The sentences of docs/service-api.md, each beside the tests of it.

A test declares its sentences: `@says("static objects 2", "The external storage requests ...")`. The id is the part of
the document with the number there; endpoints have the document's numbers. `test_statements.py` fails if a sentence has
no test.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/service-api.md").read_text(encoding="utf-8")
TestT = TypeVar("TestT", bound=Callable[..., object])

#: The sentences of tests, by id.
SAID: dict[str, set[str]] = {}


def says(statement: str, *sentences: str) -> Callable[[TestT], TestT]:
    """Declare that the test tries this sentence of the document. Raise ValueError if the document does not contain
    it."""
    if missing := [sentence for sentence in sentences if sentence not in DOCUMENT]:
        raise ValueError(f"{statement}: the document does not say {missing}")
    SAID.setdefault(statement, set()).update(sentences)
    return lambda test: test


def section(heading: str, within: str = "") -> str:
    """Return the text below that heading, up to the next one of the same level; of several headings, use the one in
    the part `within`."""
    begin = DOCUMENT.index(f"\n## {within}\n") if within else 0
    found = DOCUMENT[DOCUMENT.index(f"\n{heading}\n", begin) + len(heading) + 2 :]
    level = heading.partition(" ")[0]
    return re.split(rf"^#{{1,{len(level)}}} ", found, maxsplit=1, flags=re.MULTILINE)[0]
