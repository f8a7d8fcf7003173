# mypy: disable-error-code="empty-body"
"""Statements about pipelines."""

import datetime
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import attrs

from api_server.ci.pipelines.states import Status
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

ENTITIES = read_sql(__package__)

#: Filters of a list. Conditions that are not needed are left out of the statement instead of being disabled
#: in it, because then the planner can estimate the number of rows and choose a suitable index.
_CONDITIONS = {
    "statuses": "pipelines.status = ANY (%(statuses)s::text[])",
    "status": "pipelines.status = %(status)s",  # with one status, an index yields the list's order
    "source": "pipelines.source = %(source)s",
    "ref": "pipelines.ref = %(ref)s",
    "sha": "pipelines.sha = %(sha)s",
    "name": "pipelines.name = %(name)s",
    "yaml_errors": "(pipelines.yaml_errors IS NOT NULL) = %(yaml_errors)s::boolean",
    "username": "pipelines.user_id = (SELECT id FROM users WHERE lower(users.username) = lower(%(username)s))",
    "updated_after": "pipelines.updated_at > %(updated_after)s::timestamptz",
    "updated_before": "pipelines.updated_at < %(updated_before)s::timestamptz",
    "created_after": "pipelines.created_at > %(created_after)s::timestamptz",
    "created_before": "pipelines.created_at < %(created_before)s::timestamptz",
}
FILTERS = tuple(name for name in _CONDITIONS if name not in ("statuses", "status"))
#: Child pipelines are listed only on request (decision D11).
_NO_CHILDREN = "pipelines.source <> 'parent_pipeline'"
#: One index look-up for each ref instead of one for each pipeline.
_REFS = """
    WITH RECURSIVE refs AS (
        (SELECT pipelines.ref FROM pipelines
        WHERE pipelines.project_id = %(project_id)s ORDER BY pipelines.ref LIMIT 1)
        UNION ALL
        SELECT (
            SELECT pipelines.ref FROM pipelines
            WHERE pipelines.project_id = %(project_id)s AND pipelines.ref > refs.ref
            ORDER BY pipelines.ref LIMIT 1
        ) FROM refs WHERE refs.ref IS NOT NULL
    )
    SELECT refs.ref FROM refs
"""


_OF_PROJECT = """
    SELECT pipelines.* FROM pipelines WHERE pipelines.project_id = %(project_id)s AND {source} AND {narrowed}
"""
_NEWEST_OF_REFS = f"""
    SELECT pipelines.* FROM ({_REFS}) refs CROSS JOIN LATERAL (
        SELECT pipelines.* FROM pipelines
        WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = refs.ref AND pipelines.tag = %(of_tags)s
            AND pipelines.source_branch IS NULL AND {{source}}
        ORDER BY pipelines.id DESC LIMIT 1
    ) pipelines WHERE {{narrowed}}
"""


@cache
def _listing(rows: str, conditions: frozenset[str] = frozenset()) -> ListQuery:
    """Return the list of those `rows` for which the named conditions hold."""
    source = _CONDITIONS["source"] if "source" in conditions else _NO_CHILDREN
    narrowed = " AND ".join(_CONDITIONS[name] for name in sorted(conditions - {"source"})) or "true"
    orders = {"status": "status", "ref": "ref", "updated_at": "updated_at", "user_id": "user_id"}
    rows = rows.format(source=source, narrowed=narrowed)
    return ListQuery(ENTITIES["pipeline_in_list"], rows, orders, planned_once=not conditions)


LISTING = _listing(_OF_PROJECT)


async def list_pipelines(
    database: Executor,
    page: Page,
    project_id: int,
    newest_of: Literal["branches", "tags"] | None,
    filters: Mapping[str, Any],
) -> ListPage:
    """Return a project's pipelines that match `statuses` and `FILTERS` (None: no filter).

    With `newest_of`, include only the newest of each ref. Include child pipelines only if `source` requests
    them.
    """
    conditions = {name: value for name, value in filters.items() if value is not None}
    if len(conditions.get("statuses", ())) == 1:
        (conditions["status"],) = conditions.pop("statuses")
    listing = _listing(_OF_PROJECT if newest_of is None else _NEWEST_OF_REFS, frozenset(conditions))
    if newest_of is not None:
        conditions["of_tags"] = newest_of == "tags"
    return await listing.read(database, page, project_id=project_id, **conditions)


