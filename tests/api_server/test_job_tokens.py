"""What a running job's token opens: its own project, what lets it in, and what everybody may read (decision D11)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role, Route
from common.static_paths import STATIC_OBJECT_TOKEN_HEADER
from tests.support.ci import CiProject, ci_project, happen, run
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Client, Forge, Person, new_name
from tests.support.git_client import Git, git_url
from tests.support.route_table import ROUTES, in_parts, name_of, path_of, required

TAKEN = [route for route in ROUTES if route.takes_job_token]
#: GitLab's list, as far as there are such routes here.
NAMES = {
    "GET /projects/{id}/jobs/{job_id}/artifacts", "GET /projects/{id}/jobs/{job_id}/artifacts/{path:(?s:.+)}",
    "GET /projects/{id}/jobs/artifacts/{ref:.+}/download",
    "GET /projects/{id}/jobs/artifacts/{ref:.+}/raw/{path:(?s:.+)}",
    "GET /projects/{id}/merge_requests", "GET /projects/{id}/merge_requests/{merge_request_iid}",
    "GET /projects/{id}/releases", "GET /projects/{id}/releases/permalink/latest",
    "GET /projects/{id}/releases/permalink/latest/{suffix_path:(?s:.+)}",
    "GET /projects/{id}/releases/{tag_name}", "GET /projects/{id}/releases/{tag_name}/assets/links",
    "GET /projects/{id}/releases/{tag_name}/assets/links/{link_id}",
    "GET /projects/{id}/releases/{tag_name}/downloads/{path:(?s:.+)}",
    "POST /projects/{id}/releases", "POST /projects/{id}/releases/{tag_name}/assets/links",
    "PUT /projects/{id}/releases/{tag_name}",
    "PUT /projects/{id}/releases/{tag_name}/assets/links/{link_id}",
    "DELETE /projects/{id}/releases/{tag_name}",
    "DELETE /projects/{id}/releases/{tag_name}/assets/links/{link_id}",
    "GET /projects/{id}/repository/branches", "GET /projects/{id}/repository/commits/{sha}",
    "GET /projects/{id}/repository/files/{path}/raw", "GET /projects/{id}/repository/tags",
}  # fmt: skip
HIDDEN = {"message": "404 Project Not Found"}


@attrs.frozen
class JobToken:
    """The token of a job that runs for `user`, who is Owner of both `own`, its project, and `other`."""

    forge: Forge
    token: str
    job_id: int
    user: Person
    own: CiProject
    other: CiProject

    async def call(self, path: str, method: str = "GET", **options: Any) -> Answer:
        return await self.forge.anonymous.request(method, path, headers={"JOB-TOKEN": self.token}, **options)

    async def branches(self, project: CiProject | None = None) -> int:
        """The status of one of the routes."""
        return (await self.call(f"/projects/{(project or self.other).id}/repository/branches")).status

    async def ask(self, method: str, rest: str = "", **body: Any) -> None:
        """Changes the other project's scope, as its Owner."""
        answer = await self.user.api.request(method, f"{self.other.url}/job_token_scope{rest}", json=body)
        assert answer.status in (201, 204), answer


async def _job_token(forge: Forge, **values: Any) -> JobToken:
    own, other = await ci_project(forge), await ci_project(forge, **values)
    user = own.developer
    await forge.member("projects", other.id, user, Role.OWNER)
    job = await own.job(by=user.api)
    return JobToken(forge, await run(forge, job["id"]), job["id"], user, own, other)


@pytest.fixture(scope="module")
async def shared(forge: Forge) -> JobToken:
    """For what changes nothing."""
    return await _job_token(forge)


@pytest.fixture
async def job(forge: Forge) -> JobToken:
    return await _job_token(forge)


def test_the_routes_that_take_it_are_known_by_name() -> None:
    assert {name_of(route) for route in TAKEN} == NAMES


@in_parts(TAKEN, 2)
async def test_it_opens_its_own_project_only(shared: JobToken, routes: list[Route]) -> None:
    deviations = Deviations()
    for route in routes:
        body, own_path = required(route), path_of(route, {"id": shared.own.path})
        with deviations.of(name_of(route)):
            for reference in (str(shared.other.id), shared.other.path):
                answer = await shared.call(path_of(route, {"id": reference}), route.method, json=body)
                assert (answer.status, answer.body) == (404, HIDDEN), (
                    "a job's token opens less than its user's"
                )
            own = await shared.call(own_path, route.method, json=body)
            of_user = await shared.user.api.request(route.method, own_path, json=body)
            assert (own.status, own.body) == (of_user.status, of_user.body)
            assert own.body != HIDDEN
    assert not deviations, deviations.report


@in_parts([route for route in ROUTES if route.access.who != "anyone" and route not in TAKEN], 4)
async def test_no_other_route_takes_it(shared: JobToken, routes: list[Route]) -> None:
    deviations = Deviations()
    for route in routes:
        path = path_of(route, {"id": shared.own.id})
        for headers in ({"JOB-TOKEN": shared.token}, {"Authorization": f"Bearer {shared.token}"}):
            with deviations.of(f"{name_of(route)}, {next(iter(headers))}"):
                answer = await shared.forge.anonymous.request(
                    route.method, path, headers=headers, json=required(route)
                )
                shows_anybody = (
                    route.access.strangers and "JOB-TOKEN" in headers
                )  # not looked at there, as in GitLab
                assert answer.status == (200 if route.access.who == "job" or shows_anybody else 401)
    assert not deviations, deviations.report


