"""The limits of the pipelines of a person, a push or a file; no file makes the service fail."""

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_server.ci.config.context import Context
from api_server.ci.config.pipeline import FILTERED, NO_JOBS
from api_server.ci.pipelines import queries, tasks
from api_server.ci.pipelines.creation import PipelineRefused, PipelineRequest, pipeline_maker
from api_server.ci.pipelines.planning import LIMITS, Limits
from api_server.state.errors import Unavailable
from api_server.web.context import SERVICES
from common import interpreter
from common.concurrency import ConcurrencyLimiter
from tests.support.ci import MANUAL_JOB, ONE_JOB, CiProject, ci_project
from tests.support.forge import Forge, SharedForges
from tests.support.git_client import Git, git_url
from tests.support.waiting import until

NewForge = Callable[..., contextlib.AbstractAsyncContextManager[Forge]]

FILE = ".gitlab-ci.yml"
BOMB = "".join(f"again {n}:\n  trigger: {{include: {FILE}}}\n" for n in range(6))
REASONS = """
    SELECT coalesce(failure_reason, status) AS outcome, count(*) FROM jobs
    WHERE project_id = %(id)s AND kind = 'bridge' GROUP BY 1 ORDER BY 1
"""
UNFINISHED = """
    SELECT EXISTS (
            SELECT FROM jobs WHERE project_id = %(id)s AND kind = 'bridge'
                AND status NOT IN ('success', 'failed', 'skipped'))
        OR EXISTS (SELECT FROM procrastinate_jobs WHERE task_name LIKE '%%downstream%%' AND status IN ('todo', 'doing'))
"""
#: Pipelines of a project, except skipped ones of commits.
PIPELINES = "SELECT count(*) FROM pipelines WHERE project_id = %(id)s AND status <> 'skipped'"


@pytest.fixture
async def idle(shared_forge: SharedForges) -> AsyncIterator[Forge]:
    """A server whose queued work the tests do themselves."""
    forge = await shared_forge()
    with forge.changed_settings(pipeline_hierarchy_size=3, active_jobs_limit=3, pipeline_rate_limit=4):
        yield forge


async def outcomes(project: CiProject) -> dict[str, int]:
    """Return how often each reason or status of bridges occurs, when queued work is done."""

    async def is_done() -> bool:
        return not await project.forge.database.value(UNFINISHED, id=project.id)

    if project.forge.settings.work:
        await until(is_done, 30)
    return {row.outcome: row.count for row in await project.forge.database.rows(REASONS, id=project.id)}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1000, {"success": 6 + 36, "reached_max_descendant_pipelines_depth": 6**3}),
        (20, {"success": 19, "reached_max_pipeline_hierarchy_size": None}),
    ],
)
async def test_a_file_that_starts_itself_six_times_comes_to_an_end(
    forge: Forge, size: int, expected: dict[str, int | None]
) -> None:
    with forge.changed_settings(pipeline_hierarchy_size=size):
        project = await ci_project(forge)
        await project.commit(BOMB)
        assert (await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})).status == 201
        found = await outcomes(project)
        assert {reason: found[reason] for reason, count in expected.items() if count} == {
            reason: count for reason, count in expected.items() if count
        }
        assert found.keys() >= expected.keys()
        assert await forge.database.value(PIPELINES, id=project.id) == found["success"] + 1


async def test_projects_that_start_each_other_in_a_circle_come_to_an_end(forge: Forge) -> None:
    here, there = await ci_project(forge), await ci_project(forge)
    for project, other in ((here, there), (there, here)):
        await project.commit(f"other:\n  trigger: {other.path}\n", branch="main")
    assert (await forge.root.post(f"{here.url}/pipeline", {"ref": "main"})).status == 201
    # The first pipeline is created by `api`; then each project creates one by `pipeline`, until the first would be
    # repeated.
    assert await outcomes(here) == {"success": 2}
    assert await outcomes(there) == {"success": 1, "pipeline_loop_detected": 1}
    assert [await forge.database.value(PIPELINES, id=one.id) for one in (here, there)] == [2, 2]


