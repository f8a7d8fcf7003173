"""CI/CD variables of projects, groups and the instance: the API, and valid keys."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import gitlab
import pytest
from gitlab.exceptions import GitlabGetError
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.variables.variables import Values, problems
from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Client, Forge, new_name
from tests.support.runner import a_runner
from tests.support.waiting import until_somebody_waits

DEFAULTS = {
    "variable_type": "env_var", "hidden": False, "protected": False, "masked": False, "raw": False,
    "environment_scope": "*", "description": None,
}  # fmt: skip
KINDS = ("projects", "groups")


async def a_source(forge: Forge, kind: str) -> str:
    made = await (forge.project() if kind == "projects" else forge.group())
    return f"/{kind}/{made['id']}/variables"


async def made(client: Client, where: str, **values: Any) -> dict[str, Any]:
    answer = await client.post(where, {"key": "KEY", "value": "some value"} | values, expect=201)
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
    """`filter[environment_scope]` chooses one of them."""
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
    """A variable that one request masks stays masked if another one changes its value at the same time."""
    where = await a_source(forge, "projects")
    await made(forge.root, where, key="RACE")
    async with forge.database.transaction() as transaction:
        await transaction.run("UPDATE ci_variables SET value = value, masked = true WHERE key = 'RACE'")
        changing = asyncio.create_task(forge.root.put(f"{where}/RACE", {"value": "another-value"}))
        await until_somebody_waits(forge.database)
    changed = await changing
    assert (changed.body["value"], changed.body["masked"]) == ("another-value", True)


async def test_a_variable_is_deleted_once(forge: Forge) -> None:
    where = await a_source(forge, "projects")
    await made(forge.root, where, key="ONCE")
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM ci_variables WHERE key = 'ONCE'")
        deleting = asyncio.create_task(forge.root.delete(f"{where}/ONCE"))
        await until_somebody_waits(forge.database)
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


MANUAL = "build:\n  script: echo\n  when: manual\n"
#: Names that no shell accepts for a variable.
WRONG = ["A-B", "A B", "é", "A.B", "A$", "=", "A\n", " A"]
RIGHT = ["A", "a_1", "_", "1", "A" * 255]


async def _places(forge: Forge, project: CiProject) -> dict[str, tuple[str, Any]]:
    """Return the places where variables can be given: an address, and the body with the key."""
    (job,) = (await project.jobs(await project.pipeline(MANUAL))).values()
    where = project.url
    owner = forge.root
    schedule = await owner.post(
        f"{where}/pipeline_schedules",
        {"description": "a", "ref": "topic", "cron": "1 1 1 1 *", "active": False},
    )
    trigger = await owner.post(f"{where}/triggers", {"description": "a"})
    group = await forge.group()
    return {
        "project": (f"{where}/variables", lambda key: {"key": key, "value": "x"}),
        "group": (f"/groups/{group['id']}/variables", lambda key: {"key": key, "value": "x"}),
        "instance": ("/admin/ci/variables", lambda key: {"key": key, "value": "x"}),
        "schedule": (
            f"{where}/pipeline_schedules/{schedule.body['id']}/variables",
            lambda key: {"key": key, "value": "x"},
        ),
        "pipeline": (
            f"{where}/pipeline",
            lambda key: {"ref": "topic", "variables": [{"key": key, "value": "x"}]},
        ),
        "trigger": (
            f"{where}/trigger/pipeline",
            lambda key: {"ref": "topic", "token": trigger.body["token"], "variables": {key: "x"}},
        ),
        "played job": (
            f"{where}/jobs/{job['id']}/play",
            lambda key: {"job_variables_attributes": [{"key": key, "value": "x"}]},
        ),
    }


async def test_a_key_has_letters_digits_and_underscores_everywhere(forge: Forge) -> None:
    project = await ci_project(forge)
    deviations = Deviations()
    for place, (path, body) in (await _places(forge, project)).items():
        for key in WRONG:
            answer = await forge.root.post(path, body(key))
            with deviations.of(f"{place} {key!r}"):
                assert answer.status == 400
                assert "can contain only letters, digits and '_'." in str(answer.body["message"])
        for key in RIGHT[:1] if place in ("pipeline", "trigger", "played job", "instance") else RIGHT:
            with deviations.of(f"{place} {key!r}"):
                assert (await forge.root.post(path, body(key))).status in (200, 201)
    assert not deviations, deviations.report
    await forge.root.delete(f"/admin/ci/variables/{RIGHT[0]}")


URL = "/admin/ci/variables"
INSTANCE_DEFAULTS = {
    "variable_type": "env_var", "key": "", "value": "", "protected": False, "masked": False, "raw": False,
    "description": None,
}  # fmt: skip
Made = Callable[..., Awaitable[dict[str, Any]]]


def new_key() -> str:
    return new_name("EVERYWHERE").replace("-", "_")


@pytest.fixture
async def new_variable(forge: Forge) -> AsyncIterator[Made]:
    """A function that creates variables, which are deleted after the test, because all jobs get them."""
    keys = []

    async def make(**values: Any) -> dict[str, Any]:
        answer = await forge.root.post(
            URL, {"key": new_key(), "value": "of the instance"} | values, expect=201
        )
        keys.append(answer.body["key"])
        return dict(answer.body)

    yield make
    for key in keys:
        await forge.root.delete(f"{URL}/{key}")


def refused(answer: Answer, status: int, message: Any) -> bool:
    return (answer.status, answer.body) == (status, {"message": message})


async def test_an_instance_variables_life(forge: Forge, new_variable: Made) -> None:
    first = await new_variable()
    assert first == INSTANCE_DEFAULTS | {"key": first["key"], "value": "of the instance"}
    assert list(first) == list(INSTANCE_DEFAULTS)
    full = INSTANCE_DEFAULTS | {
        "key": new_key(), "value": "line\n$KEY", "variable_type": "file", "protected": True, "raw": True,
        "description": "For all",
    }  # fmt: skip
    assert await new_variable(**full) == full
    listed = await forge.root.get(URL)
    assert [one for one in listed.body if one["key"] in (first["key"], full["key"])] == [first, full]
    assert (await forge.root.get(f"{URL}/{first['key']}")).body == first
    wanted = {"value": "a-longer-secret", "masked": True, "description": "Mine"}
    changed = await forge.root.put(f"{URL}/{first['key']}", wanted)
    assert (changed.status, changed.body) == (200, first | wanted)
    taken = await forge.root.post(URL, {"key": first["key"], "value": "x"})
    assert refused(taken, 400, {"key": [f"({first['key']}) has already been taken"]})
    unmasked = await forge.root.put(f"{URL}/{first['key']}", {"value": "short"})
    assert refused(unmasked, 400, {"value": ["is invalid"]})
    gone = await forge.root.delete(f"{URL}/{full['key']}")
    assert (gone.status, gone.body) == (204, "")
    for method in ("GET", "PUT", "DELETE"):
        missing = await forge.root.request(method, f"{URL}/{full['key']}")
        assert refused(missing, 404, "404 InstanceVariable Not Found")


async def test_values_are_encrypted_where_they_are_kept_and_told_nowhere(
    forge: Forge, new_variable: Made
) -> None:
    value = "a-secret-of-the-instance"
    key = (await new_variable(value=value, masked=True))["key"]
    row = "SELECT ci_variables::text FROM ci_variables WHERE key = %(key)s"
    kept = await forge.database.value(row, key=key)
    assert value.encode().hex() not in kept
    events = (await forge.root.get("/audit_events?event_type=ci_instance_variable_created")).body
    (event,) = [one for one in events if one["details"]["target_details"] == key]
    assert event["entity_type"] == "Service::Audit::InstanceScope"
    assert value not in str(event)


async def test_jobs_get_them_below_those_of_groups_and_projects(forge: Forge, new_variable: Made) -> None:
    group = await forge.group()
    project = await ci_project(forge, namespace_id=group["id"])
    runner = await a_runner(forge, project_id=project.id)
    alone, of_group, of_project = [
        (await new_variable(masked=True, value="of-the-instance"))["key"] for _ in range(3)
    ]
    safe = (await new_variable(protected=True))["key"]
    for where, keys in ((f"/groups/{group['id']}", (of_group, of_project)), (project.url, (of_project,))):
        for key in keys:
            values = {"key": key, "value": f"of {where}"}
            assert (await forge.root.post(f"{where}/variables", values)).status == 201
    text = f"build: {{script: echo, rules: [{{if: '${alone} == \"of-the-instance\"'}}]}}\n"
    await project.pipeline(text)
    job = await runner.job()
    assert [job.variables.get(key) for key in (alone, of_group, of_project, safe)] == [
        "of-the-instance", f"of /groups/{group['id']}", f"of {project.url}", None
    ]  # fmt: skip
    (shown,) = [one for one in job.payload["variables"] if one["key"] == alone]
    assert (shown["masked"], shown["public"]) == (True, False)
    await project.pipeline(text, branch="main", by=forge.root)
    assert (await runner.job()).variables[safe] == "of the instance"


async def test_administrators_alone_have_them(forge: Forge) -> None:
    user = await forge.user()
    assert refused(await user.api.get(URL), 403, "403 Forbidden")
    assert refused(await user.api.post(URL, {"key": "K", "value": "x"}), 403, "403 Forbidden")


async def test_python_gitlab_keeps_them(forge: Forge) -> None:
    key = new_key()

    def use() -> None:
        variables = gitlab.Gitlab(forge.base, private_token=forge.root.token).variables
        new_variable = variables.create({"key": key, "value": "x", "variable_type": "file"})
        assert new_variable.variable_type == "file"
        new_variable.value = "y"
        new_variable.save()
        assert variables.get(key).value == "y"
        assert key in [one.key for one in variables.list(get_all=True)]
        new_variable.delete()
        with pytest.raises(GitlabGetError, match="404 InstanceVariable Not Found"):
            variables.get(key)

    await asyncio.to_thread(use)
