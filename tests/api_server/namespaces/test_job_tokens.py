"""Job tokens: their rights, and the projects whose jobs may use them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest

from api_server.web.routes import Role, Route
from common.static_paths import STATIC_OBJECT_TOKEN_HEADER
from tests.support.ci import CiProject, ci_project, happen, run
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Client, Forge, Person, new_name
from tests.support.git_client import Git, git_url
from tests.support.route_table import ROUTES, in_parts, name_of, path_of, required

MISSING = 999_999_999


class Listed:
    """A project with its Maintainer, and its scope's URL."""

    def __init__(self, forge: Forge, project: dict[str, Any], maintainer: Person) -> None:
        self.forge, self.id, self.api = forge, project["id"], maintainer.api
        self.path, self.url = project["path_with_namespace"], f"/projects/{project['id']}/job_token_scope"

    async def ids(self, kind: str = "allowlist") -> list[int]:
        return [one["id"] for one in (await self.api.get(f"{self.url}/{kind}")).body]

    async def events(self) -> list[tuple[Any, ...]]:
        found = (await self.forge.root.get(f"/projects/{self.id}/audit_events?sort=asc")).body
        return [
            tuple(
                event["details"][name]
                for name in ("event_name", "custom_message", "target_type", "target_id")
            )
            for event in found
            if event["details"]["event_name"].startswith("secure_ci_job_token")
        ]


@pytest.fixture
async def listed(forge: Forge) -> Listed:
    maintainer = await forge.user("maintainer")
    project = await forge.project(await forge.user("owner"), members={Role.MAINTAINER: maintainer})
    return Listed(forge, project, maintainer)


def refused(answer: Answer, status: int, message: str) -> bool:
    return (answer.status, answer.body) == (status, {"message": message})


async def test_access_is_limited_until_a_maintainer_says_otherwise(forge: Forge, listed: Listed) -> None:
    shown = await listed.api.get(listed.url)
    assert (shown.status, shown.body) == (200, {"inbound_enabled": True, "outbound_enabled": False})
    for enabled in (False, False, True):
        answer = await listed.api.patch(listed.url, {"enabled": enabled})
        assert (answer.status, answer.body) == (204, "")
        assert (await listed.api.get(listed.url)).body["inbound_enabled"] is enabled
        project = (await listed.api.get(f"/projects/{listed.id}")).body
        assert project["ci_job_token_scope_enabled"] is enabled
        assert project["ci_inbound_job_token_scope_enabled"] is enabled
    disabled, enabled_again = (
        f"Secure ci_job_token was {verb} for inbound" for verb in ("disabled", "enabled")
    )
    assert await listed.events() == [
        ("secure_ci_job_token_inbound_disabled", disabled, "Project", listed.id),
        ("secure_ci_job_token_inbound_enabled", enabled_again, "Project", listed.id),
    ]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "enabled is missing"),
        ({"enabled": ""}, "enabled is empty"),
        ({"enabled": None}, "enabled is empty"),
        ({"enabled": "maybe"}, "enabled is invalid"),
    ],
)
async def test_what_is_no_answer_to_that_is_refused(listed: Listed, body: dict[str, Any], error: str) -> None:
    answer = await listed.api.patch(listed.url, body)
    assert (answer.status, answer.body) == (400, {"error": error})


async def test_projects_are_allowed_and_taken_off_again(forge: Forge, listed: Listed) -> None:
    targets = [await forge.project(visibility="public", path=None) for _ in range(2)]
    first, second = (target["id"] for target in targets)
    for target in (second, first):
        answer = await listed.api.post(f"{listed.url}/allowlist", {"target_project_id": target})
        assert (answer.status, answer.body) == (
            201,
            {"source_project_id": listed.id, "target_project_id": target},
        )
    page = await listed.api.get(f"{listed.url}/allowlist?per_page=2")
    assert [one["id"] for one in page.body] == [listed.id, first]
    assert (page.headers["X-Total"], page.headers["X-Next-Page"]) == ("3", "2")
    whole = (await forge.root.get(f"/projects/{first}")).body
    assert page.body[1] == {name: whole[name] for name in page.body[1]}
    assert list(page.body[1]) == list(whole)[: list(whole).index("namespace") + 1]
    answer = await listed.api.delete(f"{listed.url}/allowlist/{first}")
    assert (answer.status, answer.body) == (204, "")
    assert await listed.ids() == [listed.id, second]
    path = {target["id"]: target["path_with_namespace"] for target in targets}
    said = f"Project %s was %s inbound list of allowed projects for {listed.path}"
    assert await listed.events() == [
        ("secure_ci_job_token_project_added", said % (path[second], "added to"), "Project", second),
        ("secure_ci_job_token_project_added", said % (path[first], "added to"), "Project", first),
        ("secure_ci_job_token_project_removed", said % (path[first], "removed from"), "Project", first),
    ]


