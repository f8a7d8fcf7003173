"""CI/CD variables of the instance: the API, and what jobs get of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import gitlab
import pytest
from gitlab.exceptions import GitlabGetError

from tests.support.ci import ci_project
from tests.support.forge import Answer, Forge, new_name
from tests.support.runner import a_runner

URL = "/admin/ci/variables"
DEFAULTS = {
    "variable_type": "env_var", "key": "", "value": "", "protected": False, "masked": False, "raw": False,
    "description": None,
}  # fmt: skip
Made = Callable[..., Awaitable[dict[str, Any]]]


def new_key() -> str:
    return new_name("EVERYWHERE").replace("-", "_")


@pytest.fixture
async def made(forge: Forge) -> AsyncIterator[Made]:
    """Makes variables, which are gone after the test: all jobs get them."""
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


async def test_a_variables_life(forge: Forge, made: Made) -> None:
    first = await made()
    assert first == DEFAULTS | {"key": first["key"], "value": "of the instance"}
    assert list(first) == list(DEFAULTS)
    full = DEFAULTS | {
        "key": new_key(), "value": "line\n$KEY", "variable_type": "file", "protected": True, "raw": True,
        "description": "For all",
    }  # fmt: skip
    assert await made(**full) == full
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


async def test_values_are_encrypted_where_they_are_kept_and_told_nowhere(forge: Forge, made: Made) -> None:
    value = "a-secret-of-the-instance"
    key = (await made(value=value, masked=True))["key"]
    row = "SELECT ci_variables::text FROM ci_variables WHERE key = %(key)s"
    kept = await forge.database.value(row, key=key)
    assert value.encode().hex() not in kept
    events = (await forge.root.get("/audit_events?event_type=ci_instance_variable_created")).body
    (event,) = [one for one in events if one["details"]["target_details"] == key]
    assert event["entity_type"] == "Service::Audit::InstanceScope"
    assert value not in str(event)


async def test_jobs_get_them_below_those_of_groups_and_projects(forge: Forge, made: Made) -> None:
    group = await forge.group()
    project = await ci_project(forge, namespace_id=group["id"])
    runner = await a_runner(forge, project_id=project.id)
    alone, of_group, of_project = [
        (await made(masked=True, value="of-the-instance"))["key"] for _ in range(3)
    ]
    safe = (await made(protected=True))["key"]
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
        made = variables.create({"key": key, "value": "x", "variable_type": "file"})
        assert made.variable_type == "file"
        made.value = "y"
        made.save()
        assert variables.get(key).value == "y"
        assert key in [one.key for one in variables.list(get_all=True)]
        made.delete()
        with pytest.raises(GitlabGetError, match="404 InstanceVariable Not Found"):
            variables.get(key)

    await asyncio.to_thread(use)
