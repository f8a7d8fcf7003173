"""The lines of what differs in a file, each with what is so of it."""

from typing import Literal

import attrs

Kind = Literal["added", "removed", "hunk", "same"]
_KINDS: dict[str, Kind] = {"+": "added", "-": "removed", "@": "hunk"}


@attrs.frozen
class Line:
    kind: Kind
    text: str


def lines_of(diff: str) -> list[Line]:
    """Of hunks as git writes them."""
    return [Line(_KINDS.get(text[:1], "same"), text) for text in diff.split("\n") if text]
