"""CI/CD variables of jobs, places where their values never appear, and who may give some to pipelines and jobs."""

from typing import Any

import pytest

from api_server.ci.variables.queries import TooManyBytes, applicable
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, CiProject, ci_project
from tests.support.forge import Client, Forge, Person
from tests.support.git_client import Git, git_url
from tests.support.runner import Runner, a_runner
from tests.support.waiting import until


async def made(client: Client, where: str, **values: Any) -> dict[str, Any]:
    answer = await client.post(where, {"key": "KEY", "value": "some value"} | values, expect=201)
    return dict(answer.body)


async def project_with_runner(forge: Forge, **values: Any) -> tuple[CiProject, Runner]:
    project = await ci_project(forge, **values)
    return project, await a_runner(forge, project_id=project.id)


def of_job(job: Any, *keys: str) -> dict[str, Any]:
    return {one["key"]: one for one in job.payload["variables"] if one["key"] in keys}


async def test_jobs_get_the_variables_of_their_project_and_its_groups(forge: Forge) -> None:
    """Variables of the project come before those of the nearest group and of groups above; those of a pipeline come
    before all, and those of the file last."""
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
    """Names of pipelines, environments and tags are stored and shown to everybody who sees the jobs."""
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
    """This holds also after the variable has changed: the value that the job has received counts."""
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
    """Twenty nested groups could give a job 200 MB of them. Variables beyond the limit are not read."""
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


MINIMUM = "ci_pipeline_variables_minimum_override_role"
RESTRICT = "restrict_user_defined_variables"
GIVEN = [{"key": "DEPLOY", "value": "now"}]
REFUSED = (400, {"message": {"base": ["Insufficient permissions to set pipeline variables"]}})


async def demand(project: CiProject, by: Person | None = None, **settings: Any) -> tuple[str, bool]:
    """Change the settings; return the new values of both."""
    client = by.api if by else project.forge.root
    answer = await client.put(project.url, settings, expect=200)
    shown = (await client.get(project.url)).body
    assert {name: answer.body[name] for name in (MINIMUM, RESTRICT)} == {
        name: shown[name] for name in (MINIMUM, RESTRICT)
    }
    return shown[MINIMUM], shown[RESTRICT]


@pytest.fixture(scope="module")
async def project(forge: Forge) -> CiProject:
    made = await ci_project(forge)
    await made.commit(MANUAL_JOB)
    made.texts["topic"] = MANUAL_JOB
    return made


@pytest.fixture(scope="module")
async def people(forge: Forge, project: CiProject) -> dict[str, Person]:
    return await forge.people(project.id)


async def test_two_settings_say_one_thing(project: CiProject) -> None:
    assert await demand(project) == ("developer", False)
    assert await demand(project, restrict_user_defined_variables=True) == ("maintainer", True)
    assert await demand(project, ci_pipeline_variables_minimum_override_role="owner") == ("owner", True)
    assert await demand(project, restrict_user_defined_variables=True) == ("owner", True)
    assert await demand(project, restrict_user_defined_variables=False) == ("developer", False)
    both = {RESTRICT: True, MINIMUM: "no_one_allowed"}
    assert await demand(project, **both) == ("no_one_allowed", True)
    assert await demand(project, ci_pipeline_variables_minimum_override_role="developer") == (
        "developer",
        False,
    )
    events = await project.forge.root.get(
        f"{project.url}/audit_events?event_type=project_{MINIMUM}_updated&per_page=1"
    )
    assert (events.body[0]["details"]["from"], events.body[0]["details"]["to"]) == (
        "no_one_allowed",
        "developer",
    )


