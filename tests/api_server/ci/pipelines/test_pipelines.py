"""Pipelines from pushes and from the API."""

import asyncio
import json
import subprocess
from typing import Any

import pytest

from api_server.ci.pipelines import queries, repository
from api_server.ci.pipelines.handlers import routes
from api_server.web.context import SERVICES
from tests.support.ci import MANUAL_JOB, ONE_JOB, ci_project, eventually, give_log
from tests.support.waiting import until_somebody_waits

SHOWING_RULES = """
on push: {script: echo, rules: [{if: $CI_PIPELINE_SOURCE == "push"}]}
on api: {script: echo, rules: [{if: $CI_PIPELINE_SOURCE == "api"}]}
for red: {script: echo, rules: [{if: $COLOR == "red"}]}
always: {script: echo}
"""


@pytest.fixture(scope="session")
async def project(forge):
    return await ci_project(forge)


async def pushed(project, **filters) -> list[dict]:
    query = "&".join(f"{key}={value}" for key, value in ({"source": "push"} | filters).items())
    return list((await project.api.get(f"{project.url}/pipelines?{query}")).body)


async def test_a_push_makes_a_pipeline_of_the_pushed_commit_by_its_pusher(forge, tmp_path):
    project = await ci_project(forge)
    url = f"{forge.base}/{project.path}.git".replace("://", f"://any:{project.developer.token}@")

    def push() -> None:
        def git(*arguments: str) -> None:
            command = ["git", "-c", "user.name=alice", "-c", "user.email=alice@example.org", *arguments]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

        git("clone", "-q", url, ".")
        git("checkout", "-q", "-b", "feature/one")
        (tmp_path / ".gitlab-ci.yml").write_text(SHOWING_RULES)
        git("add", ".")
        git("commit", "-q", "-m", "Add CI")
        git("tag", "v1")
        git("push", "-q", "origin", "feature/one", "v1")

    await asyncio.to_thread(push)

    async def both():
        return len(found := await pushed(project)) == 2 and found

    found = await eventually(both)
    assert {(one["ref"], one["status"]) for one in found} == {("feature/one", "pending"), ("v1", "pending")}
    assert {one["sha"] for one in found} == {
        (await project.api.get(f"{project.url}/repository/branches/feature%2Fone")).body["commit"]["id"]
    }
    by_ref = {one["ref"]: one for one in found}
    assert set(await project.statuses(by_ref["v1"])) == {"on push", "always"}
    shown = (await project.api.get(f"{project.url}/pipelines/{by_ref['v1']['id']}")).body
    assert (shown["tag"], shown["user"]["id"]) == (True, project.developer.id)


async def test_a_commit_through_the_api_makes_a_pipeline_unless_it_says_ci_skip(forge):
    project = await ci_project(forge)
    await project.commit(ONE_JOB, message="Build")
    await project.commit(ONE_JOB + "\n", message="Do not build [skip ci]")

    async def both():
        return len(found := await pushed(project, ref="topic")) == 2 and found

    found = await eventually(both)
    assert sorted(one["status"] for one in found) == ["pending", "skipped"]


async def test_a_pushed_file_that_cannot_be_used_makes_a_failed_pipeline_that_says_why(forge):
    project = await ci_project(forge)
    await project.commit("build:\n  skript: echo\n", message="Typo")

    async def failed():
        return await pushed(project, ref="topic", status="failed")

    (found,) = await eventually(failed)
    shown = (await project.api.get(f"{project.url}/pipelines/{found['id']}")).body
    assert "jobs build config should implement a script: or a trigger: keyword" in shown["yaml_errors"]
    assert (await pushed(project, yaml_errors="true"))[0]["id"] == found["id"]
    assert (await project.api.get(f"{project.url}/pipelines/{found['id']}/jobs")).body == []
    for action in ("retry", "cancel"):
        answer = await project.api.post(f"{project.url}/pipelines/{found['id']}/{action}")
        assert answer.body["status"] == "failed"


async def test_a_pushed_file_that_is_too_large_makes_a_failed_pipeline_too(forge, monkeypatch):
    monkeypatch.setattr(repository, "MAX_BYTES", 100)
    project = await ci_project(forge)
    text = ONE_JOB + "#" * 100
    await project.commit(text, message="Much")

    async def failed():
        return await pushed(project, ref="topic", status="failed")

    (found,) = await eventually(failed)
    shown = (await project.api.get(f"{project.url}/pipelines/{found['id']}")).body
    said = f"The YAML file is too big: {len(text)} bytes of at most 100"
    assert shown["yaml_errors"] == said
    linted = (await project.api.get(f"{project.url}/ci/lint?content_ref=topic")).body
    assert (linted["valid"], linted["errors"]) == (False, [said])
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    assert (refused.status, refused.body) == (400, {"message": {"base": [said]}})
    including = {"content": "include: .gitlab-ci.yml", "ref": "topic"}
    linted = (await project.api.post(f"{project.url}/ci/lint", including)).body
    assert linted["errors"] == [f"Local file `.gitlab-ci.yml`: {said}"]


