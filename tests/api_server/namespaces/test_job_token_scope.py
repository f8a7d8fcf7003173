"""`/projects/:id/job_token_scope`: which projects' jobs reach a project with their tokens (decision D11)."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Forge, Person

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
