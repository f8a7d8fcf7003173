"""The commands that the documents print, block by block, as people would paste them."""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.support.checkout import CHECKOUT

_BLOCK = re.compile(r"^( *)```(sh|python)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    """The text between two fences of a document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Return the commands of a shell block, with continued lines joined, without comments and empty lines."""
        lines = self.text.replace("\\\n", " ").splitlines()
        stripped = (re.sub(r"(^|\s)# .*$", "", line).strip() for line in lines)
        return [" ".join(line.split()) for line in stripped if line]


def documents() -> list[Path]:
    """Return all documents except the changelog, which describes the past."""
    return [
        path
        for path in sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")])
        if path.stem != "CHANGELOG"
    ]


def blocks() -> Iterator[Block]:
    for path in documents():
        text = path.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            indent = found[1]
            body = "".join(part.removeprefix(indent) for part in found[3].splitlines(keepends=True))
            yield Block(str(path.relative_to(CHECKOUT)), line, found[2], body)