OF_MERGE_REQUEST = ListQuery(
    ENTITIES["pipeline_in_list"],
    """
    SELECT pipelines.* FROM pipelines WHERE pipelines.id IN (
        SELECT own.id FROM pipelines own
        WHERE own.merge_request_id = %(id)s AND own.source <> 'parent_pipeline'
        UNION ALL
        SELECT of_branch.id FROM pipelines of_branch
        WHERE of_branch.project_id = %(project_id)s AND of_branch.sha = ANY (%(shas)s::text[])
            AND of_branch.ref = %(ref)s AND NOT of_branch.tag AND of_branch.source <> 'parent_pipeline')
    """,
)


async def list_pipelines_of_merge_request(
    database: Executor, page: Page, merge_request_id: int, *, project_id: int, branch: str, shas: list[str]
) -> ListPage:
    """Return a merge request's own pipelines, and those of its source branch for any of these commits,
    without child pipelines."""
    return await OF_MERGE_REQUEST.read(
        database, page, id=merge_request_id, project_id=project_id, ref=branch, shas=shas
    )


@statement(
    entity_statement(
        ENTITIES["pipeline"],
        "SELECT pipelines.* FROM pipelines WHERE project_id = %(project_id)s AND id = %(pipeline_id)s",
    )
)
async def show_pipeline(database: Executor, project_id: int, pipeline_id: int) -> str: ...


@statement(
    entity_statement(
        ENTITIES["pipeline"],
        """
    SELECT pipelines.* FROM pipelines
    WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = %(ref)s AND pipelines.tag = %(tag)s
        AND pipelines.source <> 'parent_pipeline'
    ORDER BY pipelines.id DESC LIMIT 1
    """,
    )
)
async def show_latest_pipeline(database: Executor, project_id: int, ref: str, *, tag: bool) -> str:
    """Return the newest pipeline of a branch or tag, except child pipelines."""


@attrs.frozen
class Pipeline:
    """A pipeline with the data for its jobs and for the rights to change it; `ref` is the short name of the
    branch or tag whose protection decides."""

    id: int
    user_id: int | None
    ref: str
    tag: bool
    created_at: datetime.datetime


#: The pipelines of a removed project are deleted later, in steps.
@statement(
    """
    SELECT pipelines.id, pipelines.user_id, coalesce(pipelines.source_branch, pipelines.ref) AS ref, pipelines.tag,
        pipelines.created_at
    FROM pipelines JOIN projects ON projects.id = pipelines.project_id
    WHERE pipelines.project_id = %(project_id)s AND pipelines.id = %(pipeline_id)s
    """,
    prepared=True,
)
async def find_pipeline(database: Executor, project_id: int, pipeline_id: int) -> Pipeline:
    """Return the pipeline. Raise NotFound if it does not belong to the project."""


@attrs.frozen
class PipelineVariable:
    """A variable that was given to a pipeline when it was started; its value is encrypted."""

    key: str
    value: bytes
    variable_type: str


@statement("""
    SELECT pipeline_variables.key, pipeline_variables.value, pipeline_variables.variable_type
    FROM pipeline_variables WHERE pipeline_variables.pipeline_id = %(pipeline_id)s ORDER BY pipeline_variables.id
    """)
async def pipeline_variables(database: Executor, pipeline_id: int) -> list[PipelineVariable]: ...


LOCK_PIPELINE = """
    SELECT pipelines.id FROM pipelines WHERE pipelines.id = %(id)s FOR UPDATE
"""


async def lock_pipeline(transaction: Transaction, pipeline_id: int) -> bool:
    """Lock the pipeline and return whether it exists. Every transaction that changes its jobs locks it first,
    so that each sees the changes of the others."""
    return await transaction.value(LOCK_PIPELINE, id=pipeline_id) is not None


@attrs.frozen
class PipelineFollowers:
    """The followers of a pipeline's status: the bridge that started it, bridges that mirror it, and a merge
    request that is merged automatically when it succeeds."""

    source_job_id: int | None
    is_mirrored: bool
    is_awaited: bool


@statement("""
    UPDATE pipelines SET
        status = %(status)s,
        updated_at = %(now)s,
        started_at = CASE WHEN %(status)s IN ('running', 'success', 'failed')
            THEN coalesce(started_at, %(now)s) ELSE started_at END,
        finished_at = CASE WHEN %(status)s IN ('success', 'failed', 'canceled', 'skipped') THEN %(now)s END
    WHERE id = %(pipeline_id)s AND status <> %(status)s
    RETURNING source_job_id,
        EXISTS (SELECT FROM mirrored_pipelines WHERE mirrored_pipelines.mirrored_id = pipelines.id) AS is_mirrored,
        status IN ('success', 'skipped') AND EXISTS (
        SELECT FROM merge_requests
        WHERE merge_requests.project_id = pipelines.project_id AND merge_requests.head_sha = pipelines.sha
            AND merge_requests.auto_merge IS NOT NULL) AS is_awaited
    """)
