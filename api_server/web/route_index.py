"""An index of routes by the segments of their paths, and the access of other sites to their answers
(CORS)."""

import re

import aiohttp_cors
import attrs
from aiohttp import hdrs, web
from aiohttp.web_urldispatcher import AbstractResource, MatchInfoError, UrlDispatcher, UrlMappingMatchInfo

#: A segment of a resource's pattern: plain text, or one parameter.
_SEGMENT = re.compile(r"/(?:\(\?P<\w+>\[\^\{\}/\]\+\)|((?:\w|\\-)+))(?=/|$)", re.ASCII)
_PARAMETER = re.compile(r"\{\w+\}", re.ASCII)
_SLASHES = re.compile("/{2,}")
#: More segments than any resource with a fixed number of segments has.
_MAX_SEGMENTS = 32


def setup(app: web.Application) -> None:
    """Resolve the application's routes, all of which have been registered, by an index from now on."""
    router = app.router
    router.resolve = RouteIndex(router).resolve  # type: ignore[method-assign]  # aiohttp takes no other


class RouteIndex:
    """Resolves requests to the same routes as `router`.

    Like the router, it tries the resources first whose plain beginning, up to their first parameter, shares
    most text with the path, and among these the first registered. But it tries only resources that resemble
    the path, and looks up no beginning longer than the longest of theirs: a path may have thousands of
    segments.
    """

    def __init__(self, router: UrlDispatcher) -> None:
        self._router = router
        self._beginnings: dict[str, _Continued] = {}
        #: The number of slashes in the longest beginning.
        self._depth = 0

    async def resolve(self, request: web.Request) -> UrlMappingMatchInfo:
        """Return the route for the request. Call it only after the application is complete: its prefix is
        part of the paths."""
        beginnings = self._beginnings or self._filled()
        path = request.rel_url.path_safe
        beginning = "/".join(path.split("/", self._depth + 1)[: self._depth + 1])
        methods: set[str] = set()
        has_more = True
        while has_more:
            continued = beginnings.get(beginning)
            if continued is not None:
                rest = path[len(beginning) :]
                for resource, text in continued.candidates(rest):
                    if text not in rest:
                        continue
                    match_info, allowed = await resource.resolve(request)
                    if match_info is not None:
                        return match_info
                    methods |= allowed
            has_more = bool(beginning)
            beginning = beginning.rpartition("/")[0]
        if methods:
            return MatchInfoError(web.HTTPMethodNotAllowed(request.method, methods))
        return MatchInfoError(web.HTTPNotFound())

    def _filled(self) -> "dict[str, _Continued]":
        for resource in self._router.resources():
            path = resource.canonical
            beginning = (path.partition("{")[0].rpartition("/")[0] if "{" in path else path).rstrip("/")
            self._beginnings.setdefault(beginning, _Continued()).add(resource, beginning)
        self._depth = max(beginning.count("/") for beginning in self._beginnings)
        return self._beginnings


#: A resource, and the longest plain text in its path behind the beginning: searching for that text is cheaper
#: than a match.
_Candidate = tuple[AbstractResource, str]


@attrs.frozen
class _Shape:
    """The shape of a path behind its beginning: the number of segments, and the texts of the second and the
    fourth, which usually follow parameters. None means, for a resource, that any value fits; for a path, that
    no resource has such a text there."""

    segments: int | None
    second: str | None
    fourth: str | None

    def fits(self, path: "_Shape") -> bool:
        return (
            self.segments in (None, path.segments)
            and self.second in (None, path.second)
            and self.fourth in (None, path.fourth)
        )


