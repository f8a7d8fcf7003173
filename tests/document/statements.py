"""The sentences of docs/service-api.md beside the tests that try them.

A test says which: `@says("static objects 2", "The external storage requests ...")`. The id is the part of the document
and the number there, of an endpoint the document's own. `test_statements.py` fails where a sentence has no test.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/service-api.md").read_text(encoding="utf-8")
TestT = TypeVar("TestT", bound=Callable[..., object])

#: Those that tests have named, by id.
SAID: dict[str, set[str]] = {}


def says(statement: str, *sentences: str) -> Callable[[TestT], TestT]:
    """The test tries what the document says in these words. Raises ValueError where it does not say so."""
    if missing := [sentence for sentence in sentences if sentence not in DOCUMENT]:
        raise ValueError(f"{statement}: the document does not say {missing}")
    SAID.setdefault(statement, set()).update(sentences)
    return lambda test: test


def section(heading: str, within: str = "") -> str:
    """The text below that heading, up to the next one that is as high; of several the one in the part `within`."""
    begin = DOCUMENT.index(f"\n## {within}\n") if within else 0
    found = DOCUMENT[DOCUMENT.index(f"\n{heading}\n", begin) + len(heading) + 2 :]
    level = heading.partition(" ")[0]
    return re.split(rf"^#{{1,{len(level)}}} ", found, maxsplit=1, flags=re.MULTILINE)[0]
