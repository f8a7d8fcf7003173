"""Several slashes for one, and slashes at the end: as in Rails' router, and never as another resource."""

import re
from urllib.parse import quote

from aiohttp.test_utils import make_mocked_request
from aiohttp.web_urldispatcher import UrlMappingMatchInfo

from tests.support.deviations import Deviations
from tests.support.forge import Forge
from tests.support.route_table import ROUTES

#: A path, and the one that it stands for; `None` where it is of nothing.
PATHS: dict[str, str | None] = {
    "/api/v4//user": "/api/v4/user",
    "/api/v4/user/": "/api/v4/user",
    "/api/v4/user//": "/api/v4/user",
    "//api/v4/version": "/api/v4/version",
    "/api//v4/version": "/api/v4/version",
    "///api///v4///version///": "/api/v4/version",
    "/api/v4/projects/": "/api/v4/projects",
    "/api/v4/projects/{id}/": "/api/v4/projects/{id}",
    "/api/v4/projects//{id}": "/api/v4/projects/{id}",
    "/api/v4/projects/{id}//jobs/": "/api/v4/projects/{id}/jobs",
    "/api/v4/projects/{path}/": "/api/v4/projects/{path}",
    "/api/v4//projects/{path}//repository//branches/main/": "/api/v4/projects/{path}/repository/branches/main",
    "/api/v4/projects/{id}/repository/tree/?ref=main": "/api/v4/projects/{id}/repository/tree?ref=main",
    "/api/v4/projects//jobs": None,
    "/api/v4/projects/{id}/repository/branches//protect": None,
    "/api/v4/groups//members": None,
    "/api/v4/nothing/": None,
    "/api/v4//nothing": None,
    "/api/v4/": None,
    "/api/v4": None,
    "/api//v5/version": None,
    "/api/v4version/": None,
}


async def test_they_count_as_one_and_as_none(forge: Forge) -> None:
    project = await forge.project(initialize_with_readme=True)
    full_path = quote(project["path_with_namespace"], safe="")
    deviations = Deviations()
    for path, plain in PATHS.items():
        asked, meant = (
            f"{forge.base}{text.format(id=project['id'], path=full_path)}" if text else None
            for text in (path, plain)
        )
        answer = await forge.root.get(asked or "")
        with deviations.of(path):
            if meant is None:
                assert answer.status == 404
            else:
                right = await forge.root.get(meant)
                assert (answer.status, answer.body) == (200, right.body)
    assert not deviations, deviations.report


async def test_slashes_within_an_encoded_id_are_its_own(forge: Forge) -> None:
    project = await forge.project()
    for path in (project["path_with_namespace"].replace("/", "//"), project["path_with_namespace"] + "/"):
        answer = await forge.root.get(f"/projects/{quote(path, safe='')}")
        assert (answer.status, answer.body) == (404, {"message": "404 Project Not Found"})


async def test_writes_are_what_they_say(forge: Forge) -> None:
    project = await forge.project()
    changed = await forge.root.put(f"/projects/{project['id']}/", {"description": "a"})
    assert (changed.status, changed.body["description"]) == (200, "a")
    assert (await forge.root.delete(f"/projects/{project['id']}/variables/")).status == 405
    assert (await forge.root.post("/user/", {})).status == 405


async def test_a_missing_parameter_leads_to_no_other_resource(forge: Forge) -> None:
    resolve = forge.server.app.router.resolve
    request = make_mocked_request("GET", "/")

    async def found(method: str, path: str) -> UrlMappingMatchInfo:
        return await resolve(request.clone(method=method, rel_url=f"/api/v4{path}"))

    deviations = Deviations()
    for route in ROUTES:
        parts = re.sub(r"{(\w+)(?::[^{}]*(?:{[^{}]*}[^{}]*)*)?}", r"{\1}", route.path).split("/")
        for number, part in enumerate(parts[:-1]):
            if part.startswith("{"):
                filled = ["7" if one.startswith("{") else one for one in parts]
                path = "/".join([*filled[:number], "", *filled[number + 1 :]])
                with deviations.of(f"{route.method} {path}"):
                    assert (await found(route.method, path)).http_exception is not None
    assert not deviations, deviations.report


async def test_moved_projects_are_found_behind_them(forge: Forge) -> None:
    project = await forge.project()
    old = quote(project["path_with_namespace"], safe="")
    await forge.root.put(f"/projects/{project['id']}", {"path": f"{project['path']}-moved"})
    answer = await forge.root.get(f"//projects//{old}//jobs/?page=1")
    assert (answer.status, answer.headers["Location"]) == (
        301,
        f"{forge.base}/api/v4/projects/{project['id']}/jobs?page=1",
    )
