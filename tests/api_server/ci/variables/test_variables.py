"""CI/CD variables of projects and groups: the API, what jobs get of them, and where their values never show."""

import asyncio
from typing import Any

import gitlab
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.variables.rules import Values, problems
from api_server.web.access import Role
from tests.support.ci import CiProject, ci_project, database
from tests.support.forge import Answer, Client, Forge
from tests.support.runner import Runner, a_runner

DEFAULTS = {
    "variable_type": "env_var", "hidden": False, "protected": False, "masked": False, "raw": False,
    "environment_scope": "*", "description": None,
}  # fmt: skip
KINDS = ("projects", "groups")


async def a_source(forge: Forge, kind: str) -> str:
    made = await (forge.project() if kind == "projects" else forge.group())
    return f"/{kind}/{made['id']}/variables"


async def made(client: Client, where: str, **values: Any) -> dict[str, Any]:
    answer = await client.post(where, {"key": "KEY", "value": "some value"} | values)
    assert answer.status == 201, answer
    return dict(answer.body)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_variables_life(forge: Forge, kind: str) -> None:
    where = await a_source(forge, kind)
    first = DEFAULTS | {"key": "KEY", "value": "some value"}
    assert await made(forge.root, where) == first
    full = DEFAULTS | {
        "key": "FULL", "value": "line\n$KEY", "variable_type": "file", "protected": True, "raw": True,
        "environment_scope": "review/*", "description": "For reviews",
    }  # fmt: skip
    assert await made(forge.root, where, **full) == full
    listed = await forge.root.get(where)
    assert (listed.status, listed.body, listed.headers["X-Total"]) == (200, [first, full], "2")
    assert (await forge.root.get(f"{where}/KEY")).body == first
    wanted = {"value": "a-longer-secret", "masked": True, "description": "Mine"}
    changed = await forge.root.put(f"{where}/KEY", wanted)
    assert (changed.status, changed.body) == (200, first | wanted)
    cleared = await forge.root.put(f"{where}/KEY", {"description": None})
    assert cleared.body == first | wanted | {"description": None}
    gone = await forge.root.delete(f"{where}/FULL")
    assert (gone.status, gone.body) == (204, "")
    missing = await forge.root.get(f"{where}/FULL")
    assert (missing.status, missing.body) == (404, {"message": "404 Variable Not Found"})
    assert (await forge.root.put(f"{where}/FULL", {"value": "x"})).status == 404
    assert (await forge.root.delete(f"{where}/FULL")).status == 404


async def test_one_key_for_several_environments(forge: Forge) -> None:
    """`filter[environment_scope]` says which is meant."""
    where = await a_source(forge, "projects")
    await made(forge.root, where, value="everywhere")
    await made(forge.root, where, value="there", environment_scope="production")
    text = "There are multiple variables with provided parameters. Please use 'filter[environment_scope]'"
    for answer in (
        await forge.root.get(f"{where}/KEY"),
        await forge.root.put(f"{where}/KEY", {"value": "x"}),
        await forge.root.delete(f"{where}/KEY"),
    ):
        assert (answer.status, answer.body) == (409, {"message": text})
    chosen = f"{where}/KEY?filter%5Benvironment_scope%5D=production"
    assert (await forge.root.get(chosen)).body["value"] == "there"
    taken = await forge.root.put(chosen, {"environment_scope": "*"})
    assert (taken.status, taken.body) == (400, {"message": {"key": ["(KEY) has already been taken"]}})
    in_body = {"value": "new", "filter": {"environment_scope": "*"}}
    assert (await forge.root.put(f"{where}/KEY", in_body)).body["value"] == "new"
    assert (await forge.root.delete(chosen)).status == 204
    assert (await forge.root.get(f"{where}/KEY")).body["value"] == "new"


