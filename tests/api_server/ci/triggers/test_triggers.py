"""Tokens that start pipelines: who creates and sees them, and their use."""

import asyncio
from typing import Any

import gitlab
import orjson
import pytest

from api_server.state.secrets import TRIGGER_TOKEN
from api_server.web.routes import Role
from tests.support.ci import ONE_JOB, CiProject, ci_project, run
from tests.support.forge import Forge, Person

STORED = "SELECT row_to_json(t)::text FROM pipeline_triggers t WHERE t.id = %(id)s"
RULES = """
fired: {script: echo, only: [triggers]}
asked: {script: echo, rules: [{if: '$CI_PIPELINE_TRIGGERED == "true" && $COLOR == "red"'}]}
job: {script: echo, only: [pipelines]}
other: {script: echo, only: [api]}
"""


async def maintainer(forge: Forge, project: CiProject) -> Person:
    return await forge.new_member(project.id, Role.MAINTAINER, "maintainer")


async def fire(project: CiProject, token: str, query: str = "", **values: Any) -> Any:
    body = {"ref": "topic", "token": token} | values
    return await project.forge.anonymous.post(f"{project.url}/trigger/pipeline{query}", body)


@pytest.fixture(scope="module")
async def project(forge: Forge) -> CiProject:
    project = await ci_project(forge)
    await project.commit(RULES)
    return project


@pytest.fixture(scope="module")
async def owner(forge: Forge, project: CiProject) -> Person:
    return await maintainer(forge, project)


@pytest.fixture
async def trigger(project: CiProject, owner: Person) -> dict[str, Any]:
    made = await owner.api.post(f"{project.url}/triggers", {"description": "nightly"}, expect=201)
    return dict(made.body)


async def test_a_trigger_is_shown_whole_to_its_owner_and_kept_without_its_token(
    forge: Forge, project: CiProject, owner: Person, trigger: dict[str, Any]
) -> None:
    assert list(trigger) == ["id", "token", "description", "created_at", "updated_at", "last_used", "owner"]
    token = trigger["token"]
    assert token.startswith(TRIGGER_TOKEN)
    assert (trigger["description"], trigger["last_used"]) == ("nightly", None)
    assert trigger["owner"]["id"] == owner.id
    one = f"{project.url}/triggers/{trigger['id']}"
    assert (await owner.api.get(one)).body == trigger
    shown = trigger | {"token": token.removeprefix(TRIGGER_TOKEN)[:4]}
    assert (await forge.root.get(one)).body == shown
    assert shown in (await forge.root.get(f"{project.url}/triggers?pagination=keyset")).body
    assert trigger in (await owner.api.get(f"{project.url}/triggers")).body
    assert token not in await forge.database.value(STORED, id=trigger["id"])


async def test_triggers_are_maintainers_and_changed_by_their_owners(
    forge: Forge, project: CiProject, owner: Person, trigger: dict[str, Any]
) -> None:
    one, other = f"{project.url}/triggers/{trigger['id']}", await maintainer(forge, project)
    assert (await project.api.get(one)).status == 403
    refused = await other.api.put(one, {"description": "mine"})
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    changed = await owner.api.put(one, {"description": "weekly"})
    assert (changed.status, changed.body["description"]) == (200, "weekly")
    assert (await other.api.delete(one)).status == 204
    gone = await owner.api.get(one)
    assert (gone.status, gone.body) == (404, {"message": "404 Not found"})
    fired = await fire(project, trigger["token"])
    assert (fired.status, fired.body) == (404, {"message": "404 Not Found"})


async def test_a_fired_trigger_runs_a_pipeline_as_its_owner_with_what_was_sent(
    project: CiProject, owner: Person, trigger: dict[str, Any]
) -> None:
    made = await fire(project, trigger["token"], variables={"COLOR": "red"}, payload={"a": [1]})
    assert made.status == 201, made
    assert (made.body["source"], made.body["ref"], made.body["user"]["id"]) == ("trigger", "topic", owner.id)
    assert made.body == (await project.api.get(f"{project.url}/pipelines/{made.body['id']}")).body
    assert set(await project.statuses(made.body)) == {"fired", "asked"}
    given = (await project.forge.root.get(f"{project.url}/pipelines/{made.body['id']}/variables")).body
    assert given[0] == {"variable_type": "env_var", "key": "COLOR", "value": "red", "raw": False}
    assert (given[1]["variable_type"], given[1]["key"]) == ("file", "TRIGGER_PAYLOAD")
    assert orjson.loads(given[1]["value"]) == {
        "id": str(project.id), "ref": "topic", "variables": {"COLOR": "red"}, "payload": {"a": [1]}
    }  # fmt: skip
    used = (await owner.api.get(f"{project.url}/triggers/{trigger['id']}")).body
    assert used["last_used"] >= trigger["created_at"]


