"""Field values that the caching rules read: directives, seconds and lists (RFC 9110 5, 9111 5)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: delta-seconds above this count as this (RFC 9111 section 1.2.2).
MAX_SECONDS: Final = 2**31

#: Directive name in lower case -> argument without its quotes, or None.
Directives = Mapping[str, str | None]

_DIRECTIVE = re.compile(
    r"""[\s,]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*)))?(?=\s*(?:,|$))|[^,]+|$)""",
    re.VERBOSE,
)


def directives(values: Iterable[str]) -> Directives:
    """All members of the given Cache-Control lines; of several of one name the first counts (RFC 9111 4.2.1).

    What does not parse as a directive is left out.
    """
    found: dict[str, str | None] = {}
    for match in _DIRECTIVE.finditer(",".join(values)):
        name, quoted, bare = match.groups()
        if name is not None:
            found.setdefault(name.lower(), bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return found


def seconds(value: str | None) -> int | None:
    """delta-seconds, or None when it is none (RFC 9111 section 1.2.2)."""
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return MAX_SECONDS if len(value) > 10 else min(int(value), MAX_SECONDS)


def members(values: Iterable[str]) -> list[str]:
    """The members of a list-based field without quoted strings (RFC 9110 section 5.6.1)."""
    return [stripped for value in values for member in value.split(",") if (stripped := member.strip())]


def age_value(values: Sequence[str]) -> int:
    """The Age of a response; the first member counts, one that does not parse is ignored (RFC 9111 5.1)."""
    return seconds(values[0].split(",", 1)[0].strip()) or 0 if values else 0