async def test_groups_are_allowed_and_taken_off_again(forge: Forge, listed: Listed) -> None:
    group = await forge.group()
    url = f"{listed.url}/groups_allowlist"
    answer = await listed.api.post(url, {"target_group_id": group["id"]})
    assert (answer.status, answer.body) == (
        201,
        {"source_project_id": listed.id, "target_group_id": group["id"]},
    )
    shown = {name: group[name] for name in ("id", "web_url", "name")}
    assert (await listed.api.get(url)).body == [shown]
    assert await listed.ids() == [listed.id]
    assert (await listed.api.delete(f"{url}/{group['id']}")).status == 204
    assert await listed.ids("groups_allowlist") == []
    said = f"Group {group['full_path']} was %s list of allowed groups for {listed.path}"
    assert await listed.events() == [
        ("secure_ci_job_token_group_added", said % "added to", "Group", group["id"]),
        ("secure_ci_job_token_group_removed", said % "removed from", "Group", group["id"]),
    ]


async def test_what_cannot_be_is_refused_in_gitlabs_words(forge: Forge, listed: Listed) -> None:
    target, group = await forge.project(visibility="public"), await forge.group()
    hidden, hidden_group = await forge.project(), await forge.group(visibility="private")
    projects, groups = f"{listed.url}/allowlist", f"{listed.url}/groups_allowlist"
    for there in (MISSING, hidden["id"]):
        answer = await listed.api.post(projects, {"target_project_id": there})
        assert refused(answer, 404, "404 target_project_id not found Not Found")
    for there in (MISSING, hidden_group["id"], hidden["namespace"]["id"]):
        answer = await listed.api.post(groups, {"target_group_id": there})
        assert refused(answer, 404, "404 target_group_id not found Not Found")
    for there in (MISSING, hidden["id"]):
        assert refused(await listed.api.delete(f"{projects}/{there}"), 404, "404 Project Not Found")
    for there in (MISSING, hidden_group["id"]):
        answer = await listed.api.delete(f"{groups}/{there}")
        assert refused(answer, 404, "404 target_group_id not found Not Found")
    own = await listed.api.post(projects, {"target_project_id": listed.id})
    told = "Validation failed: Target project can't be the same as the source project"
    assert refused(own, 400, f"400 Bad request - {told}")
    own = await listed.api.delete(f"{projects}/{listed.id}")
    assert refused(own, 400, "400 Bad request - Source project cannot be removed from the job token scope")
    for kind, url, there in [("project", projects, target["id"]), ("group", groups, group["id"])]:
        answer = await listed.api.delete(f"{url}/{there}")
        assert refused(answer, 400, f"400 Bad request - Target {kind} is not in the job token scope")
        body = {f"target_{kind}_id": there}
        assert (await listed.api.post(url, body)).status == 201
        answer = await listed.api.post(url, body)
        assert refused(answer, 400, f"400 Bad request - Target {kind} is already in the job token scope")
        missing = await listed.api.post(url, {})
        assert (missing.status, missing.body) == (400, {"error": f"target_{kind}_id is missing"})
    assert len(await listed.events()) == 2


async def test_what_was_allowed_can_be_taken_off_when_it_is_not_seen_any_more(
    forge: Forge, listed: Listed
) -> None:
    target = await forge.project(visibility="public")
    url = f"{listed.url}/allowlist"
    await listed.api.post(url, {"target_project_id": target["id"]})
    await forge.root.put(f"/projects/{target['id']}", {"visibility": "private"})
    assert (await listed.api.delete(f"{url}/{target['id']}")).status == 204


