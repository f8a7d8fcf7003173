"""Inputs of pipelines: from the API, a trigger, the options of a push, a bridge."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.ci import CiProject, ci_project, eventually
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url

TEXT = """
spec:
  inputs:
    strategy: {options: [canary, blue-green], default: canary}
    replicas: {type: number, default: 1}
    dry: {type: boolean, default: false}
    steps: {type: array, default: [make]}
---
"$[[ inputs.strategy ]] $[[ inputs.replicas ]] $[[ inputs.dry ]]": {script: "$[[ inputs.steps ]]"}
"""
VALUES = {"strategy": "blue-green", "replicas": 3, "dry": True, "steps": ["a", "b"]}
JOB = "blue-green 3 true"


async def scripts_of(project: CiProject, pipeline_id: int) -> dict[str, Any]:
    rows = await project.forge.database.rows(
        "SELECT name, plan -> 'script' AS script FROM jobs WHERE pipeline_id = %(id)s", id=pipeline_id
    )
    return {row.name: orjson.loads(row.script) for row in rows}


async def test_a_pipeline_is_made_with_inputs_whatever_it_may_be_given_as_variables(forge: Forge) -> None:
    project = await ci_project(forge)
    await forge.root.put(project.url, {"ci_pipeline_variables_minimum_override_role": "no_one_allowed"})
    pipeline = await project.pipeline(TEXT, inputs=VALUES)
    assert await scripts_of(project, pipeline["id"]) == {JOB: ["a", "b"]}
    (job,) = (await project.jobs(pipeline)).values()
    await project.api.post(f"{project.url}/jobs/{job['id']}/cancel", expect=201)
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/retry", expect=201)
    assert set(await scripts_of(project, pipeline["id"])) == {JOB}
    form = {"ref": "topic", "inputs[replicas]": "2", "inputs[dry]": "true", "inputs[steps]": '["c"]'}
    sent = await project.api.post(f"{project.url}/pipeline", data=form)
    assert await scripts_of(project, sent.body["id"]) == {"canary 2 true": ["c"]}


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        ({"strategy": "manual"}, "`strategy` input: `manual` cannot be used because "
         "it is not in the list of allowed options"),
        ({"replicas": "x", "dry": 1}, "`replicas` input: provided value is not a number, "
         "`dry` input: provided value is not a boolean"),
        ({"other": "x"}, "unknown input arguments: other"),
        ({str(number): 1 for number in range(21)}, "A pipeline can take up to 20 inputs"),
        ({"strategy": "\0"}, "Inputs cannot have a NUL character"),
    ],
)  # fmt: skip
async def test_inputs_that_do_not_fit_are_refused(
    project: CiProject, inputs: dict[str, Any], body: str
) -> None:
    if project.texts.get("topic") != TEXT:
        await project.pipeline(TEXT)
    answer = await project.api.post(f"{project.url}/pipeline", {"ref": "topic", "inputs": inputs})
    assert (answer.status, answer.body) == (400, {"message": {"base": [body]}})


async def test_a_trigger_takes_inputs(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(TEXT)
    trigger = await forge.root.post(f"{project.url}/triggers", {"description": "x"}, expect=201)
    sent = {"token": trigger.body["token"], "ref": "topic", "inputs": VALUES}
    fired = await forge.anonymous.post(f"{project.url}/trigger/pipeline", sent)
    assert await scripts_of(project, fired.body["id"]) == {JOB: ["a", "b"]}
    refused = await forge.anonymous.post(f"{project.url}/trigger/pipeline", sent | {"inputs": {"x": 1}})
    assert (refused.status, refused.body) == (
        400,
        {"message": {"base": ["unknown input arguments: x"]}},
    )


async def test_bridges_pass_inputs_on(forge: Forge) -> None:
    project, other = await ci_project(forge), await ci_project(forge)
    await forge.root.post(
        f"{other.url}/members", {"user_id": project.developer.id, "access_level": 30}, expect=201
    )
    await other.commit(TEXT)
    await project.commit(TEXT, path="child.yml")
    pipeline = await project.pipeline(
        "child: {trigger: {include: [{local: child.yml, inputs: {strategy: blue-green, replicas: 3}}]}}\n"
        f"other: {{trigger: {{project: {other.path}, branch: topic, inputs: {{dry: true, steps: ['é 😀']}}}}}}\n"
        f"wrong: {{trigger: {{project: {other.path}, branch: topic, inputs: {{nothing: 1}}}}}}\n"
    )

    async def are_started() -> bool:
        bridges = await project.bridges(pipeline)
        return all(bridge["status"] in ("success", "failed") for bridge in bridges.values())

    await eventually(are_started)
    bridges = await project.bridges(pipeline)
    assert {name: bridge["status"] for name, bridge in bridges.items()} == {
        "child": "success",
        "other": "success",
        "wrong": "failed",
    }
    made = {name: bridges[name]["downstream_pipeline"]["id"] for name in ("child", "other")}
    assert await scripts_of(project, made["child"]) == {"blue-green 3 false": ["make"]}
    assert await scripts_of(other, made["other"]) == {"canary 1 true": ["é 😀"]}
    refused = bridges["wrong"]["downstream_pipeline"]
    shown = (await other.api.get(f"{other.url}/pipelines/{refused['id']}")).body
    assert (shown["status"], shown["source"], shown["yaml_errors"]) == (
        "failed",
        "pipeline",
        "unknown input arguments: nothing",
    )


async def test_a_push_has_inputs_as_options(forge: Forge, tmp_path: Path) -> None:
    project = await ci_project(forge)
    git = Git(tmp_path / "work")
    await git.init()
    sha = await git.commit_files({".gitlab-ci.yml": TEXT})
    options = ["strategy=blue-green", "replicas=3", "dry=true", 'steps=["a", "b"]']
    arguments = [argument for option in options for argument in ("-o", f"ci.input={option}")]
    await git("push", "-q", *arguments, git_url(forge, project.path, project.developer), "HEAD:refs/heads/a")
    (pipeline,) = await project.api.until(f"{project.url}/pipelines?sha={sha}")
    assert await scripts_of(project, pipeline["id"]) == {JOB: ["a", "b"]}
    await git(
        "push",
        "-q",
        "-o",
        "ci.input=x=1",
        git_url(forge, project.path, project.developer),
        "HEAD:refs/heads/b",
    )
    (failed,) = await project.api.until(f"{project.url}/pipelines?ref=b")
    shown = (await project.api.get(f"{project.url}/pipelines/{failed['id']}")).body
    assert (shown["status"], shown["yaml_errors"]) == ("failed", "unknown input arguments: x")


async def test_the_lint_route_knows_no_inputs(project: CiProject) -> None:
    text = "spec: {inputs: {a: , b: {default: x}}}\n---\nj: {script: '$[[ inputs.a ]]'}"
    answer = await project.api.post(f"{project.url}/ci/lint", {"content": text})
    assert (answer.body["valid"], answer.body["errors"]) == (
        False,
        ["`a` input: required value has not been provided"],
    )
    good = await project.api.post(
        f"{project.url}/ci/lint", {"content": text.replace("a: ,", "a: {default: y},")}
    )
    assert (good.body["valid"], good.body["merged_yaml"]) == (True, "j:\n  script: y\n")
