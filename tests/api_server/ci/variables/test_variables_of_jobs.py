"""What jobs get of CI/CD variables, and where their values never show."""

from typing import Any

import pytest

from api_server.ci.variables.queries import TooManyBytes, applicable
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Client, Forge
from tests.support.runner import Runner, a_runner


async def made(client: Client, where: str, **values: Any) -> dict[str, Any]:
    answer = await client.post(where, {"key": "KEY", "value": "some value"} | values, expect=201)
    return dict(answer.body)


async def project_with_runner(forge: Forge, **values: Any) -> tuple[CiProject, Runner]:
    project = await ci_project(forge, **values)
    return project, await a_runner(forge, project_id=project.id)


def of_job(job: Any, *keys: str) -> dict[str, Any]:
    return {one["key"]: one for one in job.payload["variables"] if one["key"] in keys}


async def test_jobs_get_the_variables_of_their_project_and_its_groups(forge: Forge) -> None:
    """The nearest group's and then the project's count; what is given to a pipeline counts more, the file less."""
    outer = await forge.group()
    inner = await forge.group(parent_id=outer["id"])
    project, runner = await project_with_runner(forge, namespace_id=inner["id"])
    for where, keys in (
        (f"/groups/{outer['id']}", "OUTER INNER OWN GIVEN"),
        (f"/groups/{inner['id']}", "INNER OWN GIVEN"),
        (project.url, "OWN GIVEN"),
    ):
        for key in keys.split():
            await made(forge.root, f"{where}/variables", key=key, value=f"of {where}")
    await made(forge.root, f"{project.url}/variables", key="FILE", value="a file", variable_type="file")
    await made(forge.root, f"{project.url}/variables", key="RAW", value="$OWN", raw=True)
    await made(forge.root, f"{project.url}/variables", key="EXPANDED", value="<$OWN>")
    text = "variables: {OWN: from the file, OUTER: from the file}\nbuild:\n  script: echo\n"
    await project.pipeline(text, variables=[{"key": "GIVEN", "value": "by hand"}])
    job = await runner.job()
    values = {key: one["value"] for key, one in of_job(job, *job.variables).items()}
    assert values["OUTER"] == f"of /groups/{outer['id']}"
    assert values["INNER"] == f"of /groups/{inner['id']}"
    assert values["OWN"] == f"of {project.url}"
    assert values["GIVEN"] == "by hand"
    assert (values["RAW"], values["EXPANDED"]) == ("$OWN", f"<of {project.url}>")
    assert of_job(job, "FILE", "RAW") == {
        "FILE": {
            "key": "FILE",
            "value": "a file",
            "public": False,
            "masked": False,
            "file": True,
            "raw": False,
        },
        "RAW": {"key": "RAW", "value": "$OWN", "public": False, "masked": False, "file": False, "raw": True},
    }


async def test_protected_variables_are_for_protected_refs(forge: Forge) -> None:
    project, runner = await project_with_runner(forge)
    await made(forge.root, f"{project.url}/variables", key="SAFE", value="x", protected=True)
    await project.pipeline(branch="topic")
    assert of_job(await runner.job(), "SAFE") == {}
    await project.pipeline(branch="main", by=forge.root)
    assert list(of_job(await runner.job(), "SAFE")) == ["SAFE"]


async def test_a_job_gets_the_variable_that_fits_its_environment_best(forge: Forge) -> None:
    project, runner = await project_with_runner(forge)
    for scope in ("*", "review/*", "review/topic", "prod*"):
        await made(forge.root, f"{project.url}/variables", value=scope, environment_scope=scope)
    for environment, expected in (
        (None, "*"), ("staging", "*"), ("review/topic", "review/topic"), ("review/other", "review/*"),
        ("production", "prod*"),
    ):  # fmt: skip
        text = "build:\n  script: echo\n" + (f"  environment: {environment}\n" if environment else "")
        await project.pipeline(text)
        assert (await runner.job()).variables["KEY"] == expected, environment


async def test_rules_know_the_variables(forge: Forge) -> None:
    project = await ci_project(forge)
    await made(forge.root, f"{project.url}/variables", key="WANTED", value="yes-please", masked=True)
    text = "wanted: {script: echo, rules: [{if: '$WANTED == \"yes-please\"'}]}\nother: {script: echo}\n"
    assert set(await project.jobs(await project.pipeline(text))) == {"wanted", "other"}


