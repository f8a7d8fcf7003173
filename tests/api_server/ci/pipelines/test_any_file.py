"""No CI file makes the service fail or meets a constraint of the database, whatever names and numbers it has."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_server.ci.config.pipeline import FILTERED, NO_JOBS
from api_server.ci.pipelines import queries
from api_server.ci.pipelines.creation import NotMade, Wanted, maker
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.forge import Forge

NAMES = ["t", "t 1/2", "t 2/2", "t 1/2 1/2", "t: [a]", "t: [1]", "é" * 245, "404", "null", "😀", "pages"]
#: What stands in one place of some files: as a value, and as a key.
ODD = [
    None, True, False, 0, -1, 1, 2, 200, 201, 2**31, 2**63, 10**30, 1.5, 1e300, "", " ", "\0", "x" * 256, "x" * 5000,
    "😀" * 255, "${A}$$B", "1:30", "never", "99999 years", "9999999999", "/(/", "**/{a,b}", [], {}, [[]], [["x"]],
    [None], {"a": {"b": []}}, "\x85\u2028",
]  # fmt: skip
ODD_KEYS = ["", " ", "a\0", "x" * 256, "é" * 255, ".hidden", "stages", "script", "<<", "true"]

names = st.sampled_from(NAMES)
texts = st.sampled_from(["x", "echo", "$A", "x" * 255, "é" * 255])
lists = st.lists(texts, max_size=3)
variables = st.dictionaries(
    st.sampled_from(["A", "B", "A" * 255, "a b", "é"]),
    texts | st.fixed_dictionaries({"value": texts}, optional={"expand": st.booleans()}),
    max_size=3,
)
matrix = st.lists(
    st.dictionaries(
        st.sampled_from("AB"), st.lists(st.sampled_from(["a", 1, "b"]), min_size=1) | texts, min_size=1
    ),
    max_size=3,
)
needs = st.lists(names.map(lambda name: {"job": name, "optional": True}), max_size=3, unique_by=str)
conditions = {
    "if": st.sampled_from(["$A", "$CI_COMMIT_BRANCH =~ $A", "$A == null"]),
    "changes": lists,
    "exists": lists,
    "variables": variables,
}
rules = st.lists(
    st.fixed_dictionaries(
        {}, optional={**conditions, "when": st.sampled_from(["always", "manual", "never"])}
    ),
    max_size=2,
)
filters = st.lists(
    st.fixed_dictionaries({}, optional={**conditions, "when": st.sampled_from(["always", "never"])}),
    max_size=2,
)
common: dict[str, st.SearchStrategy[Any]] = {
    "stage": st.sampled_from(["build", "test", "deploy", ".pre"]),
    "parallel": st.fixed_dictionaries({"matrix": matrix}),
    "variables": variables,
    "needs": needs,
    "rules": rules,
    "when": st.sampled_from(["manual", "always", "on_failure"]),
    "resource_group": texts,
}
default = {
    "tags": lists,
    "timeout": st.sampled_from(["1 day", "1 month", "1 s"]),
    "retry": st.sampled_from([1, 2, {"max": 2, "when": "always"}]),
}
build = st.fixed_dictionaries(
    {"script": st.sampled_from(["echo", ["echo", ["x"]]])},
    optional={
        **common,
        **default,
        "parallel": st.integers(1, 3) | common["parallel"],
        "environment": texts
        | st.fixed_dictionaries(
            {"name": texts}, optional={"url": st.just("x" * 3000), "auto_stop_in": st.just("1 day")}
        ),
        "artifacts": st.fixed_dictionaries(
            {}, optional={"paths": lists, "expire_in": st.sampled_from(["1 day", "900 years"]), "name": texts}
        ),
        "coverage": st.just("/x(\\d+)/"),
        "allow_failure": st.sampled_from([True, {"exit_codes": [1]}]),
        "cache": st.fixed_dictionaries({}, optional={"key": texts, "paths": lists}),
        "image": texts,
        "services": lists,
        "extends": st.just(".hidden"),
    },
)
triggers = [{"include": "a.yml", "strategy": "depend"}, {"include": "a.yml"}, {"project": "x" * 300}]
jobs = st.dictionaries(
    names,
    build | st.fixed_dictionaries({"trigger": st.sampled_from(triggers)}, optional=common),
    min_size=1,
    max_size=5,
)
top = st.fixed_dictionaries(
    {"stages": st.just(["build", "test", "deploy", "x" * 300]), ".hidden": st.just({"interruptible": True})},
    optional={
        "variables": variables,
        "workflow": st.fixed_dictionaries({}, optional={"name": texts, "rules": filters}),
        "default": st.fixed_dictionaries({}, optional=default),
    },
)
files = st.builds(lambda above, below: above | below, top, jobs)


def places(value: Any) -> list[tuple[Any, Any]]:
    """All that stands in lists and hashes: which one, and the index or key there."""
    items = (
        list(value.items() if isinstance(value, dict) else enumerate(value))
        if isinstance(value, dict | list)
        else []
    )
    return [place for key, inner in items for place in [(value, key), *places(inner)]]


@st.composite
def odd_files(draw: st.DrawFn) -> dict[str, Any]:
    """A file in which one thing is odd."""
    file = json.loads(json.dumps(draw(files)))
    holder, key = draw(st.sampled_from(places(file)))
    if isinstance(holder, dict) and draw(st.booleans()):
        holder[draw(st.sampled_from(ODD_KEYS))] = holder.pop(key)
    else:
        holder[key] = draw(st.sampled_from(ODD))
    return dict(file)


@pytest.fixture(scope="session")
async def project(forge: Forge) -> CiProject:
    project = await ci_project(forge)
    await project.commit("a: {script: echo}", path="a.yml")
    return project


async def used(project: CiProject, pipeline_id: int) -> None:
    """What is done with a pipeline goes well: it is shown, canceled, tried again and removed."""
    url = f"{project.url}/pipelines/{pipeline_id}"
    asked = [
        ("GET", f"{url}/jobs"), ("GET", f"{url}/bridges"), ("POST", f"{url}/cancel"), ("POST", f"{url}/retry"),
        ("GET", f"{url}/jobs?include_retried=true"), ("GET", f"{url}/variables"), ("POST", f"{url}/cancel"),
        ("DELETE", url),
    ]  # fmt: skip
    for method, path in asked:
        answer = await project.forge.root.request(method, path)
        assert answer.status in (200, 201, 204), (method, path, answer)


@given(content=files | odd_files(), source=st.sampled_from(["push", "api"]))
@settings(
    max_examples=settings().max_examples * 2 // 5,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
async def test_any_file_gives_a_pipeline_or_says_why_not(
    forge: Forge, project: CiProject, content: dict[str, Any], source: Any
) -> None:
    text = json.dumps(content, ensure_ascii=False)
    await project.api.post(f"{project.url}/ci/lint", {"content": text, "dry_run": True}, expect=200)
    making = maker(forge.server.app[SERVICES])
    sha = making.resolve(project.id, "topic").commit
    wanted = Wanted(
        project_id=project.id,
        ref="topic",
        sha=sha,
        source=source,
        user_id=project.developer.id,
        configuration=text,
    )
    try:
        pipeline_id, refused = await making.make(wanted), None
    except NotMade as problem:
        pipeline_id, refused = 0, problem
    if refused is not None:
        assert (refused.status, bool(refused.errors)) == (400, True)
        assert source == "api" or refused.errors in ((FILTERED,), (NO_JOBS,))
        return
    shown = (await project.api.get(f"{project.url}/pipelines/{pipeline_id}")).body
    assert (shown["yaml_errors"] is not None) == (shown["status"] == "failed")
    assert shown["yaml_errors"] or await queries.pipeline_variables(forge.database, pipeline_id) == []
    await used(project, pipeline_id)


@pytest.mark.parametrize("parallel", ["2", "{matrix: [{A: [1]}]}"])
async def test_jobs_of_one_name_are_one_job_after_a_push_too(forge: Forge, parallel: str) -> None:
    project = await ci_project(forge)
    name = "t 1/2" if parallel == "2" else "t: [1]"
    text = f"t: {{script: echo, parallel: {parallel}}}\n'{name}': {{script: echo later}}\n"
    await project.commit(text, message="Build")

    async def pushed() -> Any:
        return (await project.api.get(f"{project.url}/pipelines?source=push&ref=topic")).body

    (pipeline,) = await eventually(pushed)
    assert pipeline["status"] == "pending"
    assert sorted(await project.statuses(pipeline)) == sorted({name, "t 2/2"} if parallel == "2" else {name})
