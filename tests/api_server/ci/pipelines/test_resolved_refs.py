"""Refs are resolved before rights are: what is checked, run and stored is what a name turned out to mean (decision
D11)."""

from typing import Any

import pytest

from api_server.git.repositories import Repository
from api_server.web.routes import Role
from tests.support.ci import ONE_JOB, CiProject, ci_project, eventually
from tests.support.forge import Client, Forge

DENIED = {"message": {"base": ["You do not have sufficient permission to run a pipeline on 'main'."]}}
#: Runs only where the protected variable is told, so that it shows whether it was.
GUARDED = "open: {script: echo}\nguarded: {script: echo, rules: [{if: $SECRET}]}\n"


@pytest.fixture
async def there(forge: Forge) -> CiProject:
    """With a variable for protected refs, a tag that is called like a protected branch, and one like an open one."""
    project = await ci_project(forge)
    await project.commit(GUARDED, branch="main")
    await project.commit(GUARDED)
    variable = {"key": "SECRET", "value": "swordfish", "protected": True}
    assert (await forge.root.post(f"{project.url}/variables", variable)).status == 201
    assert (await forge.root.post(f"{project.url}/protected_branches", {"name": "v*"})).status == 201
    repository = repository_of(forge, project)
    for tag in ("v1", "topic"):
        repository.references.create(
            f"refs/tags/{tag}", repository.lookup_reference("refs/heads/main").target
        )
    return project


def repository_of(forge: Forge, project: CiProject) -> Repository:
    return forge.repository(project.id)


async def _triggered(forge: Forge, there: CiProject, branch: str, role: Role) -> tuple[str | None, Any]:
    """Why the bridge failed of somebody with that role in the target, and the pipeline that it started."""
    here = await ci_project(forge)
    await forge.member("projects", there.id, here.developer, role)
    pipeline = await here.pipeline(f"call:\n  trigger: {{project: {there.path}, branch: {branch}}}\n")

    async def is_done() -> bool:
        return (await here.statuses(pipeline))["call"] in ("success", "failed")

    await eventually(is_done)
    (row,) = await forge.database.rows(
        "SELECT failure_reason FROM jobs WHERE pipeline_id = %(id)s", id=pipeline["id"]
    )
    return row.failure_reason, (await here.bridges(pipeline))["call"]["downstream_pipeline"]


async def _shown(forge: Forge, there: CiProject, pipeline_id: int) -> tuple[str, bool, set[str]]:
    """Ref, whether it is a tag, and which jobs there are."""
    shown = (await forge.root.get(f"{there.url}/pipelines/{pipeline_id}")).body
    return shown["ref"], shown["tag"], set(await there.jobs(shown))


@pytest.mark.parametrize("branch", ["main", "refs/heads/main", "HEAD"])
async def test_a_trigger_is_measured_by_what_its_branch_means(
    forge: Forge, there: CiProject, branch: str
) -> None:
    assert await _triggered(forge, there, branch, Role.DEVELOPER) == ("insufficient_bridge_permissions", None)
    assert (await forge.root.get(f"{there.url}/pipelines?source=pipeline")).body == []
    reason, started = await _triggered(forge, there, branch, Role.MAINTAINER)
    assert reason is None
    assert await _shown(forge, there, started["id"]) == ("main", False, {"open", "guarded"})


async def test_a_trigger_on_a_tag_is_not_measured_by_branches(forge: Forge, there: CiProject) -> None:
    for tag in ("v1", "refs/tags/topic"):
        reason, started = await _triggered(forge, there, tag, Role.DEVELOPER)
        assert reason is None
        assert await _shown(forge, there, started["id"]) == (tag.removeprefix("refs/tags/"), True, {"open"})
        assert await _triggered(forge, there, tag, Role.REPORTER) == ("insufficient_bridge_permissions", None)


async def test_a_trigger_does_not_guess(forge: Forge, there: CiProject) -> None:
    failed = ("downstream_pipeline_creation_failed", None)
    assert await _triggered(forge, there, "topic", Role.MAINTAINER) == failed


async def _run(client: Client, there: CiProject, ref: str) -> tuple[int, Any]:
    answer = await client.post(f"{there.url}/pipeline", {"ref": ref})
    return answer.status, answer.body


@pytest.mark.parametrize("ref", ["main", "refs/heads/main", "HEAD"])
async def test_a_pipeline_is_run_on_what_its_ref_means(forge: Forge, there: CiProject, ref: str) -> None:
    assert await _run(there.api, there, ref) == (400, DENIED)
    assert (await forge.root.get(f"{there.url}/pipelines?source=api")).body == []
    status, made = await _run(forge.root, there, ref)
    assert status == 201, made
    assert await _shown(forge, there, made["id"]) == ("main", False, {"open", "guarded"})


async def test_a_pipeline_is_not_run_on_what_may_be_either(forge: Forge, there: CiProject) -> None:
    assert await _run(there.api, there, "topic") == (400, {"message": {"base": ["Ref is ambiguous"]}})
    for ref, tag in (("refs/heads/topic", False), ("refs/tags/topic", True)):
        status, made = await _run(there.api, there, ref)
        assert status == 201, made
        assert await _shown(forge, there, made["id"]) == ("topic", tag, {"open"})
        latest = await there.api.get(f"{there.url}/pipelines/latest?ref={ref}")
        assert (latest.status, latest.body["id"]) == (200, made["id"])
    latest = await there.api.get(f"{there.url}/pipelines/latest?ref=topic")
    assert (latest.status, latest.body) == (
        400,
        {
            "message": "400 Bad request - Ref is ambiguous. 'topic' is both a branch and a tag: "
            "say refs/heads/topic or refs/tags/topic."
        },
    )


async def test_a_file_is_tried_out_as_if_it_ran_elsewhere(forge: Forge) -> None:
    """What the file of an open branch says is never told what is protected on the branch it is tried on."""
    project = await ci_project(forge)
    rule = "build: {script: echo, rules: [{if: $CI_COMMIT_BRANCH == 'topic'}]}\n"
    await project.commit(rule)
    await project.commit(rule, branch="main")

    async def jobs(client: Client, query: str) -> tuple[bool, list[str], list[str]]:
        url = f"{project.url}/ci/lint?dry_run=true&include_jobs=true&{query}"
        body = (await client.get(url)).body
        return body["valid"], body["errors"], [job["name"] for job in body.get("jobs", [])]

    nothing = (False, ["No stages / jobs for this pipeline."], [])
    assert await jobs(project.api, "content_ref=topic&dry_run_ref=topic") == (True, [], ["build"])
    assert await jobs(project.api, "content_ref=topic") == nothing
    assert await jobs(project.api, "dry_run_ref=topic") == (True, [], ["build"])
    assert await jobs(project.api, "dry_run_ref=nowhere") == (False, ["Reference not found"], [])
    variable = {"key": "SECRET", "value": "swordfish", "protected": True}
    await forge.root.post(f"{project.url}/variables", variable)
    await project.commit(ONE_JOB + "spy: {script: echo, rules: [{if: $SECRET == 'swordfish'}]}\n")
    assert await jobs(project.api, "content_ref=topic&dry_run_ref=main") == (True, [], ["build"])