async def test_what_is_fired_is_said_in_a_form_in_json_or_in_the_url(
    forge: Forge, project: CiProject, trigger: dict[str, Any]
) -> None:
    token, where = trigger["token"], f"{project.url}/trigger/pipeline"
    form = {"token": token, "ref": "topic", "variables[COLOR]": "red"}
    answers = [
        await forge.anonymous.post(where, data=form),
        await forge.anonymous.post(f"{where}?token={token}&ref=topic&variables[COLOR]=red"),
        await forge.anonymous.post(
            f"{project.url}/ref/topic/trigger/pipeline", {"token": token, "variables": {"COLOR": "red"}}
        ),
        await forge.anonymous.post(
            f"/projects/{project.path.replace('/', '%2F')}/ref/refs%2Fheads%2Ftopic/trigger/pipeline?token={token}"
            "&variables[COLOR]=red"
        ),
    ]
    for answer in answers:
        assert answer.status == 201, answer
        assert set(await project.statuses(answer.body)) == {"fired", "asked"}


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        ({"ref": None, "token": None}, 400, {"error": "ref is empty, token is empty"}),
        ({"ref": "missing"}, 400, {"message": {"base": ["Reference not found"]}}),
        ({"token": "flptt-nobodys"}, 404, {"message": "404 Not Found"}),
        ({"token": "fljob-nobodys"}, 401, {"message": "401 Unauthorized"}),
        ({"variables": "x"}, 400, {"error": "variables is invalid"}),
        ({"variables": {"A B": "x"}}, 400,
         {"message": {"base": ["Variables key can contain only letters, digits and '_'."]}}),
        ({"inputs": "x"}, 400, {"error": "inputs is invalid"}),
    ],
)  # fmt: skip
async def test_what_cannot_be_fired_is_refused(
    project: CiProject, trigger: dict[str, Any], sent: dict[str, Any], status: int, body: Any
) -> None:
    answer = await fire(project, **{"token": trigger["token"]} | sent)
    assert (answer.status, answer.body) == (status, body)


async def test_a_token_gives_what_its_owner_may_by_now(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(ONE_JOB, branch="main")
    owner = await maintainer(forge, project)
    token = (await owner.api.post(f"{project.url}/triggers", {"description": "x"})).body["token"]
    elsewhere = await ci_project(forge)
    assert (await fire(elsewhere, token)).status == 404
    member = f"{project.url}/members/{owner.id}"
    assert (await fire(project, token, ref="main")).status == 201
    assert (await forge.root.put(member, {"access_level": 30})).status == 200
    refused = await fire(project, token, ref="main")
    text = "You do not have sufficient permission to run a pipeline on 'main'."
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})
    assert (await forge.root.put(member, {"access_level": 20})).status == 200
    refused = await fire(project, token, ref="main")
    text = "Insufficient permissions to create a new pipeline"
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})
    assert (await forge.root.put(member, {"access_level": 40})).status == 200
    assert (await forge.root.post(f"/users/{owner.id}/block")).status == 201
    assert (await fire(project, token, ref="main")).status == 404
    assert (await forge.root.post(f"/users/{owner.id}/unblock")).status == 201
    assert (await forge.root.post(f"{project.url}/archive")).status == 201
    refused = await fire(project, token, ref="main")
    assert (refused.status, refused.body) == (400, {"message": {"base": ["Pipelines are disabled!"]}})
    assert (await forge.root.post(f"{project.url}/unarchive")).status == 201
    assert (await forge.root.delete(member)).status == 204
    assert (await fire(project, token, ref="main")).status == 404


async def test_a_running_jobs_token_starts_pipelines_of_projects_that_let_it_in(
    forge: Forge, project: CiProject
) -> None:
    """The pipeline has the rights of the job's user, and is in the hierarchy of the job's pipeline."""
    other = await ci_project(forge)
    await forge.member("projects", other.id, project.developer, Role.DEVELOPER)
    await other.commit(RULES)
    pipeline = await project.pipeline(RULES)
    job = (await project.jobs(pipeline))["other"]["id"]
    token = await run(forge, job)
    own = await fire(project, token)
    assert own.status == 201, own
    assert (own.body["source"], own.body["user"]["id"]) == ("pipeline", project.developer.id)
    assert set(await project.statuses(own.body)) == {"job"}
    assert (await fire(other, token)).status == 404
    allow = {"target_project_id": project.id}
    assert (await forge.root.post(f"{other.url}/job_token_scope/allowlist", allow)).status == 201
    assert (await fire(other, token)).status == 201
    size = "SELECT hierarchy_size FROM pipelines WHERE id = %(id)s"
    assert await forge.database.value(size, id=pipeline["id"]) == 3
    assert (await project.api.post(f"{project.url}/jobs/{job}/cancel")).status == 201
    assert (await fire(project, token)).status == 401


async def test_python_gitlab_walks_through_triggers(forge: Forge, project: CiProject, owner: Person) -> None:
    def walk() -> None:
        found = gitlab.Gitlab(forge.base, private_token=owner.token).projects.get(project.id)
        trigger = found.triggers.create({"description": "from python"})
        trigger.description = "renamed"
        trigger.save()
        assert found.triggers.get(trigger.id).description == "renamed"
        assert trigger.id in [one.id for one in found.triggers.list(get_all=True)]
        pipeline = found.trigger_pipeline("topic", trigger.token, {"COLOR": "red"})
        assert [job.name for job in pipeline.jobs.list(get_all=True)] in (
            ["asked", "fired"],
            ["fired", "asked"],
        )
        trigger.delete()

    await asyncio.to_thread(walk)


async def test_a_hierarchy_that_is_full_starts_nothing(project: CiProject, forge: Forge) -> None:
    pipeline = await project.pipeline(RULES)
    job = (await project.jobs(pipeline))["other"]["id"]
    token = await run(forge, job)
    fill = "UPDATE pipelines SET hierarchy_size = 1000 WHERE id = %(id)s RETURNING id"
    await forge.database.value(fill, id=pipeline["id"])
    refused = await fire(project, token)
    text = "There are 1000 pipelines in this hierarchy already."
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})