LONG = "x" * 256


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({}, {"error": "key is missing, value is missing"}),
        ({"key": "", "value": "x"}, {"error": "key is empty"}),
        ({"key": "K", "value": "x", "variable_type": "no"}, {"error": "variable_type does not have a valid value"}),
        ({"key": "A-B", "value": "x"}, {"message": {"key": ["can contain only letters, digits and '_'."]}}),
        ({"key": LONG, "value": "x"}, {"message": {"key": ["is too long (maximum is 255 characters)"]}}),
        ({"key": "K", "value": "short", "masked": True}, {"message": {"value": ["is invalid"]}}),
        ({"key": "K", "value": "with a space", "masked": True}, {"message": {"value": ["is invalid"]}}),
        ({"key": "K", "value": "with$$dollars", "masked": True}, {"message": {"value": ["is invalid"]}}),
        ({"key": "K", "value": "with a space", "masked_and_hidden": True}, {"message": {"value": ["is invalid"]}}),
        (
            {"key": "K", "value": "x" * 10_001},
            {"message": {"value": ["is too long (maximum is 10000 characters)"]}},
        ),
        (
            {"key": "K", "value": "x", "description": LONG},
            {"message": {"description": ["is too long (maximum is 255 characters)"]}},
        ),
        (
            {"key": "K", "value": "x", "environment_scope": "a;b"},
            {
                "message": {
                    "environment_scope": [
                        "can contain only letters, digits, '-', '_', '/', '$', '{', '}', '.', '*' and spaces"
                    ]
                }
            },
        ),
        ({"key": "KEY", "value": "x"}, {"message": {"key": ["(KEY) has already been taken"]}}),
    ],
)  # fmt: skip
async def test_refused_variables(forge: Forge, values: dict[str, Any], body: dict[str, Any]) -> None:
    where = await a_source(forge, "projects")
    await made(forge.root, where)
    answer = await forge.root.post(where, values)
    assert (answer.status, answer.body) == (400, body)


async def test_raw_masked_values_may_have_any_characters_but_spaces(forge: Forge) -> None:
    where = await a_source(forge, "projects")
    made_one = await made(forge.root, where, value='a"$b\\c;d{e', masked=True, raw=True)
    assert made_one["value"] == 'a"$b\\c;d{e'
    refused = await forge.root.put(f"{where}/KEY", {"raw": False})
    assert (refused.status, refused.body) == (400, {"message": {"value": ["is invalid"]}})


@given(st.text(max_size=40), st.booleans())
def test_what_is_masked_can_be_found_in_one_line_of_a_log(value: str, raw: bool) -> None:
    if not problems(Values(key="K", value=value, masked=True, raw=raw)):
        assert len(value) >= 8
        assert len(value.split()) == 1


async def test_a_hidden_value_is_never_shown_again(forge: Forge) -> None:
    where = await a_source(forge, "projects")
    shown = await made(forge.root, where, value="hidden-value", masked_and_hidden=True)
    assert (shown["value"], shown["masked"], shown["hidden"]) == (None, True, True)
    assert (await forge.root.get(where)).body == [shown]
    changed = await forge.root.put(f"{where}/KEY", {"value": "another-value"})
    assert (changed.status, changed.body) == (200, shown)
    text = "The visibility setting cannot be changed for masked and hidden variables."
    refused = await forge.root.put(f"{where}/KEY", {"masked": False})
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})


async def test_changes_at_the_same_time_do_not_undo_each_other(forge: Forge) -> None:
    """What one makes masked stays so when another one's value comes in between."""
    where = await a_source(forge, "projects")
    await made(forge.root, where, key="RACE")
    async with forge.database.transaction() as transaction:
        await transaction.run("UPDATE ci_variables SET value = value, masked = true WHERE key = 'RACE'")
        changing = asyncio.create_task(forge.root.put(f"{where}/RACE", {"value": "another-value"}))
        await asyncio.sleep(0.3)
    changed = await changing
    assert (changed.body["value"], changed.body["masked"]) == ("another-value", True)