async def set_pipeline_status(
    transaction: Transaction, pipeline_id: int, status: Status
) -> PipelineFollowers | None:
    """Set the status and return the followers, or None if it has not changed."""


@statement("""
    DELETE FROM pipelines WHERE id = %(pipeline_id)s
""")
async def delete_pipeline(transaction: Transaction, pipeline_id: int) -> None: ...


@attrs.frozen
class SupersededPipeline:
    """A pipeline that a newer one supersedes completely or, if `partly`, in its interruptible jobs."""

    id: int
    partly: bool


#: Statuses of pipelines that can still be canceled, as in the index `pipelines_unfinished`.
_UNFINISHED = """('created', 'waiting_for_resource', 'preparing', 'waiting_for_callback', 'pending', 'running',
    'manual', 'scheduled')"""
SUPERSEDED = Query(
    f"""
    SELECT older.id, older.auto_cancel_on_new_commit = 'interruptible' AS partly
    FROM pipelines JOIN pipelines older
        ON older.project_id = pipelines.project_id AND older.ref = pipelines.ref AND older.id < pipelines.id
    JOIN projects ON projects.id = pipelines.project_id AND projects.auto_cancel_pending_pipelines = 'enabled'
    WHERE pipelines.id = %(id)s AND pipelines.status <> 'skipped' AND NOT pipelines.tag AND NOT older.tag
        AND older.sha <> pipelines.sha AND older.sha IS DISTINCT FROM %(head)s
        AND older.source IN ('push', 'merge_request_event')
        AND older.created_at > %(now)s::timestamptz - interval '3 days'
        AND older.status IN {_UNFINISHED}
        AND CASE older.auto_cancel_on_new_commit WHEN 'none' THEN false WHEN 'interruptible' THEN true
            ELSE NOT EXISTS (
                SELECT FROM jobs
                WHERE jobs.pipeline_id = older.id AND jobs.kind <> 'external'
                    AND jobs.status IN ('running', 'canceling', 'success', 'failed')
                    AND NOT coalesce((jobs.plan ->> 'interruptible')::boolean, false))
        END
    ORDER BY older.id
    """,
    SupersededPipeline,
)


async def superseded(database: Executor, pipeline_id: int, head: str | None) -> list[SupersededPipeline]:
    """Return the older pipelines of a pipeline's branch or merge request whose files allow canceling them.

    They are from the last three days and for other commits (and not for `head`);
    `workflow:auto_cancel:on_new_commit` decides, if the project allows it.
    """
    return await database.rows(SUPERSEDED, id=pipeline_id, head=head)


@statement(f"""
    SELECT pipelines.id
    FROM users JOIN pipelines ON pipelines.user_id = users.id AND pipelines.status IN {_UNFINISHED}
    WHERE users.id = %(user_id)s AND users.state = 'blocked' ORDER BY pipelines.id
""")
async def unfinished_of_blocked(database: Executor, user_id: int) -> list[int]:
    """Return the pipelines of a user that have not ended, if the user is blocked."""


INTERRUPTIBLE_JOBS = """
    SELECT coalesce(array_agg(jobs.id), '{}') FROM jobs
    WHERE jobs.pipeline_id = %(pipeline_id)s AND NOT jobs.retried AND (jobs.plan ->> 'interruptible')::boolean
"""


async def interruptible_jobs(database: Executor, pipeline_id: int) -> set[int]:
    """Return the ids of the jobs that may be canceled when a newer pipeline is created."""
    return set(await database.value(INTERRUPTIBLE_JOBS, pipeline_id=pipeline_id))


@statement("""
    SELECT EXISTS (
        SELECT FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id
        WHERE jobs.id = %(job_id)s AND NOT jobs.retried AND NOT jobs.allow_failure
            AND pipelines.auto_cancel_on_job_failure = 'all')
""")
async def cancels_on_failure(database: Executor, job_id: int) -> bool:
    """Return whether the failure of this job, if it is not retried, cancels the others of its pipeline
    (`workflow:auto_cancel:on_job_failure`)."""