async def test_caches_that_are_named_for_files_of_any_size_change_with_them(forge, monkeypatch):
    monkeypatch.setattr(repository, "MAX_BYTES", 100)
    project = await ci_project(forge)
    text = "a: {script: b, cache: {key: {files: [lock]}, paths: [c]}}\n"
    keys = []
    for content in (None, "1" + "#" * 100, "2" + "#" * 100):
        if content is not None:
            await project.commit(content, path="lock")
        job = await project.job(text)
        plan = await forge.database.value("SELECT plan FROM jobs WHERE id = %(id)s", id=job["id"])
        keys.append(json.loads(plan)["cache"][0].get("key", "default"))
    assert keys[0] == "default"
    assert len(set(keys)) == 3


async def test_a_pushed_pipeline_is_made_once_however_often_the_work_is_done(project):
    from api_server.ci.pipelines.creation import Wanted, maker

    pipeline = await project.pipeline()
    wanted = Wanted(
        project_id=project.id, ref="topic", sha=pipeline["sha"], source="api", user_id=None, origin="once"
    )
    made = [await maker(project.forge.server.app[SERVICES]).make(wanted) for _ in range(2)]
    assert made[0] == made[1]


async def test_a_created_pipeline_has_every_key(project):
    pipeline = await project.pipeline(MANUAL_JOB)
    assert pipeline == {
        "id": pipeline["id"],
        "iid": pipeline["iid"],
        "project_id": project.id,
        "sha": pipeline["sha"],
        "ref": "topic",
        "status": "manual",
        "source": "api",
        "created_at": pipeline["created_at"],
        "updated_at": pipeline["updated_at"],
        "web_url": f"{project.forge.base}/{project.path}/-/pipelines/{pipeline['id']}",
        "name": None,
        "before_sha": "0" * 40,
        "tag": False,
        "yaml_errors": None,
        "user": pipeline["user"],
        "started_at": None,
        "finished_at": None,
        "committed_at": pipeline["committed_at"],
        "duration": None,
        "queued_duration": None,
        "coverage": None,
    }
    assert pipeline["user"]["id"] == project.developer.id


async def test_variables_of_a_pipeline_decide_rules_and_can_be_read_back(project):
    variables = [{"key": "COLOR", "value": "red"}, {"key": "F", "value": "x", "variable_type": "file"}]
    pipeline = await project.pipeline(SHOWING_RULES, variables=variables)
    assert set(await project.statuses(pipeline)) == {"on api", "for red", "always"}
    answer = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")
    assert answer.body == [
        {"variable_type": "env_var", "key": "COLOR", "value": "red", "raw": False},
        {"variable_type": "file", "key": "F", "value": "x", "raw": False},
    ]
    stored = await project.forge.database.rows(
        "SELECT value FROM pipeline_variables WHERE pipeline_id = %(id)s", id=pipeline["id"]
    )
    assert all(b"red" not in row.value for row in stored)


async def test_pipelines_that_cannot_be_made(forge):
    project = await ci_project(forge)

    async def refusal(ref: str, **values: Any) -> list[str]:
        answer = await project.api.post(f"{project.url}/pipeline", {"ref": ref} | values)
        assert answer.status == 400
        return list(answer.body["message"]["base"])

    assert await refusal("nowhere") == ["Reference not found"]
    await project.commit("a", path="file", branch="topic")
    assert await refusal("topic") == ["Missing CI config file"]
    await project.commit("build:\n  script: echo\n  rules: [{if: $NEVER}]\n")
    assert await refusal("topic") == ["No stages / jobs for this pipeline."]
    for key in ("A=1 B", "A$(id)", "é"):  # runners write them into shells as they are
        text = "Variables key can contain only letters, digits and '_'."
        assert await refusal("topic", variables=[{"key": key, "value": "x"}]) == [text]
    await project.commit("build:\n  script: echo\n  needs: [gone]\n")
    assert await refusal("topic") == ["build job: undefined need: gone"]
    missing = await project.api.post(f"{project.url}/pipeline", {})
    assert (missing.status, missing.body) == (400, {"error": "ref is missing"})
    assert await pushed(project, source="api") == []


async def test_the_commit_of_a_pipeline_outlives_its_branch_and_that_of_a_lint_need_not(forge):

    project = await ci_project(forge)
    repository = forge.repository(project.id)
    await project.commit(ONE_JOB)
    assert (await project.api.get(f"{project.url}/ci/lint?content_ref=main")).status == 200
    pipeline = await project.pipeline(ONE_JOB + "#\n")
    kept = [name for name in repository.references if name.startswith("refs/keep-around/")]
    main = (await project.api.get(f"{project.url}/repository/branches/main")).body["commit"]["id"]
    assert f"refs/keep-around/{pipeline['sha']}" in kept
    assert f"refs/keep-around/{main}" not in kept