async def test_a_variable_is_deleted_once(forge: Forge) -> None:
    where = await a_source(forge, "projects")
    await made(forge.root, where, key="ONCE")
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM ci_variables WHERE key = 'ONCE'")
        deleting = asyncio.create_task(forge.root.delete(f"{where}/ONCE"))
        await asyncio.sleep(0.3)
    assert (await deleting).status == 404


@pytest.mark.parametrize(("kind", "least"), [("projects", Role.MAINTAINER), ("groups", Role.OWNER)])
async def test_who_may_see_and_change_variables(forge: Forge, kind: str, least: Role) -> None:
    made_one = await (forge.project(visibility="public") if kind == "projects" else forge.group())
    where = f"/{kind}/{made_one['id']}/variables"
    for role in (None, Role.GUEST, Role.REPORTER, Role.DEVELOPER, Role.MAINTAINER, Role.OWNER):
        person = await forge.user()
        if role is not None:
            await forge.member(kind, made_one["id"], person, role)
        answers: list[Answer] = [
            await person.api.post(where, {"key": "KEY", "value": "x"}),
            await person.api.get(where),
            await person.api.get(f"{where}/KEY"),
            await person.api.put(f"{where}/KEY", {"value": "y"}),
            await person.api.delete(f"{where}/KEY"),
        ]
        allowed = role is not None and role >= least
        assert [one.status for one in answers] == ([201, 200, 200, 200, 204] if allowed else [403] * 5), role


async def test_the_trail_tells_of_changes_but_not_of_values(forge: Forge) -> None:
    for kind, prefix, event in (
        ("projects", "ci_variable", "Ci::Variable"),
        ("groups", "ci_group_variable", "Ci::GroupVariable"),
    ):
        where = await a_source(forge, kind)
        last = await forge.database.value("SELECT coalesce(max(id), 0) FROM audit_events")
        await made(forge.root, where, value="first-secret")
        await forge.root.put(f"{where}/KEY", {"value": "second-secret", "masked": True})
        await forge.root.put(f"{where}/KEY", {"value": "second-secret"})
        await forge.root.delete(f"{where}/KEY")
        rows = await forge.database.rows(
            "SELECT event_type, target_type, target_details, details::text AS details FROM audit_events"
            " WHERE id > %(last)s ORDER BY id",
            last=last,
        )
        assert [row.event_type.removeprefix(prefix) for row in rows] == [
            "_created", "_updated", "_updated", "_deleted",
        ]  # fmt: skip
        assert {(row.target_type, row.target_details) for row in rows} == {(event, "KEY")}
        assert not any("secret" in row.details for row in rows)


async def test_values_are_encrypted_at_rest(forge: Forge) -> None:
    where = await a_source(forge, "projects")
    await made(forge.root, where, key="AT_REST", value="clear-as-day")
    stored = await forge.database.value("SELECT value FROM ci_variables WHERE key = 'AT_REST'")
    assert b"clear-as-day" not in stored


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
    row = await database(forge).row(
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


async def test_python_gitlab_and_variables(forge: Forge) -> None:
    project = await forge.project()

    def walk() -> None:
        client = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        variables = client.projects.get(project["id"]).variables
        variables.create({"key": "A", "value": "1"})
        variables.create({"key": "A", "value": "2", "environment_scope": "prod"})
        with pytest.raises(gitlab.GitlabGetError, match="409"):
            variables.get("A")
        one = variables.get("A", filter={"environment_scope": "prod"})
        assert one.value == "2"
        variables.update("A", {"value": "3", "filter": {"environment_scope": "prod"}})
        assert sorted(one.value for one in variables.list(get_all=True)) == ["1", "3"]
        variables.delete("A", filter={"environment_scope": "prod"})
        last = variables.get("A")
        last.value = "4"
        last.save()
        assert variables.get("A").value == "4"
        last.delete()
        assert variables.list(get_all=True) == []

    await asyncio.to_thread(walk)
