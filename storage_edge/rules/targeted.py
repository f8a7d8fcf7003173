"""CDN-Cache-Control, the Cache-Control that is meant for this cache alone (RFC 9213)."""

import re
from collections.abc import Sequence
from typing import Final

from storage_edge.rules.fields import Directives

FIELD: Final = "CDN-Cache-Control"

_INTEGER_DIRECTIVES = frozenset({"max-age", "s-maxage", "stale-while-revalidate", "stale-if-error"})
_MEMBER = re.compile(
    r"""(?P<key>[a-z*][a-z0-9_.*-]*)
        (?:=(?:(?P<integer>-?\d{1,15})(?![\d.])|(?P<other>-?\d{1,12}\.\d{1,3}|"(?:[ !#-\[\]-~]|\\["\\])*"
            |[A-Za-z*][\w!#$%&'*+.^`|~:/-]*|:[A-Za-z0-9+/=]*:|\?[01])))?
        (?:;[ ]*[a-z*][a-z0-9_.*-]*(?:=[^;,\s]*)?)*
        [ \t]*(?:,[ \t]*(?=\S)|$)""",
    re.VERBOSE,
)


def directives(values: Sequence[str]) -> Directives | None:
    """The members of a valid, non-empty CDN-Cache-Control; None when Cache-Control has to be used instead.

    It is a structured field (RFC 9213 section 2.1): one syntax error makes all of it void. A member whose
    value is of the wrong type is left out.
    """
    text = ", ".join(value.strip(" \t") for value in values if value.strip(" \t"))
    found: dict[str, str | None] = {}
    position = 0
    while position < len(text):
        member = _MEMBER.match(text, position)
        if member is None:
            return None
        position = member.end()
        key = member["key"]
        found.pop(key, None)
        if key not in _INTEGER_DIRECTIVES:
            found[key] = member["integer"] or (member["other"] or "").strip('"') or None
        elif member["integer"] is not None:
            found[key] = member["integer"]
    return found if text else None
