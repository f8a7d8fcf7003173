"""Which stored response answers which request, where the origin negotiates (`Vary`, RFC 9111 section 4.1)."""

import re
from collections.abc import Mapping

from multidict import CIMultiDictProxy

from storage_edge.rules import fields

#: Field name in lower case -> its normalised value in the request, None when absent.
Selection = tuple[tuple[str, str | None], ...]

_LIST_SPACE = re.compile(r"[ \t]*,[ \t]*")
#: Fields whose values are compared without regard to case.
_CASE_INSENSITIVE = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language"})


def selection(vary: list[str], request: Mapping[str, str]) -> Selection:
    """What of the request selects a response with these Vary lines; fields in alphabetic order."""
    names = sorted({name.lower() for name in fields.members(vary)})
    return tuple((name, normalised(name, request.get(name))) for name in names)


def matches(selected: Selection, request: Mapping[str, str]) -> bool:
    """Whether a response selected by `selected` answers this request as well."""
    return all(normalised(name, request.get(name)) == value for name, value in selected)


def normalised(name: str, value: str | None) -> str | None:
    """A field value in the spelling that its equals share: no optional space, lists by weight."""
    if value is None:
        return None
    members = [member for member in _LIST_SPACE.split(value.strip(" \t")) if member]
    if name in _CASE_INSENSITIVE:
        members = sorted((member.lower().replace(" ", "") for member in members), key=_by_weight)
    return ",".join(members)


def _by_weight(member: str) -> tuple[float, str]:
    value, _, weight = member.partition(";q=")
    try:
        return (-float(weight or 1), value)
    except ValueError:
        return (0.0, value)


def combined(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """Request fields by lower-case name, several lines of one field joined (RFC 9110 section 5.3)."""
    joined: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        joined[key] = f"{joined[key]}, {value}" if key in joined else value
    return joined