async def _by_project(job: JobToken) -> None:
    await job.ask("POST", "/allowlist", target_project_id=job.own.id)


async def _by_group(job: JobToken) -> None:
    group = await job.forge.group()
    subgroup = (
        await job.forge.root.post("/groups", {"name": "s", "path": new_name("s"), "parent_id": group["id"]})
    ).body
    moved = await job.forge.root.put(f"/projects/{job.own.id}/transfer", json={"namespace": subgroup["id"]})
    assert moved.status == 200, moved
    await job.ask("POST", "/groups_allowlist", target_group_id=group["id"])


async def _by_all(job: JobToken) -> None:
    await job.ask("PATCH", enabled=False)


@pytest.mark.parametrize("let_in", [_by_project, _by_group, _by_all])
async def test_what_lets_it_in_is_open_with_its_users_role(
    job: JobToken, let_in: Callable[[JobToken], Awaitable[None]]
) -> None:
    assert await job.branches() == 404
    await let_in(job)
    assert await job.branches() == 200
    await job.forge.root.delete(f"{job.other.url}/members/{job.user.id}")
    assert await job.branches() == 404, "no more than its user may"


async def test_what_lets_it_in_no_longer_is_closed_at_once(job: JobToken) -> None:
    await _by_project(job)
    assert await job.branches() == 200
    await job.ask("DELETE", f"/allowlist/{job.own.id}")
    assert await job.branches() == 404
    await job.ask("PATCH", enabled=False)
    assert await job.branches() == 200
    await job.ask("PATCH", enabled=True)
    assert await job.branches() == 404


async def test_being_on_a_list_lets_nobody_in_at_home(job: JobToken) -> None:
    """The other project's jobs do not reach this one because this one's reach them."""
    await _by_project(job)
    back = await run(job.forge, (await job.other.job(by=job.user.api))["id"])
    answer = await job.forge.anonymous.get(
        f"/projects/{job.own.id}/repository/branches", headers={"JOB-TOKEN": back}
    )
    assert (answer.status, answer.body) == (404, HIDDEN)


@pytest.mark.parametrize(("visibility", "status"), [("public", 200), ("internal", 404), ("private", 404)])
async def test_what_everybody_may_read_stays_readable(forge: Forge, visibility: str, status: int) -> None:
    job = await _job_token(forge, visibility=visibility)
    assert await job.branches() == status
    if status == 200:
        await job.user.api.put(job.other.url, {"repository_access_level": "private"})
        assert await job.branches() == 403, "what is for members is closed to a stranger"


async def test_an_administrators_job_has_no_more_rights(forge: Forge) -> None:
    project, other = await ci_project(forge), await ci_project(forge)
    token = await run(forge, (await project.job(by=forge.root))["id"])
    for where, status in ((project, 200), (other, 404)):
        answer = await forge.anonymous.get(
            f"/projects/{where.id}/repository/branches", headers={"JOB-TOKEN": token}
        )
        assert answer.status == status


async def test_it_opens_nothing_when_its_job_is_over(job: JobToken) -> None:
    assert await job.branches(job.own) == 200
    await happen(job.forge, job.job_id, "success")
    assert await job.branches(job.own) == 401


async def test_git_and_lfs_are_open_where_the_api_is(job: JobToken, tmp_path: Path) -> None:
    git = Git(tmp_path)

    async def answers(project: CiProject) -> tuple[bool, int]:
        url = git_url(job.forge, project.path, token=job.token)
        batch = {"operation": "download", "objects": [{"oid": "0" * 64, "size": 1}]}
        asked = await job.forge.anonymous.post(f"{url}/info/lfs/objects/batch", batch)
        return (await git.run("ls-remote", url)).code == 0, asked.status

    assert await answers(job.own) == (True, 200)
    assert await answers(job.other) == (False, 404)
    await _by_project(job)
    assert await answers(job.other) == (True, 200)
    await job.ask("DELETE", f"/allowlist/{job.own.id}")
    await job.forge.root.put(job.other.url, {"visibility": "public"})
    assert await answers(job.other) == (True, 200)


async def test_a_push_with_it_is_refused(job: JobToken, tmp_path: Path) -> None:
    git = Git(tmp_path / "copy")
    url = git_url(job.forge, job.own.path, token=job.token)
    await Git(tmp_path)("clone", "--quiet", url, "copy")
    await git.commit(a="1")
    assert "needs the scope write_repository" in await git("push", "origin", "HEAD:refs/heads/x", fails=True)


async def test_static_objects_take_no_job_token(shared: JobToken) -> None:
    """Whoever shows one there is a stranger, or refused; also in her own project."""
    files = [
        f"{shared.forge.base}/{shared.own.path}/-/{rest}"
        for rest in ("raw/main/README.md", "archive/main/a.zip")
    ]
    ways = [
        ({"JOB-TOKEN": shared.token}, 404),
        ({"PRIVATE-TOKEN": shared.token}, 404),
        ({"Authorization": f"Bearer {shared.token}"}, 401),
        ({STATIC_OBJECT_TOKEN_HEADER: shared.token}, 401),
    ]
    for file in files:
        for headers, status in ways:
            answer = await shared.forge.anonymous.get(file, headers=headers)
            assert answer.status == status, (file, headers)
        assert (
            await Client(shared.forge.session, shared.forge.base, shared.user.token).get(file)
        ).status == 200
