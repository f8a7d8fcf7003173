"""The default branch: one for the API, for git, for what is served, and for agents (decision D11)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_server.ci.agents.agents import path_of
from api_server.git import references
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces import projects
from api_server.state.queue import QUEUE
from api_server.web.routes import Role
from tests.support.background import watched
from tests.support.ci import ci_project, eventually, run
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import commit

Json = dict[str, Any]


async def _two_branches(forge: Forge, **values: Any) -> tuple[Person, Json]:
    """`main` and `next`, in which the file `which` names the branch."""
    alice = await forge.user("alice")
    project = await forge.project(alice, **values)
    await commit(alice.api, project, "main", "which", content="main")
    await commit(alice.api, project, "next", "other", content="", start_branch="main")
    changed = await alice.api.put(
        f"/projects/{project['id']}/repository/files/which",
        {"branch": "next", "content": "next", "commit_message": "Say which"},
    )
    assert changed.status == 200, changed
    return alice, project


async def _change(alice: Person, project: Json, name: str = "next") -> None:
    answer = await alice.api.put(f"/projects/{project['id']}", {"default_branch": name})
    assert (answer.status, answer.body["default_branch"]) == (200, name)


async def test_everything_that_names_no_branch_means_the_same(forge: Forge, tmp_path: Path) -> None:
    alice, project = await _two_branches(forge, visibility="public")
    await _change(alice, project)
    url, page = f"/projects/{project['id']}/repository", f"{forge.base}/{project['path_with_namespace']}"
    head = (await alice.api.get(f"{url}/branches/next")).body
    assert head["default"] is True
    assert (await alice.api.get(f"{url}/files/which/raw")).body == "next"
    assert (await alice.api.get(f"{url}/files/which")).body["commit_id"] == head["commit"]["id"]
    assert (await alice.api.get(f"{url}/commits")).body[0]["id"] == head["commit"]["id"]
    assert "other" in [node["path"] for node in (await alice.api.get(f"{url}/tree")).body]
    assert (await forge.anonymous.get(f"{page}/-/raw/HEAD/which")).body == "next"
    archive = await alice.api.request("HEAD", f"{url}/archive.zip")
    assert f"{project['path']}-next" in archive.headers["Content-Disposition"]
    remote = git_url(forge, project["path_with_namespace"])
    await Git(tmp_path)("clone", "--quiet", remote, "clone")
    assert (tmp_path / "clone/which").read_text() == "next"
    assert "refs/heads/next\tHEAD" in await Git(tmp_path)("ls-remote", "--symref", remote, "HEAD")


@pytest.mark.parametrize("name", ["gone", "", "v1", "..", "HEAD", "refs/heads/next"])
async def test_it_has_to_be_a_branch(forge: Forge, name: str) -> None:
    alice, project = await _two_branches(forge)
    url = f"/projects/{project['id']}"
    await alice.api.post(f"{url}/repository/tags", {"tag_name": "v1", "ref": "main"})
    answer = await alice.api.put(url, {"default_branch": name, "description": "not changed either"})
    text = f"Could not change HEAD: branch '{name}' does not exist"
    assert (answer.status, answer.body) == (400, {"message": {"base": [text]}})
    shown = (await alice.api.get(url)).body
    assert (shown["default_branch"], shown["description"]) == ("main", None)


async def test_an_empty_repository_has_none_to_change_to(forge: Forge) -> None:
    project = await forge.project()
    answer = await forge.root.put(f"/projects/{project['id']}", {"default_branch": "other"})
    assert answer.status == 400
    repeated = await forge.root.put(f"/projects/{project['id']}", {"default_branch": "main"})
    assert repeated.status == 200


async def test_the_one_that_it_is_cannot_be_deleted_and_the_one_that_it_was_can(
    forge: Forge, tmp_path: Path
) -> None:
    alice, project = await _two_branches(forge)
    await _change(alice, project)
    url = f"/projects/{project['id']}/repository/branches"
    refused = await alice.api.delete(f"{url}/next")
    assert (refused.status, refused.body) == (405, {"message": "Cannot remove HEAD branch"})
    git = Git(tmp_path)
    await git.init()
    remote = git_url(forge, project["path_with_namespace"], alice)
    assert "deletion of the current branch prohibited" in await git("push", remote, ":next", fails=True)
    unprotected = await alice.api.delete(f"/projects/{project['id']}/protected_branches/main")
    assert unprotected.status == 204
    assert (await alice.api.delete(f"{url}/main")).status == 204


async def test_it_is_changed_by_maintainers_with_an_event(forge: Forge) -> None:
    alice, project = await _two_branches(forge)
    developer, maintainer = await forge.user(), await forge.user()
    await forge.member("projects", project["id"], developer, Role.DEVELOPER)
    await forge.member("projects", project["id"], maintainer, Role.MAINTAINER)
    refused = await developer.api.put(f"/projects/{project['id']}", {"default_branch": "next"})
    assert refused.status == 403
    await _change(maintainer, project)
    (event,) = (
        await alice.api.get(
            f"/projects/{project['id']}/audit_events?event_type=project_default_branch_updated"
        )
    ).body
    assert (event["details"]["from"], event["details"]["to"]) == ("main", "next")


GRANT = "ci_access: {{projects: [{{id: {path}}}]}}\n"


async def test_agents_are_granted_what_it_says(forge: Forge) -> None:
    """Endpoint 5."""
    group = await forge.group()
    agents, jobs = [await ci_project(forge, namespace_id=group["id"]) for _ in range(2)]
    made = await forge.root.post(f"{agents.url}/cluster_agents", {"name": "prod"})
    path = path_of("prod")
    await agents.commit(GRANT.format(path=jobs.path), path=path, branch="next")

    async def grants() -> int:
        sql = "SELECT count(*) FROM cluster_agent_grants WHERE agent_id = %(id)s"
        return int(await forge.database.value(sql, id=made.body["id"]))

    async def allowed() -> list[int]:
        token = await run(forge, (await jobs.job())["id"])
        answer = await forge.anonymous.get("/job/allowed_agents", headers={"JOB-TOKEN": token})
        return [agent["id"] for agent in answer.body["allowed_agents"]]

    for branch, expected in (("next", 1), ("main", 0)):
        changed = await forge.root.put(agents.url, {"default_branch": branch})
        assert changed.status == 200, changed

        async def is_so(expected: int = expected) -> bool:
            return await grants() == expected

        await eventually(is_so)
        assert await allowed() == [made.body["id"]] * expected


async def test_a_change_whose_process_has_died_is_followed_by_the_next(
    new_forge: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise RuntimeError

    async with new_forge() as forge:
        alice, project = await _two_branches(forge)
        with monkeypatch.context() as dying:
            dying.setattr(projects, "apply_default_branch", die)
            answer = await alice.api.put(f"/projects/{project['id']}", {"default_branch": "next"})
            assert answer.status == 500
        repositories = forge.server.app[REPOSITORIES]
        assert references.default_branch(repositories.open(project["id"])) == "main"
        async with watched() as life, forge.server.app[QUEUE].working(*life):

            async def is_so() -> bool:
                return references.default_branch(repositories.open(project["id"])) == "next"

            await eventually(is_so)


async def test_a_branch_that_goes_while_it_becomes_the_default_one_harms_nothing(forge: Forge) -> None:
    alice, project = await _two_branches(forge)
    app = forge.server.app
    sql = "UPDATE projects SET default_branch = 'gone' WHERE id = %(id)s"
    async with forge.database.transaction() as transaction:
        await transaction.run(sql, id=project["id"])
    await projects.apply_default_branch(app, project["id"])
    await _change(alice, project)
