"""What operations are called, from their method, their path and their handler: names that stay, and read well in the
clients that are generated from them."""

import itertools
import re

from api_server.web.routes import Route

_PATTERN = re.compile(r"{(\w+)(?::(?:[^{}]|{[^{}]*})*)?}")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
#: Segments of paths that are one verb though they have two words.
_WHOLE = frozenset({"cherry_pick"})


def path_of(route: Route) -> str:
    """The path as OpenAPI writes it: `{ref}`, whatever may stand there."""
    return _PATTERN.sub(r"{\1}", route.path)


def parameters_in_path(route: Route) -> list[str]:
    return _PATTERN.findall(route.path)


def operation_id(route: Route) -> str:
    """`list_project_jobs`, `cancel_project_job`, `update_group_member`."""
    return "_".join((verb_of(route), *(word for word in _nouns(route) if word)))


def is_list(route: Route) -> bool:
    return route.method == "GET" and route.handler.__name__.startswith("list_")


def verb_of(route: Route) -> str:
    if action := _action(route):
        return action
    if is_list(route):
        return "list"
    if route.method == "DELETE" and not route.path.endswith("}"):
        # of more than one thing, or of the caller's own
        return route.handler.__name__.partition("_")[0]
    return _VERBS[route.method]


def _action(route: Route) -> str:
    """The verb with which the path ends, which its handler is named for; none where it ends with a thing."""
    last, name = _segments(route)[-1], route.handler.__name__
    if last.startswith("{") or route.method == "GET":
        return ""
    if last in _WHOLE or name == last or name.startswith(f"{last}_"):
        return last if last in _WHOLE else last.partition("_")[0]
    verb, _, rest = last.partition("_")
    return verb if rest and name.startswith(f"{verb}_") else ""


def _segments(route: Route) -> list[str]:
    path = re.sub("^/user(?=/|$)", "/current_user", path_of(route)).replace(".{", "/{")
    return re.sub("[-.]", "_", path.strip("/")).split("/")


def _nouns(route: Route) -> list[str]:
    """What it is about, from the outside in: `project`, `pipeline`, `jobs`."""
    segments, action = _segments(route), _action(route)
    if action:
        segments[-1] = segments[-1].removeprefix(action).strip("_")
    words = []
    for segment, following in itertools.zip_longest(segments, segments[1:], fillvalue=None):
        if segment is None or segment.startswith("{"):
            continue
        is_made = following is None and route.method == "POST" and not action
        names_one = following in ("", "self") or (following or "").startswith("{")
        words.append(singular(segment) if names_one or is_made else segment)
    if route.method == "GET" and len(segments) > 1 and segments[-1].startswith("{"):
        within, last = segments[-2:]
        if within == singular(within):  # `latest/{suffix_path}` beside `latest`
            words.append(last.strip("{}").removesuffix("_id"))
    return words


def singular(noun: str) -> str:
    for ending, less in (("ies", "y"), ("ches", "ch"), ("sses", "ss"), ("uses", "us")):
        if noun.endswith(ending):
            return noun.removesuffix(ending) + less
    return noun.removesuffix("s") if not noun.endswith(("ss", "us")) else noun
