"""Agents, and which of them a job may use (endpoint 5)."""

import pytest

from api_server.ci.agents.agents import grants_in, path_of, refresh_grants
from api_server.web.routes import Role
from tests.support.ci import ci_project, run
from tests.support.forge import SharedForges
from tests.support.waiting import until

CONFIG_PROJECT = (
    "id", "description", "name", "name_with_namespace", "path", "path_with_namespace", "created_at"
)  # fmt: skip
JOB_IN = "deploy:\n  script: echo\n  environment: {environment}\n"


async def in_group(forge):
    """A group with a project for agents and one for jobs."""
    group = await forge.group()
    agents = await ci_project(forge, namespace_id=group["id"])
    jobs = await ci_project(forge, namespace_id=group["id"])
    return group, agents, jobs


async def agent(forge, project, name: str, configuration: str | None = None) -> dict:
    if configuration is not None:
        await project.commit(configuration, path=path_of(name), branch="main")
    made = await forge.root.post(f"{project.url}/cluster_agents", {"name": name}, expect=201)
    return dict(made.body)


async def allowed(forge, project, text: str = "build:\n  script: echo\n", **options):
    token = await run(forge, (await project.job(text, **options))["id"])
    answer = await forge.anonymous.get("/job/allowed_agents", headers={"JOB-TOKEN": token}, expect=200)
    return answer.body


async def granted(forge, agent_id: int, count: int) -> None:
    async def is_so() -> bool:
        sql = "SELECT count(*) FROM cluster_agent_grants WHERE agent_id = %(id)s"
        return await forge.database.value(sql, id=agent_id) == count

    await until(is_so)


async def test_the_answer_has_the_documents_shape_with_gitlabs_keys_beside(forge):
    group, agents, jobs = await in_group(forge)
    made = await agent(forge, agents, "prod", f"ci_access: {{projects: [{{id: {jobs.path}}}]}}\n")
    await granted(forge, made["id"], 1)
    text = JOB_IN.replace("{environment}", "review/one")
    job = await jobs.job(text)
    token = await run(forge, job["id"])
    answer = await forge.anonymous.get(f"/job/allowed_agents?job_token={token}")
    config_project = (await forge.root.get(agents.url)).body
    assert answer.body == {
        "allowed_agents": [
            {
                "id": made["id"],
                "config_project": {key: config_project[key] for key in CONFIG_PROJECT},
                "configuration": {},
            }
        ],
        "job": {"id": job["id"]},
        "pipeline": {"id": job["pipeline"]["id"]},
        "project": {"id": jobs.id, "groups": [{"id": group["id"]}]},
        "user": {
            "id": jobs.developer.id,
            "name": jobs.developer.username.title(),
            "username": jobs.developer.username,
            "state": "active",
            "avatar_url": None,
            "web_url": f"{forge.base}/{jobs.developer.username}",
            "roles_in_project": ["guest", "reporter", "developer"],
        },
        "environment": {"slug": answer.body["environment"]["slug"], "tier": "development"},
    }
    assert answer.body["environment"]["slug"].startswith("review-one-")


async def test_projects_of_users_have_no_groups_and_jobs_without_environment_say_none(forge):
    project = await ci_project(forge)
    body = await allowed(forge, project)
    assert (body["project"]["groups"], body["allowed_agents"]) == ([], [])
    assert "environment" not in body


async def test_agents_are_granted_to_groups_and_to_their_own_project(forge):
    group, agents, jobs = await in_group(forge)
    made = await agent(
        forge,
        agents,
        "shared",
        f"ci_access: {{groups: [{{id: {group['full_path']}, default_namespace: apps}}]}}\n",
    )
    await granted(forge, made["id"], 1)
    assert [one["id"] for one in (await allowed(forge, jobs))["allowed_agents"]] == [made["id"]]
    (own,) = (await allowed(forge, agents))["allowed_agents"]
    assert (own["id"], own["configuration"]) == (made["id"], {"default_namespace": "apps"})
    stranger = await ci_project(forge)
    assert (await allowed(forge, stranger))["allowed_agents"] == []