async def bridges_of(project: CiProject, text: str, branch: str = "topic") -> list[int]:
    await project.commit(text, branch=branch)
    made = await project.forge.root.post(f"{project.url}/pipeline", {"ref": branch}, expect=201)
    return [job["id"] for job in (await project.bridges(made.body)).values()]


async def test_bridges_that_run_at_once_do_not_pass_the_bound_together(idle: Forge) -> None:
    here, there = await ci_project(idle), await ci_project(idle)
    await here.commit(MANUAL_JOB, path="child.yml")
    await there.commit(MANUAL_JOB, branch="main")
    text = "".join(
        f"child {n}:\n  trigger: {{include: child.yml}}\nelsewhere {n}:\n  trigger: {there.path}\n"
        for n in range(4)
    )
    bridges = await bridges_of(here, text)
    assert len(bridges) == 8
    await asyncio.gather(
        *(tasks.start_bridge(pipeline_maker(idle.server.app[SERVICES]), bridge) for bridge in bridges)
    )
    assert await outcomes(here) == {"reached_max_pipeline_hierarchy_size": 6, "success": 2}
    made = [await idle.database.value(PIPELINES, id=one.id) for one in (here, there)]
    assert sum(made) == 3


async def test_a_hierarchy_whose_first_pipeline_was_removed_does_not_begin_anew(idle: Forge) -> None:
    project = await ci_project(idle)
    await project.commit("inner:\n  trigger: {include: leaf.yml}\n", path="child.yml")
    await project.commit(MANUAL_JOB, path="leaf.yml")
    (bridge,) = await bridges_of(project, "outer:\n  trigger: {include: child.yml}\n")
    await tasks.start_bridge(pipeline_maker(idle.server.app[SERVICES]), bridge)
    of_project = "SELECT id FROM pipelines WHERE project_id = %(id)s ORDER BY id"
    first, child = await idle.database.rows(of_project, id=project.id)
    inner = (await project.bridges({"id": child.id}))["inner"]["id"]
    assert (await idle.root.delete(f"{project.url}/pipelines/{first.id}")).status == 204
    await tasks.start_bridge(pipeline_maker(idle.server.app[SERVICES]), inner)
    assert await outcomes(project) == {"reached_max_pipeline_hierarchy_size": 1}


async def test_pipelines_for_one_commit_are_counted_by_the_minute(idle: Forge) -> None:
    project = await ci_project(idle)
    await project.commit(MANUAL_JOB)
    for expected in (201, 201, 201, 201, 429):
        answer = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
        assert answer.status == expected, answer
    assert answer.body == {
        "message": {"base": ["Too many pipelines created in the last minute. Try again later."]}
    }
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    assert (await idle.root.post(f"{project.url}/pipeline", {"ref": "topic"})).status == 201, "somebody else"
    await project.commit(f"{MANUAL_JOB}# another commit\n")
    assert (await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})).status == 201


async def test_a_project_full_of_unfinished_jobs_gets_no_pipeline(idle: Forge) -> None:
    project = await ci_project(idle)
    pipeline = await project.pipeline(
        "a: {script: echo}\nb: {script: echo}\nc: {script: echo, stage: deploy}\n"
    )
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
    assert refused.body == {
        "message": {"base": ["Project exceeded the allowed number of jobs in active pipelines. Retry later."]}
    }
    assert await idle.database.value(PIPELINES, id=project.id) == 1, "nothing half done"
    other = await ci_project(idle)
    await other.pipeline()
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")
    assert (await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})).status == 201