async def test_what_only_owners_may_demand_maintainers_do_not_change(
    project: CiProject, people: dict[str, Person]
) -> None:
    maintainer = people["maintainer"]
    await demand(project, ci_pipeline_variables_minimum_override_role="developer")
    assert await demand(project, maintainer, restrict_user_defined_variables=True) == ("maintainer", True)
    refused = await maintainer.api.put(project.url, {MINIMUM: "no_one_allowed"})
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    await demand(project, people["owner"], ci_pipeline_variables_minimum_override_role="owner")
    assert (await maintainer.api.put(project.url, {RESTRICT: False})).status == 403
    assert (await maintainer.api.put(project.url, {MINIMUM: "owner", "description": "x"})).status == 200
    invalid = await people["owner"].api.put(project.url, {MINIMUM: "guest"})
    assert (invalid.status, invalid.body) == (400, {"error": f"{MINIMUM} does not have a valid value"})


@pytest.mark.parametrize(
    ("minimum", "allowed"),
    [
        ("developer", ["developer", "maintainer", "owner"]),
        ("maintainer", ["maintainer", "owner"]),
        ("owner", ["owner"]),
        ("no_one_allowed", []),
    ],
)
async def test_pipelines_and_jobs_take_variables_of_those_roles_only(
    project: CiProject, people: dict[str, Person], minimum: str, allowed: list[str]
) -> None:
    await demand(project, ci_pipeline_variables_minimum_override_role=minimum)
    (job,) = (await project.jobs(await project.pipeline(MANUAL_JOB))).values()
    for role in ("developer", "maintainer", "owner"):
        api = people[role].api
        made = await api.post(f"{project.url}/pipeline", {"ref": "topic", "variables": GIVEN})
        assert (made.status == 201) == (role in allowed)
        played = await api.post(f"{project.url}/jobs/{job['id']}/play", {"job_variables_attributes": GIVEN})
        if role in allowed:
            (job,) = (await project.jobs(made.body)).values()  # the next job
            assert played.status == 200
        else:
            assert (made.status, made.body) == REFUSED
            assert (played.status, played.body) == (403, {"message": "403 Forbidden"})
    assert (await project.api.post(f"{project.url}/jobs/{job['id']}/play")).status == 200


async def test_a_push_with_variables_says_why_its_pipeline_does_not_run(
    forge: Forge, project: CiProject, people: dict[str, Person], tmp_path: Any
) -> None:
    await demand(project, ci_pipeline_variables_minimum_override_role="maintainer")
    remote = git_url(forge, project.path, people["developer"])
    git = Git(tmp_path / "work")
    await git.init()
    await git.commit_files({".gitlab-ci.yml": MANUAL_JOB})
    await git("push", "--quiet", "-o", "ci.variable=DEPLOY=now", remote, "HEAD:refs/heads/pushed")

    async def pipelines() -> list[Any]:
        return list((await forge.root.get(f"{project.url}/pipelines?ref=pushed")).body)

    (made,) = await until(pipelines)
    shown = (await forge.root.get(f"{project.url}/pipelines/{made['id']}")).body
    assert (shown["status"], shown["yaml_errors"]) == ("failed", REFUSED[1]["message"]["base"][0])


async def test_a_bridge_gives_variables_where_its_user_may_and_to_its_own_children(
    forge: Forge, project: CiProject, people: dict[str, Person]
) -> None:
    await demand(project, ci_pipeline_variables_minimum_override_role="maintainer")
    here = await ci_project(forge)
    for role, ends in (("developer", "failed"), ("maintainer", "running")):
        await forge.member("projects", here.id, people[role], Role.DEVELOPER)
        text = (
            "variables: {DEPLOY: now}\n"
            f"there:\n  trigger: {{project: {project.path}, branch: topic, strategy: depend}}\n"
            "child:\n  trigger: {include: [{local: child.yml}], strategy: depend}\n"
        )
        await here.commit(MANUAL_JOB, path="child.yml")
        pipeline = await here.pipeline(text, by=people[role].api)

        async def statuses(pipeline: dict[str, Any] = pipeline) -> dict[str, str] | None:
            found = await here.statuses(pipeline)
            return None if {"created", "pending"} & set(found.values()) else found

        assert await until(statuses) == {"there": ends, "child": "running"}
        there = (await here.bridges(pipeline))["there"]["downstream_pipeline"]["id"]
        shown = (await forge.root.get(f"{project.url}/pipelines/{there}")).body
        assert shown["yaml_errors"] == (REFUSED[1]["message"]["base"][0] if ends == "failed" else None)
    bridge = (await here.bridges(pipeline))["child"]
    await demand(here, restrict_user_defined_variables=True)
    given = await forge.root.get(f"{here.url}/pipelines/{bridge['downstream_pipeline']['id']}/variables")
    assert [one["key"] for one in given.body] == ["DEPLOY"]


