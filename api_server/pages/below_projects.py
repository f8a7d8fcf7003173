"""The pages below `/<project>/-/`, as one route of the router: that one tries its routes one after the other, also for
git, files and archives, which should not wait for it."""

import re

from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.accounts.path_rules import FULL_PATH
from api_server.pages import problems

#: How paths of such pages begin.
PREFIX = "/{project}/-/"
_PARAMETER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")


class BelowProjects:
    """Handlers by method and by what follows the prefix."""

    def __init__(self) -> None:
        self._by_word: dict[str, list[tuple[str, re.Pattern[str], Handler]]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """`path` is `jobs/{id}` or `tree/{rest:.+}`: a word, then names of parameters, which end at a slash unless a
        pattern says otherwise. What was added first is tried first."""
        pattern = _PARAMETER.sub(lambda found: f"(?P<{found[1]}>{found[2] or '[^/]+'})", path)
        word = path.partition("/")[0]
        self._by_word.setdefault(word, []).append((method, re.compile(pattern, re.DOTALL), handler))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The page, with the parameters of its path in `match_info`; 404, 405 where there is none."""
        below, method = request.match_info.pop("below"), request.method
        allowed = set()
        for known, pattern, handler in self._by_word.get(below.partition("/")[0], ()):
            if (found := pattern.fullmatch(below)) is None:
                continue
            if known == ("GET" if method == "HEAD" else method):
                request.match_info.update(found.groupdict())
                return await handler(request)
            allowed.add(known)
        if allowed:
            raise web.HTTPMethodNotAllowed(method, sorted(allowed))
        raise web.HTTPNotFound


BELOW_PROJECTS = web.AppKey("below_projects", BelowProjects)


def setup(app: web.Application) -> None:
    table = app[BELOW_PROJECTS] = BelowProjects()
    answer = problems.as_pages(table.answer)
    below = app.router.add_resource(f"/{{project:{FULL_PATH}}}/-/{{below:(?!raw/|archive/)(?s:.*)}}")
    for method in ("GET", "HEAD", "POST"):
        below.add_route(method, answer)
