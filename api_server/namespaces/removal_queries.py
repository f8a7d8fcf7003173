# mypy: disable-error-code="empty-body"
"""Statements that remove projects and namespaces."""

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@statement("""
    SELECT projects.id FROM projects WHERE projects.id = %(project_id)s FOR UPDATE
""")
async def lock_project(transaction: Transaction, project_id: int) -> None:
    """Lock the project, waiting for transactions that create something in it."""


REMOVE_PROJECT = """
    DELETE FROM projects WHERE id = %(id)s RETURNING full_path
"""


async def remove_project(transaction: Transaction, project_id: int) -> str | None:
    """Remove a project and return its former full path, or None if it does not exist."""
    full_path: str | None = await transaction.value(REMOVE_PROJECT, id=project_id)
    return full_path


@statement("""
    DELETE FROM jobs
    WHERE jobs.project_id = %(project_id)s AND jobs.kind = 'build' AND jobs.status IN ('running', 'canceling')
""")
async def end_jobs(transaction: Transaction, project_id: int) -> None:
    """Delete the jobs that runners are running, so that their tokens become invalid."""


#: Rows of a removed project. Pipelines are taken in their order, so that none is looked at twice.
_OLDEST = """
    SELECT pipelines.id FROM pipelines
    WHERE pipelines.project_id = %(id)s AND NOT EXISTS (SELECT FROM projects WHERE projects.id = %(id)s)
    ORDER BY pipelines.id LIMIT %(pipelines)s
"""
REMOVE_JOBS = f"""
    DELETE FROM jobs WHERE jobs.id IN (
        SELECT jobs.id FROM ({_OLDEST}) oldest JOIN jobs ON jobs.pipeline_id = oldest.id LIMIT %(jobs)s)
"""
REMOVE_PIPELINES = f"""
    DELETE FROM pipelines WHERE pipelines.id IN ({_OLDEST})
"""


async def remove_jobs(transaction: Transaction, project_id: int, pipelines: int, jobs: int) -> int:
    """Remove at most `jobs` jobs of its `pipelines` oldest pipelines, with their artifacts and logs, and
    return their number."""
    return await transaction.run(REMOVE_JOBS, id=project_id, pipelines=pipelines, jobs=jobs)


async def remove_pipelines(transaction: Transaction, project_id: int, pipelines: int) -> int:
    """Remove that many of the oldest pipelines, with their remaining jobs, and return their number."""
    return await transaction.run(REMOVE_PIPELINES, id=project_id, pipelines=pipelines)


@statement("""
    SELECT projects.id FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[] ORDER BY projects.id
    """)
async def projects_below(database: Executor, namespace_id: int) -> list[int]:
    """Return the ids of the projects in the namespace and in the groups below it."""


@attrs.frozen
class RemovedGroup:
    id: int
    full_path: str


@statement("""
    WITH gone AS (DELETE FROM namespaces WHERE lineage @> ARRAY[%(namespace_id)s]::bigint[] RETURNING *)
    SELECT gone.id, gone.full_path FROM gone WHERE gone.kind = 'group' ORDER BY cardinality(gone.lineage) DESC, gone.id
    """)
async def remove_with_groups_below(transaction: Transaction, namespace_id: int) -> list[RemovedGroup]:
    """Remove the namespace and the groups below it. Return the removed groups, the lowest first."""