class _Continued:
    """The resources whose paths have the same beginning, in the order of their registration."""

    def __init__(self) -> None:
        self._resources: list[tuple[_Candidate, _Shape]] = []
        #: The texts of second segments (None: the second segment is not a plain text), with those of fourth
        #: segments.
        self._texts: dict[str | None, set[str]] = {None: set()}
        #: The candidates by the shape of a path; there are few shapes.
        self._candidates: dict[tuple[int, str | None, str | None], tuple[_Candidate, ...]] = {}

    def add(self, resource: AbstractResource, beginning: str) -> None:
        """Add a resource with this beginning."""
        shape = _shape_of(resource, beginning.count("/"))
        text = max(_PARAMETER.split(resource.canonical.removeprefix(beginning)), key=len)
        self._resources.append(((resource, text), shape))
        self._texts.setdefault(shape.second, set()).update([shape.fourth] if shape.fourth else [])

    def candidates(self, rest: str) -> tuple[_Candidate, ...]:
        """Return the resources that may match a path that continues with `rest`, provided that it contains
        their texts."""
        segments = rest.split("/", _MAX_SEGMENTS)
        second = segments[2] if len(segments) > 2 and segments[2] in self._texts else None
        fourth = segments[4] if len(segments) > 4 else None
        if fourth not in self._texts[second] and fourth not in self._texts[None]:
            fourth = None
        shape = len(segments) - 1, second, fourth
        cached = self._candidates.get(shape)
        if cached is None:
            path = _Shape(*shape)
            cached = tuple(candidate for candidate, shape in self._resources if shape.fits(path))
            self._candidates[path.segments or 0, second, fourth] = cached
        return cached


def _shape_of(resource: AbstractResource, skipped: int) -> _Shape:
    pattern = resource.get_info().get("pattern")
    if pattern is None:
        is_whole = isinstance(resource, web.PlainResource)  # it matches whole paths, not beginnings
        return _Shape(resource.canonical.count("/") - skipped if is_whole else None, None, None)
    texts: list[str | None] = []
    end = 0
    while (segment := _SEGMENT.match(pattern.pattern, end)) is not None:
        texts.append(None if segment[1] is None else segment[1].replace("\\", ""))
        end = segment.end()
    is_whole = end == len(pattern.pattern)
    texts = [*texts[skipped:], None, None, None, None]
    return _Shape(len(texts) - 4 if is_whole else None, texts[1], texts[3])


def setup_with_extra_slashes(app: web.Application, prefix: str) -> None:
    """Set up the index like `setup`, tolerating extra slashes.

    Below `prefix` a path may have several slashes in place of one, or slashes at the end, like in Rails'
    router. It is resolved without these extra slashes, unless a parameter is missing between two of them:
    then Rails would choose another resource, `/groups/members` for `/groups//members`.
    """
    resolve = RouteIndex(app.router).resolve
    below = re.compile(f"{prefix.replace('/', '/+')}(?=/)")

    async def find(request: web.Request) -> UrlMappingMatchInfo:
        path = request.rel_url.raw_path
        if not ("//" in path or path.endswith("/")) or (start := below.match(path)) is None:
            return await resolve(request)
        rest = path[start.end() :].rstrip("/")

        async def at(path: str) -> UrlMappingMatchInfo:
            return await resolve(
                request.clone(rel_url=request.rel_url.with_path(prefix + path, encoded=True))
            )

        match_info = await at(path[start.end() :])
        if _is_known(match_info) or ("//" in rest and _is_known(await at(_SLASHES.sub("/-/", rest)))):
            return match_info
        return await at(plain(rest))

    app.router.resolve = find  # type: ignore[method-assign]  # aiohttp takes no other


def _is_known(match: UrlMappingMatchInfo) -> bool:
    return not isinstance(match.http_exception, web.HTTPNotFound)


def plain(path: str) -> str:
    """Return the path without extra slashes."""
    return _SLASHES.sub("/", path).rstrip("/")


def allow_other_sites(app: web.Application) -> None:
    """Allow every site to use every route registered so far."""
    options = aiohttp_cors.ResourceOptions(
        expose_headers="*", allow_headers="*", allow_methods="*", max_age=600
    )
    cors = aiohttp_cors.setup(app, defaults={"*": options})
    for resource in app.router.resources():
        cors.add(resource)
    # aiohttp_cors looks up the route's options even if there is no Origin header, and most clients send none.
    add_fields = app.on_response_prepare.pop()

    async def answer_sites(request: web.Request, response: web.StreamResponse) -> None:
        if hdrs.ORIGIN in request.headers:
            await add_fields(request, response)

    app.on_response_prepare.append(answer_sites)