async def test_environments_and_protected_branches_narrow_a_grant(forge):
    _, agents, jobs = await in_group(forge)
    narrow = await agent(
        forge, agents, "narrow", f"ci_access: {{projects: [{{id: {jobs.path}, environments: ['prod/*']}}]}}\n"
    )
    guarded = await agent(
        forge,
        agents,
        "guarded",
        f"ci_access: {{projects: [{{id: {jobs.path}, protected_branches_only: true}}]}}\n",
    )
    for made in (narrow, guarded):
        await granted(forge, made["id"], 1)

    async def found(environment: str, **options) -> list[int]:
        body = await allowed(forge, jobs, JOB_IN.replace("{environment}", environment), **options)
        return [one["id"] for one in body["allowed_agents"]]

    assert await found("prod/eu") == [narrow["id"]]
    assert await found("staging") == []
    assert await found("staging", branch="main", by=forge.root) == [guarded["id"]]


async def test_a_push_to_the_default_branch_changes_the_grants(forge):
    _, agents, jobs = await in_group(forge)
    made = await agent(forge, agents, "late")
    await agents.commit(
        f"ci_access: {{projects: [{{id: {jobs.path}}}]}}\n", path=path_of("late"), branch="main"
    )
    await granted(forge, made["id"], 1)
    await agents.commit("ci_access: {}\n", path=path_of("late"), branch="main")
    await granted(forge, made["id"], 0)


async def test_grants_are_those_of_the_branch_that_is_the_default_one_now(forge):
    _, agents, jobs = await in_group(forge)
    made = await agent(forge, agents, "moved")
    text = f"ci_access: {{projects: [{{id: {jobs.path}}}]}}\n"
    await agents.commit(text, path=path_of("moved"), branch="next")
    async with forge.database.transaction() as transaction:
        await transaction.run("UPDATE projects SET default_branch = 'next' WHERE id = %(id)s", id=agents.id)
        await refresh_grants(transaction, agents.id)
    await granted(forge, made["id"], 1)


async def test_an_agent_reaches_nothing_outside_of_its_own_top_level_group(forge):
    _, agents, _ = await in_group(forge)
    outside = await ci_project(forge)
    made = await agent(
        forge, agents, "far", f"ci_access: {{projects: [{{id: {outside.path}}}, {{id: {agents.path}}}]}}\n"
    )
    await granted(forge, made["id"], 1)
    assert (await allowed(forge, outside))["allowed_agents"] == []


@pytest.mark.parametrize(("tier", "status"), [("free", 403), ("premium", 200)])
async def test_it_is_a_premium_feature(shared_forge: SharedForges, tier, status):
    forge = await shared_forge(tier=tier)
    project = await ci_project(forge)
    token = await run(forge, (await project.job())["id"])
    answer = await forge.anonymous.get("/job/allowed_agents", headers={"JOB-TOKEN": token})
    assert answer.status == status
    if status == 403:
        text = "403 Forbidden - Agent access for CI jobs is not available on the free tier"
        assert answer.body == {"message": text}


async def test_agents_are_registered_listed_shown_and_removed(forge):
    project = await ci_project(forge)
    maintainer = await forge.new_member(project.id, Role.MAINTAINER, "maintainer")
    made = await maintainer.api.post(f"{project.url}/cluster_agents", {"name": "one"})
    assert made.body == {
        "id": made.body["id"],
        "name": "one",
        "config_project": made.body["config_project"],
        "created_at": made.body["created_at"],
        "created_by_user_id": maintainer.id,
        "is_receptive": False,
    }
    where = f"{project.url}/cluster_agents/{made.body['id']}"
    assert (await project.api.get(where)).body == made.body
    assert (await project.api.get(f"{project.url}/cluster_agents")).body == [made.body]
    again = await maintainer.api.post(f"{project.url}/cluster_agents", {"name": "one"})
    assert (again.status, again.body) == (400, {"message": "400 Bad request - Name has already been taken"})
    assert (await maintainer.api.post(f"{project.url}/cluster_agents", {"name": "-one"})).status == 400
    assert (await maintainer.api.delete(where)).status == 204
    assert (await maintainer.api.delete(where)).body == {"message": "404 Not found"}


GRANT = "ci_access: {projects: [{id: a/b}]}\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "ci_access: 1",
        "ci_access: {projects: 1}",
        "ci_access: {projects: [1, {id: 2}]}",
        GRANT + "#" * 2**17,
        GRANT + "x: [" + "1," * 30_000 + "]",
    ],
    ids=range(7),
)
def test_a_configuration_that_cannot_be_used_grants_nothing(text):
    assert grants_in(text) == []


def test_protection_is_not_lost_to_a_typo():
    (grant,) = grants_in(
        "ci_access: {groups: [{id: /a/b/, protected_branches_only: 'yes', access_as: {agent: {}}}]}"
    )
    assert grant == {"kind": "groups", "path": "a/b", "configuration": {"protected_branches_only": True}}
