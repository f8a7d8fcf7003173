"""The hand-out's choice is the one that its rule, said in the plainest SQL, would make of all jobs that wait."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import attrs
import psycopg2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_server.ci.runners import job_queries
from api_server.ci.runners.job_queries import Choice, choose_job
from tests.support.waiting_jobs import JOB, NAMESPACES, PROJECT, RUNNER, TAKE

#: All jobs that wait and the runner may have: of the project with the fewest in runners' hands the oldest.
RULE = """
    WITH busy AS (
        SELECT project_id, count(*) AS running FROM jobs
        WHERE status IN ('running', 'canceling') AND kind = 'build' GROUP BY project_id
    )
    SELECT jobs.id FROM runners
    JOIN jobs ON (jobs.tag_list <@ runners.tag_list OR %(star_is_any)s AND '*' = ANY (runners.tag_list))
        AND (jobs.tag_list <> '{}' OR runners.run_untagged)
        AND (jobs.protected OR runners.access_level <> 'ref_protected')
    JOIN projects ON projects.id = jobs.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    LEFT JOIN busy ON busy.project_id = jobs.project_id
    WHERE runners.id = %(runner_id)s AND runners.active AND jobs.status = 'pending' AND jobs.kind = 'build'
        AND projects.builds_access_level <> 'disabled' AND NOT projects.archived
        AND CASE runners.runner_type
            WHEN 'instance_type' THEN true
            WHEN 'group_type' THEN runners.namespace_id = ANY (namespaces.lineage)
            ELSE EXISTS (SELECT FROM runner_projects
                WHERE runner_projects.runner_id = runners.id AND runner_projects.project_id = jobs.project_id) END
    ORDER BY coalesce(busy.running, 0), jobs.id LIMIT 1
    FOR UPDATE OF jobs SKIP LOCKED
"""
LOCK = "SELECT FROM jobs WHERE id = ANY (%(ids)s::bigint[]) FOR UPDATE"
CLEAR = "DELETE FROM jobs; DELETE FROM runners; DELETE FROM pipelines; DELETE FROM projects"

PROJECTS = (1, 2, 3, 4)
tag_lists = st.lists(st.sampled_from(["a", "b", "*"]), max_size=2)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "project": draw(st.sampled_from(PROJECTS)),
        "kind": draw(st.sampled_from(["build", "build", "build", "bridge"])),
        "status": draw(st.sampled_from(["pending"] * 4 + ["running", "canceling", "success", "created"])),
        "tags": draw(tag_lists),
        "protected": draw(st.booleans()),
    }


@st.composite
def runners(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["instance_type", "group_type", "project_type"]))
    return {
        "type": kind,
        "namespace": draw(st.sampled_from([1, 2, 3])) if kind == "group_type" else None,
        "projects": draw(st.sets(st.sampled_from(PROJECTS))) if kind == "project_type" else set(),
        "tags": draw(tag_lists),
        "untagged": draw(st.booleans()),
        "access": draw(st.sampled_from(["not_protected", "ref_protected"])),
        "active": draw(st.sampled_from([True, True, True, False])),
    }


@st.composite
def projects(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "namespace": draw(st.sampled_from([1, 2, 3])),
            "archived": draw(st.sampled_from([False, False, False, True])),
            "builds": draw(st.sampled_from(["enabled", "private", "enabled", "disabled"])),
        }
        for number in PROJECTS
    ]


@pytest.fixture(scope="module")
def connections(new_database) -> Iterator[tuple[Any, Any]]:
    """To a database of its own: one that chooses, and another one that holds rows meanwhile."""
    url = new_database()
    with contextlib.closing(psycopg2.connect(url)) as one, contextlib.closing(psycopg2.connect(url)) as other:
        one.cursor().execute(NAMESPACES)
        one.commit()
        yield one, other


@attrs.frozen
class Asking:
    """As much of a transaction as the choice needs."""

    cursor: Any

    async def one(self, statement: str, **parameters: Any) -> Choice:
        self.cursor.execute(statement, parameters)
        return Choice(*self.cursor.fetchone())


@settings(max_examples=settings().max_examples // 2)
@given(
    projects(),
    st.lists(jobs(), max_size=40),
    runners(),
    st.booleans(),
    st.sets(st.integers(0, 39)),
    st.booleans(),
)
def test_it_takes_the_jobs_that_the_rule_takes(connections, made, waiting, runner, star, held, gone) -> None:
    """One after the other, until nothing is left, while others hold some of them."""
    one, other = connections
    cursor = one.cursor()
    try:
        for project in made:
            cursor.execute(PROJECT, project)
        ids = []
        for number, job in enumerate(waiting):
            cursor.execute(JOB, job | {"name": str(number)})
            ids.append(cursor.fetchone()[0])
        cursor.execute(RUNNER, runner)
        runner_id = cursor.fetchone()[0]
        for project_id in runner["projects"]:
            cursor.execute("INSERT INTO runner_projects VALUES (%s, %s)", [runner_id, project_id])
        if gone:  # its jobs go after it, step by step
            cursor.execute("DELETE FROM projects WHERE id = 1")
        one.commit()
        other.cursor().execute(LOCK, {"ids": [ids[number] for number in held if number < len(ids)]})
        _take_all(cursor, runner_id, star)
    finally:
        other.rollback()
        one.rollback()
        cursor.execute(CLEAR)
        one.commit()


def _take_all(cursor: Any, runner_id: int, star: bool) -> None:
    while True:
        cursor.execute("SAVEPOINT before")
        cursor.execute(RULE, {"runner_id": runner_id, "star_is_any": star})
        right = cursor.fetchone()
        cursor.execute("ROLLBACK TO before")
        chosen = asyncio.run(choose_job(Asking(cursor), runner_id, star_is_any=star))  # type: ignore[arg-type]
        assert chosen == (right and right[0])
        if chosen is None:
            return
        cursor.execute(TAKE, {"id": chosen})


def test_it_looks_further_where_others_hold_all_that_it_looked_at(connections) -> None:
    one, other = connections
    cursor, depth = one.cursor(), job_queries.FIRST_DEPTH
    try:
        cursor.execute(PROJECT, {"id": 1, "namespace": 1, "archived": False, "builds": "enabled"})
        job = {"project": 1, "kind": "build", "status": "pending", "tags": [], "protected": False}
        ids = []
        for number in range(9 * depth):
            cursor.execute(JOB, job | {"name": str(number)})
            ids.append(cursor.fetchone()[0])
        runner = {"type": "instance_type", "namespace": None, "tags": [], "untagged": True}
        cursor.execute(RUNNER, runner | {"access": "not_protected", "active": True})
        (runner_id,) = cursor.fetchone()
        one.commit()
        other.cursor().execute(LOCK, {"ids": ids[:-1]})
        assert asyncio.run(choose_job(Asking(cursor), runner_id, star_is_any=False)) == ids[-1]  # type: ignore[arg-type]
    finally:
        other.rollback()
        one.rollback()
        cursor.execute(CLEAR)
        one.commit()