async def test_what_is_removed_leaves_the_lists(forge: Forge, listed: Listed) -> None:
    target, group = await forge.project(visibility="public"), await forge.group()
    await listed.api.post(f"{listed.url}/allowlist", {"target_project_id": target["id"]})
    await listed.api.post(f"{listed.url}/groups_allowlist", {"target_group_id": group["id"]})
    assert (await forge.root.delete(f"/projects/{target['id']}")).status == 202
    assert (await forge.root.delete(f"/groups/{group['id']}")).status == 202
    assert (await listed.ids(), await listed.ids("groups_allowlist")) == ([listed.id], [])


async def test_the_lists_have_an_end_also_for_those_who_come_at_once(forge: Forge) -> None:
    with forge.changed_settings(job_token_allowlist_limit=2):
        url = f"/projects/{(await forge.project())['id']}/job_token_scope"
        for kind, told in [
            ("project", "project links in this direction"),
            ("group", "group links"),
        ]:
            makes = forge.project if kind == "project" else forge.group
            targets = [(await makes())["id"] for _ in range(4)]
            where = f"{url}/allowlist" if kind == "project" else f"{url}/groups_allowlist"
            answers = await asyncio.gather(
                *(forge.root.post(where, {f"target_{kind}_id": target}) for target in targets)
            )
            assert sorted(answer.status for answer in answers) == [201, 201, 400, 400]
            text = f"Validation failed: Source project exceeds the allowable number of {told}"
            assert {answer.body["message"] for answer in answers if answer.status == 400} == {
                f"400 Bad request - {text}"
            }


async def test_python_gitlab_changes_a_scope(forge: Forge, listed: Listed) -> None:
    target, group = await forge.project(visibility="public"), await forge.group()

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=listed.api.token) as client:
            scope = client.projects.get(listed.id).job_token_scope.get()
            assert scope.inbound_enabled is True
            scope.enabled = False
            scope.save()
            scope.refresh()
            assert scope.inbound_enabled is False
            allowed = scope.allowlist.create({"target_project_id": target["id"]})
            assert allowed.target_project_id == target["id"]
            assert [one.id for one in scope.allowlist.list(iterator=True)] == [listed.id, target["id"]]
            scope.allowlist.list(get_all=True)[1].delete()
            assert [one.id for one in scope.allowlist.list(get_all=True)] == [listed.id]
            scope.groups_allowlist.create({"target_group_id": group["id"]})
            assert [one.id for one in scope.groups_allowlist.list(get_all=True)] == [group["id"]]
            scope.groups_allowlist.delete(group["id"])

    await asyncio.to_thread(use)


TAKEN = [route for route in ROUTES if route.takes_job_token]
#: GitLab's list, restricted to routes that exist here.
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
        """Return the status of one of the routes."""
        return (await self.call(f"/projects/{(project or self.other).id}/repository/branches")).status

    async def ask(self, method: str, rest: str = "", **body: Any) -> None:
        """Change the other project's scope, as its Owner."""
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
    """A job token for tests that change nothing."""
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


@in_parts([route for route in ROUTES if route.access.kind != "anyone" and route not in TAKEN], 4)
async def test_no_other_route_takes_it(shared: JobToken, routes: list[Route]) -> None:
    deviations = Deviations()
    for route in routes:
        path = path_of(route, {"id": shared.own.id})
        for headers in ({"JOB-TOKEN": shared.token}, {"Authorization": f"Bearer {shared.token}"}):
            with deviations.of(f"{name_of(route)}, {next(iter(headers))}"):
                answer = await shared.forge.anonymous.request(
                    route.method, path, headers=headers, json=required(route)
                )
                # the header is ignored there, as in GitLab
                shows_anybody = route.access.anonymous and "JOB-TOKEN" in headers
                assert answer.status == (200 if route.access.kind == "job" or shows_anybody else 401)
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
    """Jobs of this project may access the other one, but not the other way round."""
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
    """A caller with a job token is anonymous there, or refused; also in the job's own project."""
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