async def test_the_configuration_is_where_the_project_says(forge):
    project = await ci_project(forge, ci_config_path="ci/main.yml")
    await project.commit(ONE_JOB, path="ci/main.yml")
    await project.api.post(f"{project.url}/pipeline", {"ref": "topic"}, expect=201)


async def test_pipelines_are_filtered_and_ordered(forge):
    project = await ci_project(forge)
    first = await project.pipeline(MANUAL_JOB)
    for branch in ("topic", "other"):
        await project.commit(ONE_JOB, branch=branch)
        project.texts[branch] = ONE_JOB

    async def pushes_are_settled() -> bool:
        return len(await pushed(project)) == 3

    await eventually(pushes_are_settled)
    second = await project.pipeline(ONE_JOB)
    third = await project.pipeline(ONE_JOB, branch="other")

    async def ids(query: str) -> list[int]:
        answer = await project.api.get(f"{project.url}/pipelines?source=api&{query}", expect=200)
        return [one["id"] for one in answer.body]

    assert await ids("") == [third["id"], second["id"], first["id"]]
    assert await ids("sort=asc") == [first["id"], second["id"], third["id"]]
    assert await ids("status=manual") == [first["id"]]
    assert await ids("scope=pending&ref=topic") == [second["id"]]
    assert await ids("scope=branches") == [third["id"], second["id"]]
    assert await ids("scope=tags") == []
    assert await ids(f"sha={first['sha']}") == [first["id"]]
    assert await ids(f"username={project.developer.username}&order_by=ref&sort=asc") == [
        third["id"], first["id"], second["id"]
    ]  # fmt: skip
    assert await ids("username=nobody") == []
    assert await ids("updated_after=2999-01-01T00:00:00Z") == []
    assert await ids("created_before=2999-01-01T00:00:00Z&per_page=1") == [third["id"]]
    assert await ids("pagination=keyset&per_page=2") == [third["id"], second["id"]]
    bad = await project.api.get(f"{project.url}/pipelines?scope=all")
    assert (bad.status, bad.body) == (400, {"error": "scope does not have a valid value"})


async def test_latest(forge):
    project = await ci_project(forge)
    missing = await project.api.get(f"{project.url}/pipelines/latest?ref=topic")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})
    await project.pipeline()
    newest = await project.pipeline()
    assert (await project.api.get(f"{project.url}/pipelines/latest?ref=topic")).body["id"] == newest["id"]


async def test_deleting_a_pipeline_takes_its_jobs_along_and_is_recorded(forge):
    project = await ci_project(forge)
    pipeline = await project.pipeline()
    (job,) = (await project.jobs(pipeline)).values()
    await give_log(forge, job["id"])
    where = f"{project.url}/pipelines/{pipeline['id']}"
    assert (await forge.root.delete(where)).status == 204
    assert (await forge.root.get(where)).status == 404
    assert (await forge.root.get(f"{project.url}/jobs/{job['id']}")).status == 404
    assert (await forge.root.delete(where)).body == {"message": "404 Not found"}
    recorded = await forge.database.value(
        "SELECT count(*) FROM audit_events WHERE event_type = 'destroy_pipeline' AND target_id = %(id)s",
        id=pipeline["id"],
    )
    assert recorded == 1


async def test_a_pipeline_is_deleted_once(forge):
    """Who comes second finds nothing, and nothing is recorded of it."""
    project = await ci_project(forge)
    pipeline = await project.pipeline()
    async with forge.database.transaction() as transaction:
        await queries.lock_pipeline(transaction, pipeline["id"])
        second = asyncio.create_task(forge.root.delete(f"{project.url}/pipelines/{pipeline['id']}"))
        await until_somebody_waits(forge.database)
        await queries.delete_pipeline(transaction, pipeline["id"])
    answer = await second
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


@pytest.mark.parametrize("route", routes.routes, ids=lambda route: f"{route.method} {route.path}")
async def test_where_ci_is_disabled_nobody_sees_or_does_anything(forge, route):
    project = await forge.project(builds_access_level="disabled")
    path = route.path.format(id=project["id"], pipeline_id=1)
    answer = await forge.root.request(route.method, path, json={"ref": "main", "content": "text"})
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


async def test_deleting_a_project_with_pipelines(forge):
    project = await ci_project(forge)
    await project.pipeline("a:\n  trigger: nowhere/at-all\nb:\n  script: echo\n")
    assert (await forge.root.delete(project.url)).status == 202
