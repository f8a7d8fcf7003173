# mypy: disable-error-code="empty-body"
"""Statements about commit statuses."""

import datetime
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

_STATUS = read_sql(__package__)["commit_status"]

#: A condition on rows `pipelines`: those that contain a commit's statuses or can take new ones.
_OF_COMMIT = """
    pipelines.project_id = %(project_id)s AND pipelines.sha = %(sha)s AND pipelines.source <> 'parent_pipeline'
    AND (%(pipeline_id)s::bigint IS NULL OR pipelines.id = %(pipeline_id)s)
"""
LISTING = ListQuery(
    _STATUS,
    f"""
    SELECT jobs.id, jobs.pipeline_id, jobs.status, jobs.name, jobs.target_url, jobs.description, jobs.created_at,
        jobs.started_at, jobs.finished_at, jobs.allow_failure, jobs.coverage, jobs.user_id
    FROM pipelines JOIN jobs ON jobs.pipeline_id = pipelines.id
    WHERE {_OF_COMMIT} AND (%(ref)s::text IS NULL OR pipelines.ref = %(ref)s)
        AND (%(all)s OR NOT jobs.retried)
        AND (%(stage)s::text IS NULL OR jobs.stage = %(stage)s)
        AND (%(name)s::text IS NULL OR jobs.name = %(name)s)
    """,
    {"pipeline_id": "pipeline_id"},
)


async def list_statuses(
    database: Executor, page: Page, project_id: int, sha: str, **filters: object
) -> ListPage:
    """Return a page of everything that counts in the status of a commit, including builds and bridges. Filter
    by `ref`, `stage`, `name` and `pipeline_id` (None: any); include retried jobs only with `all`."""
    return await LISTING.read(database, page, project_id=project_id, sha=sha, **filters)


@attrs.frozen
class JoinedPipeline:
    """The pipeline that a status joins; `ref` is a short name, or that of a merge request's head."""

    id: int
    ref: str
    tag: bool
    #: The branch or tag whose protection decides who may set a status.
    judged_by: str


_JOINED = f"""
    SELECT pipelines.id, pipelines.ref, pipelines.tag, coalesce(pipelines.source_branch, pipelines.ref) AS judged_by
    FROM pipelines
    WHERE {_OF_COMMIT} AND (%(ref)s::text IS NULL OR pipelines.ref = %(ref)s AND pipelines.tag = %(tag)s)
        AND (%(archived_before)s::timestamptz IS NULL OR pipelines.created_at >= %(archived_before)s)
    ORDER BY pipelines.id DESC LIMIT 1
"""
LOCK_JOINED = Query(f"{_JOINED} FOR UPDATE", JoinedPipeline)


@statement(_JOINED)
async def find_joined(
    database: Executor,
    project_id: int,
    sha: str,
    *,
    ref: str | None,
    tag: bool,
    pipeline_id: int | None,
    archived_before: datetime.datetime | None,
) -> JoinedPipeline | None:
    """Return the newest pipeline of the commit, restricted to that ref and id if given."""


HOLD_COMMIT = """
    SELECT pg_advisory_xact_lock(hashtextextended('statuses:' || %(project_id)s || ':' || %(sha)s, 20))
"""


async def lock_joined(
    transaction: Transaction, project_id: int, sha: str, **criteria: object
) -> JoinedPipeline | None:
    """Find the pipeline like `find_joined`, and lock it. Other reports about the commit wait until the
    transaction ends, so that two first statuses create one pipeline."""
    await transaction.run(HOLD_COMMIT, project_id=project_id, sha=sha)
    return await transaction.row(LOCK_JOINED, project_id=project_id, sha=sha, **criteria)


@attrs.frozen
class LatestJob:
    """The latest job of a name in its pipeline."""

    id: int
    kind: str
    status: str
    user_id: int | None


@statement("""
    SELECT jobs.id, jobs.kind, jobs.status, jobs.user_id FROM jobs
    WHERE jobs.pipeline_id = %(pipeline_id)s AND jobs.name = %(name)s AND NOT jobs.retried
    """)
async def latest_of_name(transaction: Transaction, pipeline_id: int, name: str) -> LatestJob | None: ...


@statement("""
    UPDATE jobs SET retried = true WHERE id = %(status_id)s
""")
async def retire(transaction: Transaction, status_id: int) -> None:
    """Mark the status as replaced, before adding its successor."""


#: The index sorts it behind all stages that a file can have.
@statement("""
    INSERT INTO jobs (project_id, pipeline_id, kind, name, stage, stage_index, when_run, allow_failure, protected, plan,
        user_id, created_at)
    SELECT pipelines.project_id, pipelines.id, 'external', %(name)s, 'external', 1000000, 'on_success', false,
        pipelines.protected, '{}', %(user_id)s, %(now)s
    FROM pipelines WHERE pipelines.id = %(pipeline_id)s
    RETURNING id, kind, status, user_id
    """)
async def add(transaction: Transaction, pipeline_id: int, name: str, user_id: int) -> LatestJob:
    """Add a new status, `created`. The pipeline has to be locked and have no other current job of that
    name."""


@statement(
    entity_statement(
        _STATUS,
        """
    UPDATE jobs SET target_url = coalesce(%(target_url)s, target_url),
        description = coalesce(%(description)s, description), coverage = coalesce(%(coverage)s, coverage)
    WHERE id = %(status_id)s RETURNING *
    """,
    )
)
async def describe(transaction: Transaction, status_id: int, **values: Any) -> str:
    """Set the details other than the state (None: unchanged), and return the status as the API shows it."""