async def test_a_push_of_many_branches_and_tags_makes_its_first_pipelines_only(
    forge: Forge, tmp_path: Path
) -> None:
    project = await ci_project(forge)
    git = Git(tmp_path)
    await git.init()
    await git.commit_files({FILE: ONE_JOB})
    refs = [*(f"refs/heads/b{n}" for n in range(3)), *(f"refs/tags/t{n}" for n in range(3))]
    await git(
        "push", "--quiet", git_url(forge, project.path, project.developer), *(f"HEAD:{ref}" for ref in refs)
    )

    listed = await project.api.until(f"{project.url}/pipelines", lambda listed: len(listed) >= 4)
    assert {pipeline["ref"] for pipeline in listed} == {"b0", "b1", "b2", "t0"}
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'create_pushed_pipeline' AND {}"
    queued = waiting.format("args ->> 'project_id' = %(id)s::text")
    assert await forge.database.value(queued, id=project.id) <= 4
    listed = (await project.api.get(f"{project.url}/repository/branches")).body
    assert {branch["name"] for branch in listed} == {"main", "b0", "b1", "b2"}, "the push itself is whole"


async def test_files_of_one_project_that_take_long_leave_others_a_place(idle: Forge) -> None:
    limits = Limits(idle.server.app[SERVICES].settings)
    making, go_on = attrs.evolve(pipeline_maker(idle.server.app[SERVICES]), limits=limits), threading.Event()

    def wait(_text: str, _context: Context) -> bool:
        return go_on.wait()

    try:
        planning = [asyncio.create_task(making.in_thread(wait, "", Context(project_id=1))) for _ in range(2)]
        await until(lambda: limits.planning.in_use)
        assert gc.get_threshold()[2] == interpreter._NEVER, "a file makes a million objects"
        assert await making.in_thread(lambda *_: "done", "", Context(project_id=2)) == "done"
    finally:
        go_on.set()
    assert await asyncio.gather(*planning) == [True, True]


async def test_files_are_planned_a_few_at_a_time(idle: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = idle.server.app[SERVICES][LIMITS]
    monkeypatch.setattr(limits, "planning", ConcurrencyLimiter(2, 2))
    making, go_on = pipeline_maker(idle.server.app[SERVICES]), threading.Event()

    def wait(_text: str, _context: Context) -> bool:
        return go_on.wait()

    try:
        planning = [asyncio.create_task(making.in_thread(wait, "", Context())) for _ in range(2)]
        while limits.planning.in_use < 2:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await making.in_thread(wait, "", Context())
        project = await ci_project(idle)
        answer = await project.api.post(f"{project.url}/ci/lint", {"content": ONE_JOB})
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    finally:
        go_on.set()
    assert await asyncio.gather(*planning) == [True, True]


NAMES = ["t", "t 1/2", "t 2/2", "t 1/2 1/2", "t: [a]", "t: [1]", "é" * 245, "404", "null", "😀", "pages"]
#: Odd values that replace one value of some files; ODD_KEYS replace keys.
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
    """Return all places in lists and hashes: the container, and the index or key in it."""
    items = (
        list(value.items() if isinstance(value, dict) else enumerate(value))
        if isinstance(value, dict | list)
        else []
    )
    return [place for key, inner in items for place in [(value, key), *places(inner)]]


@st.composite
def odd_files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a file with one odd value or key."""
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
    """Show, cancel, retry and remove a pipeline; each request has to succeed."""
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
    making = pipeline_maker(forge.server.app[SERVICES])
    sha = making.resolve(project.id, "topic").commit
    wanted = PipelineRequest(
        project_id=project.id,
        ref="topic",
        sha=sha,
        source=source,
        user_id=project.developer.id,
        configuration=text,
    )
    try:
        pipeline_id, refused = await making.make(wanted), None
    except PipelineRefused as problem:
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

    (pipeline,) = await project.api.until(f"{project.url}/pipelines?source=push&ref=topic")
    assert pipeline["status"] == "pending"
    assert sorted(await project.statuses(pipeline)) == sorted({name, "t 2/2"} if parallel == "2" else {name})
