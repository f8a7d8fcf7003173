"""The index of routes finds what aiohttp finds, for every route and for paths that none is of."""

import re
from itertools import product
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from aiohttp.web_urldispatcher import UrlDispatcher, UrlMappingMatchInfo
from hypothesis import given
from hypothesis import strategies as st

from api_server.api import ROUTES as API
from api_server.web.route_index import RouteIndex
from tests.support.forge import Forge
from tests.support.route_table import ROUTES


async def _nothing(_request: web.Request) -> web.Response:
    return web.Response()


def _router() -> UrlDispatcher:
    """All routes of the API below its prefix, as the application has them."""
    api, app = web.Application(), web.Application()
    for routes in API:
        routes.register(api)
    app.add_subapp("/api/v4", api)
    return api.router


ROUTER = _router()
INDEX = RouteIndex(ROUTER)


async def test_the_whole_application_is_searched_alike(forge: Forge) -> None:
    """Pages, git, files and what is in the root folder, too; and of a deep path only its first segments."""
    router = forge.server.app.router
    for method, path in product(("GET", "POST", "PROPFIND"), PATHS):
        request = make_mocked_request(method, path)
        found = await router.resolve(request)
        assert _told(found) == _told(await UrlDispatcher.resolve(router, request)), path


PATHS = (
    *(
        "/",
        "//",
        "/-/sign_in",
        "/-/sign_in/",
        "/-/assets/pages.css",
        "/-/nothing",
        "/admin",
        "/api",
        "/api/v4/version",
    ),
    *(
        "/alice",
        "/alice/app",
        "/alice/app.git",
        "/alice/app.git/info/refs",
        "/alice/app/info/refs",
        "/groups/a/b",
    ),
    *(
        "/alice/app/-/raw/main/a",
        "/alice/app/raw/main/a",
        "/alice/app/-/archive/main/a.zip",
        "/alice/app/-/jobs/1",
    ),
    *("/alice/app.git/info/lfs/objects/batch", "/-/emails/1/a", "/-/liveness", "/a" * 3000),
)


def _told(found: UrlMappingMatchInfo) -> object:
    if found.http_exception is None:
        return id(found.route), dict(found)
    return found.http_exception.status, getattr(found.http_exception, "allowed_methods", None)


#: Copies cost a hundredth of what the mocks of a new request do.
REQUEST = make_mocked_request("GET", "/")


async def _assert_alike(method: str, path: str) -> None:
    request = REQUEST.clone(method=method, rel_url=path)
    assert _told(await INDEX.resolve(request)) == _told(await UrlDispatcher.resolve(ROUTER, request))


def _filled(path: str, value: str) -> str:
    return "/api/v4" + re.sub(r"{\w+(?::[^{}]*(?:{[^{}]*}[^{}]*)*)?}", lambda _m: value, path)


@pytest.mark.parametrize(
    "value", ["7", "group%2Fapp", "group%2Fsub%2Fapp", "a.b-c_d", "jobs", "a/b", "%7Bid%7D", "%25"]
)
async def test_every_route_is_found_as_before(value: str) -> None:
    for route in ROUTES:
        for method in (route.method, "HEAD", "DELETE", "OPTIONS", "PROPFIND"):
            await _assert_alike(method, _filled(route.path, value))


async def test_every_route_is_refused_as_before_where_its_path_is_another_one() -> None:
    for route in ROUTES:
        path = _filled(route.path, "7")
        for other in (f"{path}/", f"{path}/x", path.replace("/", "//"), path.rpartition("/")[0], path[:-1]):
            await _assert_alike(route.method, other)


async def test_few_routes_are_tried() -> None:
    """Of hundreds."""
    await INDEX.resolve(make_mocked_request("GET", "/api/v4/version"))
    for route in ROUTES:
        path = _filled(route.path, "7")
        tried = [
            resource
            for beginning, continued in INDEX._beginnings.items()
            if path == beginning or path.startswith(f"{beginning}/")
            for resource in continued.candidates(path[len(beginning) :])
        ]
        assert len(tried) <= 10, path


_SEGMENTS = st.sampled_from(sorted({part for route in ROUTES for part in route.path.split("/")} - {""}))
_ODD = st.sampled_from(["", ".", "..", "7", "%2F", "a%2Fb", "%25", "%2f", "{id}", "\u00e9", "*", "-", " "])


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]),
    segments=st.lists(_SEGMENTS | _ODD | st.text(min_size=1, max_size=4), max_size=7),
)
async def test_any_path_is_found_or_refused_as_before(method: str, segments: list[str]) -> None:
    await _assert_alike(method, "/api/v4/" + quote("/".join(segments), safe="/%{}*"))
