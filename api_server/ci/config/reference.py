"""All keywords of GitLab's reference as one list, made from the tables that files are checked with, and what is
different here: what docs/compatibility.md shows."""

from collections.abc import Iterator
from typing import Literal

from attrs import frozen

from api_server.ci.config import keywords
from api_server.ci.config.checks import ByType, Check, Each, EachValue, Fields
from api_server.ci.config.keywords import ByKind, Rules

#: What is different about keywords that are supported.
DIFFERS = {
    "artifacts:expose_as": "kept, but merge requests do not show it",
    "artifacts:reports": "kept as artifacts; of their content only `dotenv` and `junit` are read",
    "environment": "what variables and the rights of agents are made of; there are no environments",
    "environment:action": "tells the job, and does nothing to an environment",
    "environment:auto_stop_in": "checked and kept; nothing stops by itself",
    "environment:on_stop": "checked and kept; nothing stops by itself",
    "include": "at most 20 levels deep",
    "include:remote": "at most 1 MiB, 3 redirects, 10 s, and 30 s for all; masked variables may stand in the URL",
    "manual_confirmation": "kept; there is no page that asks",
    "needs:parallel": "rows as they are written; no `$[[ matrix.NAME ]]`",
    "release": "a step that calls `release-cli`, which the image has to have",
    "rules:changes:compare_to": "at most 20 different refs in one configuration",
    "trigger:strategy": "`mirror` too, which GitLab has since 18",
    "variables": "numbers with a fraction and truth values too, as in later versions of GitLab 17",
    "variables:description": "checked; there is no page that shows it",
    "variables:options": "checked; there is no page that shows them",
}
#: Carried out before anything is checked.
_STRUCTURE = ("extends", "!reference", "include", "default")


@frozen
class Keyword:
    """`name` is GitLab's way to write it, `artifacts:reports:junit`; `note` says what differs."""

    name: str
    support: Literal["as GitLab", "differs", "not supported"]
    note: str = ""


def reference() -> list[Keyword]:
    """By name."""
    found = {name: _supported(name) for name in _STRUCTURE}
    for name, supported in _all():
        if supported:
            found[name] = _supported(name)
        else:
            found.setdefault(name, Keyword(name, "not supported"))
    return sorted(found.values(), key=lambda keyword: keyword.name)


def _supported(name: str) -> Keyword:
    note = DIFFERS.get(name, "")
    return Keyword(name, "differs" if note else "as GitLab", note)


def _all() -> Iterator[tuple[str, bool]]:
    """Each keyword, some more than once, and whether it is supported there."""
    yield from _names(keywords.INCLUDE, "include")
    for fields in (keywords.BUILD, keywords.BRIDGE):
        yield from _names(fields, "")
    for name, check in keywords.GLOBAL.items():
        if name != "default":
            yield name, True
            yield from _names(check, name)
    for name in keywords.BEYOND_GLOBAL:
        yield name, False


def _names(check: Check, place: str) -> Iterator[tuple[str, bool]]:
    match check:
        case Fields():
            for key, inner in check.keys.items():
                name = f"{place}:{key}" if place else key
                yield name, True
                yield from _names(inner, name)
            for key in check.beyond:
                yield f"{place}:{key}" if place else key, False
        case Each() | EachValue() | Rules():
            yield from _names(check.item, place)
        case ByType(inners) | ByKind(inners):
            for inner in inners.values():
                yield from _names(inner, place)
