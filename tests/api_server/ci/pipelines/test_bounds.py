"""What pipelines one person, one push or one file can have."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.ci.config.context import Context
from api_server.ci.pipelines import tasks
from api_server.ci.pipelines.creation import maker
from api_server.ci.pipelines.planning import LIMITS, Limits
from api_server.state.errors import Unavailable
from api_server.web.context import SERVICES
from common import loop_watch
from common.concurrency import ConcurrencyLimiter
from tests.support.ci import MANUAL_JOB, ONE_JOB, CiProject, ci_project, eventually
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
#: Those that commits have asked to be skipped aside.
PIPELINES = "SELECT count(*) FROM pipelines WHERE project_id = %(id)s AND status <> 'skipped'"


@pytest.fixture
async def idle(shared_forge: SharedForges) -> AsyncIterator[Forge]:
    """Queued work is done by the tests themselves."""
    forge = await shared_forge()
    with forge.changed_settings(pipeline_hierarchy_size=3, active_jobs_limit=3, pipeline_rate_limit=4):
        yield forge


async def outcomes(project: CiProject) -> dict[str, int]:
    """What became of the bridges, when queued work is done: reasons or statuses, and how many of each."""

    async def is_done() -> bool:
        return not await project.forge.database.value(UNFINISHED, id=project.id)

    if project.forge.settings.work:
        await eventually(is_done, 30)
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
    # The first by `api`; then each of them once by `pipeline`, until one would come a second time.
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
        *(tasks.start_bridge(maker(idle.server.app[SERVICES]), bridge) for bridge in bridges)
    )
    assert await outcomes(here) == {"reached_max_pipeline_hierarchy_size": 6, "success": 2}
    made = [await idle.database.value(PIPELINES, id=one.id) for one in (here, there)]
    assert sum(made) == 3


async def test_a_hierarchy_whose_first_pipeline_was_removed_does_not_begin_anew(idle: Forge) -> None:
    project = await ci_project(idle)
    await project.commit("inner:\n  trigger: {include: leaf.yml}\n", path="child.yml")
    await project.commit(MANUAL_JOB, path="leaf.yml")
    (bridge,) = await bridges_of(project, "outer:\n  trigger: {include: child.yml}\n")
    await tasks.start_bridge(maker(idle.server.app[SERVICES]), bridge)
    of_project = "SELECT id FROM pipelines WHERE project_id = %(id)s ORDER BY id"
    first, child = await idle.database.rows(of_project, id=project.id)
    inner = (await project.bridges({"id": child.id}))["inner"]["id"]
    assert (await idle.root.delete(f"{project.url}/pipelines/{first.id}")).status == 204
    await tasks.start_bridge(maker(idle.server.app[SERVICES]), inner)
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

    async def made() -> list[dict[str, Any]] | None:
        listed = (await project.api.get(f"{project.url}/pipelines")).body
        return listed if len(listed) >= 4 else None

    assert {pipeline["ref"] for pipeline in await eventually(made)} == {"b0", "b1", "b2", "t0"}
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'create_pushed_pipeline' AND {}"
    queued = waiting.format("args ->> 'project_id' = %(id)s::text")
    assert await forge.database.value(queued, id=project.id) <= 4
    listed = (await project.api.get(f"{project.url}/repository/branches")).body
    assert {branch["name"] for branch in listed} == {"main", "b0", "b1", "b2"}, "the push itself is whole"


async def test_files_of_one_project_that_take_long_leave_others_a_place(idle: Forge) -> None:
    limits = Limits(idle.server.app[SERVICES].settings)
    making, go_on = attrs.evolve(maker(idle.server.app[SERVICES]), limits=limits), threading.Event()

    def wait(_text: str, _context: Context) -> bool:
        return go_on.wait()

    try:
        planning = [asyncio.create_task(making.in_thread(wait, "", Context(project_id=1))) for _ in range(2)]
        await until(lambda: limits.planning.held)
        assert gc.get_threshold()[2] == loop_watch._NEVER, "a file makes a million objects"
        assert await making.in_thread(lambda *_: "done", "", Context(project_id=2)) == "done"
    finally:
        go_on.set()
    assert await asyncio.gather(*planning) == [True, True]


async def test_files_are_planned_a_few_at_a_time(idle: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = idle.server.app[SERVICES][LIMITS]
    monkeypatch.setattr(limits, "planning", ConcurrencyLimiter(2, 2))
    making, go_on = maker(idle.server.app[SERVICES]), threading.Event()

    def wait(_text: str, _context: Context) -> bool:
        return go_on.wait()

    try:
        planning = [asyncio.create_task(making.in_thread(wait, "", Context())) for _ in range(2)]
        while limits.planning.held < 2:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await making.in_thread(wait, "", Context())
        project = await ci_project(idle)
        answer = await project.api.post(f"{project.url}/ci/lint", {"content": ONE_JOB})
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    finally:
        go_on.set()
    assert await asyncio.gather(*planning) == [True, True]