async def test_a_trigger_starts_what_it_gives_no_variables_to(
    project: CiProject, people: dict[str, Person]
) -> None:
    """Variables that the service itself makes of the request do not count."""
    await demand(project, ci_pipeline_variables_minimum_override_role="owner")
    where = f"{project.url}/triggers"
    trigger = (await people["maintainer"].api.post(where, {"description": "x"})).body
    fire = {"ref": "topic", "token": trigger["token"]}
    made = await project.forge.anonymous.post(f"{project.url}/trigger/pipeline", fire, expect=201)
    given = await project.forge.root.get(f"{project.url}/pipelines/{made.body['id']}/variables")
    assert [one["key"] for one in given.body] == ["TRIGGER_PAYLOAD"]
    for key in ("DEPLOY", "TRIGGER_PAYLOAD"):
        refused = await project.forge.anonymous.post(
            f"{project.url}/trigger/pipeline", fire | {"variables": {key: "x"}}
        )
        assert (refused.status, refused.body) == REFUSED


async def test_schedules_take_variables_of_those_roles_only_and_keep_what_they_have(
    project: CiProject, people: dict[str, Person]
) -> None:
    await demand(project, ci_pipeline_variables_minimum_override_role="developer")
    api = people["developer"].api
    new = {"description": "x", "ref": "topic", "cron": "0 4 1 1 *"}
    where = f"{project.url}/pipeline_schedules"
    schedule = f"{where}/{(await api.post(where, new)).body['id']}"
    assert (await api.post(f"{schedule}/variables", GIVEN[0])).status == 201
    await demand(project, ci_pipeline_variables_minimum_override_role="maintainer")
    assert (await api.post(f"{schedule}/variables", {"key": "OTHER", "value": "x"})).status == 403
    assert (await api.put(f"{schedule}/variables/DEPLOY", {"value": "later"})).status == 403
    assert (await api.post(f"{schedule}/play")).status == 201

    (pipeline,) = await api.until(f"{schedule}/pipelines")
    given = await api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")
    assert [(one["key"], one["value"]) for one in given.body] == [("DEPLOY", "now")]
    assert (await api.delete(f"{schedule}/variables/DEPLOY")).status == 202


async def test_what_a_pipeline_was_given_is_for_maintainers_and_for_who_started_it(
    forge: Forge, project: CiProject, people: dict[str, Person]
) -> None:
    """The pipelines of a schedule have its variables, which no Developer except its owner can see there."""
    await demand(project, **{MINIMUM: "developer"})
    pipeline = await project.pipeline(MANUAL_JOB, variables=GIVEN)
    url = f"{project.url}/pipelines/{pipeline['id']}/variables"
    allowed = {name for name, one in people.items() if (await one.api.get(url)).status == 200}
    assert allowed == {"maintainer", "owner"}
    assert (await people["developer"].api.get(url)).status == 403
    assert [one["key"] for one in (await project.api.get(url)).body] == ["DEPLOY"]
    protected = f"{project.url}/protected_branches"
    await forge.root.post(protected, {"name": "topic", "push_access_level": 40})
    assert (await project.api.get(url)).status == 403
    await forge.root.delete(f"{protected}/topic")