async def test_masked_values_stand_in_no_name(forge: Forge) -> None:
    """Names of pipelines, environments and tags are stored and shown to all who see the jobs."""
    project = await ci_project(forge)
    await made(forge.root, f"{project.url}/variables", key="SECRET", value="secret-value", masked=True)
    await made(forge.root, f"{project.url}/variables", key="VIA", value="via-$SECRET")
    await made(forge.root, f"{project.url}/variables", key="PLAIN", value="plain")
    text = (
        "workflow: {name: 'run $SECRET $PLAIN'}\n"
        "build: {script: echo, tags: ['t-$SECRET', '$VIA', '$PLAIN'], environment: 'e-$PLAIN$SECRET'}\n"
    )
    pipeline = await project.pipeline(text)
    assert pipeline["name"] == "run  plain"
    row = await forge.database.row(
        "SELECT plan::text AS plan, environment, tag_list FROM jobs WHERE pipeline_id = %(id)s",
        id=pipeline["id"],
    )
    assert row.environment == "e-plain"
    assert "plain" in row.tag_list
    assert "secret-value" not in f"{row.plan}{row.tag_list}"
    await project.commit("include: {local: '$SECRET.yml'}\n")
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    assert refused.status == 400
    assert "secret-value" not in str(refused.body)


async def test_who_tries_a_text_out_learns_nothing_of_protected_variables(forge: Forge) -> None:
    project = await ci_project(forge)
    await made(forge.root, f"{project.url}/variables", key="SAFE", value="x", protected=True)
    await made(forge.root, f"{project.url}/variables", key="OPEN", value="x")
    text = "safe: {script: echo, rules: [{if: $SAFE}]}\nopen: {script: echo, rules: [{if: $OPEN}]}\n"
    wanted = {"content": text, "dry_run": True, "include_jobs": True, "ref": "main"}
    tried = await project.api.post(f"{project.url}/ci/lint", wanted)
    assert [job["name"] for job in tried.body["jobs"]] == ["open"]


async def test_masked_values_do_not_reach_the_log_however_it_is_cut(forge: Forge) -> None:
    """Also after the variable has changed: what the job was given counts."""
    project, runner = await project_with_runner(forge)
    await made(forge.root, f"{project.url}/variables", key="SECRET", value="secret-value", masked=True)
    await made(forge.root, f"{project.url}/variables", key="PLAIN", value="plain-value")
    await project.pipeline()
    job = await runner.job()
    assert of_job(job, "SECRET")["SECRET"]["masked"] is True
    await forge.root.put(f"{project.url}/variables/SECRET", {"value": "another-value"})
    pieces = (b"plain-value secr", b"et-val", b"ue secret-value\n")
    start = 0
    for piece in pieces:
        assert (await job.append(piece, start)).status == 202
        start += len(piece)
    await job.finish()
    log = (await project.api.get(f"{project.url}/jobs/{job.id}/trace")).body
    assert log == "plain-value xxxxxxxxxxxx xxxxxxxxxxxx\n"
    sealed = await forge.database.value("SELECT masked_values FROM jobs WHERE id = %(id)s", id=job.id)
    assert b"secret" not in sealed


async def test_a_job_with_more_bytes_of_variables_than_a_process_can_bear_fails(forge: Forge) -> None:
    """Twenty nested groups could give a job 200 MB of them. What is too much is not read."""
    project, runner = await project_with_runner(forge)
    job = await project.job()
    await forge.database.value(
        """
        INSERT INTO ci_variables (project_id, key, value, variable_type, protected, masked, hidden, raw,
            environment_scope, created_at, updated_at)
        SELECT %(id)s, 'KEY_' || number, convert_to(repeat('x', 1048576), 'utf8'), 'env_var', false, false,
            false, true, '*', now(), now()
        FROM generate_series(1, 10) number RETURNING id
        """,
        id=project.id,
    )
    with pytest.raises(TooManyBytes):
        await applicable(forge.database, project.id, protected=True)
    assert (await runner.poll()).status == 204
    shown = (await forge.root.get(f"{project.url}/jobs/{job['id']}")).body
    assert (shown["status"], shown["failure_reason"]) == ("failed", "data_integrity_failure")
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    assert refused.status == 400
    problem = "Variables are too large: the job has more than 8 MiB of variables"
    assert refused.body == {"message": {"base": [problem]}}
    assert (await forge.root.get(f"{project.url}/ci/lint?dry_run=true&content_ref=topic")).body["errors"] == [
        problem
    ]
