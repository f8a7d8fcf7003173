"""Every answer that an administrator can read: all routes of the API that read, for everything that there is.

What a path's parameter can be is what the list above it has: `/projects/{id}/jobs/{job_id}` is asked for each job of
`/projects/{id}/jobs`. So nothing has to be told what there is.
"""

import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from api_server.api import ROUTES

#: What differs between two readings of the same thing: that it was read, and how long it has run.
MOVING = frozenset(
    {"last_used_at", "last_activity_at", "current_sign_in_at", "contacted_at", "duration", "queued_duration"}
)
_PARAMETER = re.compile(r"{(\w+)(?::(?:[^{}]|{[^{}]*})*)?}")
#: By which member of a list one of its elements is named in paths, where that is not `id`.
_NAMES = {
    "merge_request_iid": ("iid",),
    "name": ("name",),
    "key": ("key",),
    "sha": ("id",),
    "tag_name": ("tag_name",),
    "ref": ("name",),
}
#: Lists of what no path above it lists.
_LISTS = {"ref": "/projects/{id}/repository/branches", "sha": "/projects/{id}/repository/commits"}
_FIXED = {"path": ["README.md"], "format": ["tar.gz"], "suffix_path": [""], "job_token": []}
#: With which others they need to say anything.
_QUERIES = {
    "/projects/{id}/repository/compare": "from=main&to=main",
    "/projects/{id}/repository/merge_base": "refs=main,main",
    "/projects/{id}/repository/files/{path}": "ref=main",
    "/projects/{id}/repository/files/{path}/raw": "ref=main",
}
_MOST_OF_EACH = 40
_PAGES = 3
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Crawl:
    """The answers of one service to its administrator."""

    def __init__(self, base: str, token: str) -> None:
        self._base = f"{base}/api/v4"
        self._token = token
        self._lists: dict[str, list[Any]] = {}

    def answers(self) -> dict[str, tuple[int, str]]:
        """Status and text by path: JSON without what moves, of anything else its size and digest."""
        found = {}
        for route in (route for routes in ROUTES for route in routes.routes):
            if route.method == "GET" and route.access.who != "job":
                plain = _PARAMETER.sub(lambda match: "{" + match[1] + "}", route.path)
                for path in self._paths(plain, ""):
                    query = _QUERIES.get(plain, "per_page=100" if path.endswith("s") else "")
                    url = f"{path}?{query}" if query else path
                    found[url] = self._answer(url)
        return found

    def _answer(self, path: str) -> tuple[int, str]:
        status, kind, body = self._get(path)
        if kind == "application/json":
            return status, orjson.dumps(at_rest(orjson.loads(body)), option=orjson.OPT_SORT_KEYS).decode()
        return status, f"{len(body)} bytes, {hashlib.sha256(body).hexdigest()}"

    def _paths(self, rest: str, done: str) -> Iterator[str]:
        """All paths that the template `done` + `rest` can be, as far as `done` has been filled in."""
        match = re.search(r"{(\w+)}", rest)
        if match is None:
            yield done + rest
            return
        above = done + rest[: match.start()].rstrip("/")
        for value in self._values(match[1], above):
            yield from self._paths(rest[match.end() :], f"{above}/{quote(str(value), safe='')}")

    def _values(self, parameter: str, above: str) -> list[Any]:
        if parameter in _FIXED:
            return _FIXED[parameter]
        project = re.match(r"/projects/\d+", above)
        where = above
        if parameter in _LISTS and project:
            where = _LISTS[parameter].replace("/projects/{id}", project[0])
        names = _NAMES.get(parameter, ("id", "name"))
        listed = [one for one in self._listed(where) if isinstance(one, Mapping)]
        values = [next((one[name] for name in names if name in one), None) for one in listed]
        return [value for value in values if value is not None][:_MOST_OF_EACH]

    def _listed(self, path: str) -> list[Any]:
        if path not in self._lists:
            found: list[Any] = []
            for page in range(1, _PAGES + 1):
                status, kind, body = self._get(f"{path}?per_page=100&page={page}&order_by=id&sort=asc")
                if status == 400:
                    status, kind, body = self._get(f"{path}?per_page=100&page={page}")
                more = orjson.loads(body) if status == 200 and kind == "application/json" else []
                found += more if isinstance(more, list) else []
                if not isinstance(more, list) or len(more) < 100:
                    break
            self._lists[path] = found
        return self._lists[path]

    def _get(self, path: str) -> tuple[int, str, bytes]:
        request = urllib.request.Request(self._base + path, headers={"PRIVATE-TOKEN": self._token})
        try:
            with _direct.open(request, timeout=60) as answer:
                return answer.status, answer.headers.get_content_type(), answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers.get_content_type(), refused.read()


def at_rest(body: Any) -> Any:
    """Without what differs between two readings."""
    if isinstance(body, dict):
        return {name: at_rest(value) for name, value in body.items() if name not in MOVING}
    return [at_rest(one) for one in body] if isinstance(body, list) else body


def differences(before: Mapping[str, tuple[int, str]], after: Mapping[str, tuple[int, str]]) -> list[str]:
    """One line for each path whose answer is not the same."""
    told = []
    for path in sorted({*before, *after}):
        one, other = before.get(path), after.get(path)
        if one != other:
            told.append(f"{path}: {_short(one, other)}")
    return told


def _short(one: tuple[int, str] | None, other: tuple[int, str] | None) -> str:
    if one is None or other is None:
        return "only after" if one is None else "only before"
    place = next((n for n, pair in enumerate(zip(one[1], other[1], strict=False)) if pair[0] != pair[1]), 0)
    around = slice(max(0, place - 40), place + 60)
    return f"{one[0]} {one[1][around]!r} became {other[0]} {other[1][around]!r}"
