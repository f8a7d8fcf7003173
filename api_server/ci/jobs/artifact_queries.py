# mypy: disable-error-code="empty-body"
"""Statements about artifacts, and about the reports among them."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from api_server.ci.pipelines.states import COMPLETE
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Query


@statement("""
    WITH job AS (
        UPDATE jobs SET
            contacted_at = %(now)s,
            artifacts_expire_at = CASE WHEN %(file_type)s = 'archive' THEN %(expire_at)s::timestamptz
                ELSE coalesce(artifacts_expire_at, %(expire_at)s) END
        WHERE id = %(job_id)s AND status IN ('running', 'canceling') AND erased_at IS NULL
        RETURNING id, project_id
    )
    INSERT INTO job_artifacts (project_id, job_id, file_type, file_format, filename, size, object_key, sha256,
        expire_at, created_at)
    SELECT job.project_id, job.id, %(file_type)s, %(file_format)s, %(filename)s, %(size)s, %(object_key)s, %(sha256)s,
        %(expire_at)s, %(now)s
    FROM job
""")
async def add_artifact(
    transaction: Transaction, job_id: int, *, expire_at: datetime.datetime | None, **values: Any
) -> bool:
    """Add an artifact. Return False if the job is not running. Raise Conflict on `job_artifacts_type` if it
    already has an artifact of the type."""


HOLD_SIZES = """
    SELECT pg_advisory_xact_lock(hashtextextended('artifacts:' || %(project_id)s, 20))
"""


@statement(
    """
    SELECT coalesce(sum(job_artifacts.size), 0)::bigint FROM job_artifacts
    WHERE job_artifacts.project_id = %(project_id)s
""",
    prepared=True,
)
async def stored_bytes(database: Executor, project_id: int) -> int:
    """Return the bytes of all artifacts of a project."""


async def stored_bytes_exactly(transaction: Transaction, project_id: int) -> int:
    """Return the bytes like `stored_bytes`, including artifacts added by this transaction and by concurrent
    ones. Other callers wait until this transaction ends."""
    await transaction.run(HOLD_SIZES, project_id=project_id)
    return await stored_bytes(transaction, project_id)


@attrs.frozen
class Artifact:
    """A file in the object store, and how to send it."""

    file_format: str
    filename: str
    size: int
    object_key: str
    sha256: bytes
    #: Who may download it: a value of `artifacts:access`.
    access: str


#: For rows `jobs`: who may download the job's artifacts.
ACCESS = """
    coalesce(jobs.plan #>> '{artifacts,access}',
        CASE WHEN jobs.plan #>> '{artifacts,public}' = 'false' THEN 'developer' ELSE 'all' END)
"""
#: Columns of the rows `archive` and `jobs`.
_COLUMNS = f"""
    archive.file_format, archive.filename, archive.size, archive.object_key, archive.sha256, {ACCESS} AS access
"""
#: A condition on the row `archive`.
HAS_NOT_EXPIRED = "(archive.expire_at IS NULL OR archive.expire_at > %(now)s)"


@statement(f"""
    SELECT {_COLUMNS} FROM job_artifacts archive JOIN jobs ON jobs.id = archive.job_id
    WHERE archive.job_id = %(job_id)s AND archive.file_type = %(file_type)s AND {HAS_NOT_EXPIRED}
    """)
async def find_artifact(database: Executor, job_id: int, file_type: str = "archive") -> Artifact | None:
    """Return the job's artifact of that type, or None if there is none or it has expired."""


@statement(f"""
    SELECT {_COLUMNS} FROM pipelines JOIN jobs ON jobs.pipeline_id = pipelines.id
    JOIN projects ON projects.id = pipelines.project_id
    JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive' AND {HAS_NOT_EXPIRED}
    WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = %(ref)s AND pipelines.tag = %(tag)s
        AND pipelines.status = 'success' AND jobs.name = %(name)s AND jobs.status = 'success' AND NOT jobs.retried
    ORDER BY pipelines.id DESC LIMIT 1
    """)
async def archive_of_ref(database: Executor, project_id: int, ref: str, *, tag: bool, name: str) -> Artifact:
    """Return the archive of the job of that name in the last successful pipeline of a branch or tag that has
    one. Raise NotFound."""


SET_REPORT_VARIABLES = """
    WITH old AS (DELETE FROM job_report_variables WHERE job_id = %(job_id)s AND key <> ALL (%(keys)s))
    INSERT INTO job_report_variables (job_id, key, value)
    SELECT %(job_id)s, key, value FROM unnest(%(keys)s::text[], %(values)s::bytea[]) AS given(key, value)
    ON CONFLICT (job_id, key) DO UPDATE SET value = excluded.value
"""


async def set_report_variables(transaction: Transaction, job_id: int, variables: Mapping[str, bytes]) -> None:
    """Store the variables that the job reports for later jobs, encrypted."""
    await transaction.run(
        SET_REPORT_VARIABLES, job_id=job_id, keys=list(variables), values=list(variables.values())
    )


@statement(f"""
    WITH held AS (
        SELECT jobs.id FROM jobs WHERE jobs.id = %(job_id)s FOR NO KEY UPDATE
    ), kept AS (
        UPDATE job_artifacts archive SET expire_at = NULL
        WHERE archive.job_id IN (SELECT held.id FROM held) AND {HAS_NOT_EXPIRED}
        RETURNING archive.job_id
    )
    UPDATE jobs SET artifacts_expire_at = NULL FROM kept WHERE jobs.id = kept.job_id
""")
async def keep(transaction: Transaction, job_id: int) -> bool:
    """Keep the job's artifacts from expiring. Return False if it has none."""


@statement("""
    DELETE FROM job_artifacts WHERE id IN (
        SELECT job_artifacts.id FROM job_artifacts WHERE job_artifacts.expire_at < %(now)s
        ORDER BY job_artifacts.expire_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    RETURNING object_key
    """)
async def delete_expired(transaction: Transaction, limit: int) -> list[str]:
    """Delete the rows of at most `limit` expired artifacts, and return the keys of their objects."""


@attrs.frozen
class Candidate:
    """An artifact that may be deleted, with its pipeline's ref: a short name, unless it is neither a branch
    nor a tag."""

    id: int
    ref: str
    tag: bool
    #: Whether its pipeline, or a parent of it, is the last successful one of the ref, or not older than the
    #: last that ended.
    newest: bool


#: Each ref of a batch occurs once, so its newest pipelines are searched for once.
CANDIDATES = Query(
    """
    WITH batch AS MATERIALIZED (
        SELECT job_artifacts.id, job_artifacts.job_id FROM job_artifacts
        WHERE job_artifacts.project_id = %(project_id)s AND job_artifacts.id > %(after)s
            AND job_artifacts.created_at <= %(until)s::timestamptz
        ORDER BY job_artifacts.id LIMIT %(limit)s
    ), found AS MATERIALIZED (
        SELECT batch.id, pipelines.ref, pipelines.tag, pipelines.id AS pipeline_id,
            coalesce(pipelines.hierarchy_id, pipelines.id) AS family
        FROM batch JOIN jobs ON jobs.id = batch.job_id JOIN pipelines ON pipelines.id = jobs.pipeline_id
    ), refs AS MATERIALIZED (
        SELECT DISTINCT found.ref, found.tag FROM found
    )
    SELECT found.id, found.ref, found.tag,
        found.pipeline_id >= coalesce(ended.id, 0) OR found.family IN (ended.family, succeeded.family) AS newest
    FROM found JOIN refs USING (ref, tag)
    LEFT JOIN LATERAL (
        SELECT pipelines.id, coalesce(pipelines.hierarchy_id, pipelines.id) AS family FROM pipelines
        WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = refs.ref AND pipelines.tag = refs.tag
            AND pipelines.source <> 'parent_pipeline' AND pipelines.status = ANY (%(ended)s)
        ORDER BY pipelines.id DESC LIMIT 1
    ) ended ON true
    LEFT JOIN LATERAL (
        SELECT coalesce(pipelines.hierarchy_id, pipelines.id) AS family FROM pipelines
        WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = refs.ref AND pipelines.tag = refs.tag
            AND pipelines.source <> 'parent_pipeline' AND pipelines.status = 'success'
        ORDER BY pipelines.id DESC LIMIT 1
    ) succeeded ON true
    ORDER BY found.id
    """,
    Candidate,
)


async def candidates(
    database: Executor, project_id: int, *, after: int, until: datetime.datetime, limit: int
) -> list[Candidate]:
    """Return the first `limit` artifacts of a project with ids above `after` that existed at a moment."""
    ended = ["manual", *sorted(COMPLETE)]
    return await database.rows(
        CANDIDATES, project_id=project_id, after=after, until=until, limit=limit, ended=ended
    )


DELETE_CHOSEN = """
    WITH held AS (
        SELECT jobs.id FROM jobs
        WHERE jobs.id IN (SELECT job_artifacts.job_id FROM job_artifacts WHERE job_artifacts.id = ANY (%(ids)s))
        ORDER BY jobs.id FOR NO KEY UPDATE
    ), deleted AS (
        DELETE FROM job_artifacts WHERE id = ANY (%(ids)s) AND job_id IN (SELECT held.id FROM held)
        RETURNING job_id, object_key
    ), jobs_without AS (
        UPDATE jobs SET artifacts_expire_at = NULL WHERE id IN (SELECT deleted.job_id FROM deleted)
    )
    SELECT coalesce(array_agg(deleted.object_key), '{}') FROM deleted
"""


async def delete_chosen(transaction: Transaction, ids: Sequence[int]) -> list[str]:
    """Delete the rows of these artifacts, and return the keys of their objects."""
    return list(await transaction.value(DELETE_CHOSEN, ids=list(ids)))


@attrs.frozen
class StoredReport:
    """A job's test report in the object store."""

    job_id: int
    #: The name of the job.
    name: str
    #: Whether it is one of several jobs made by `parallel`.
    parallel: bool
    object_key: str
    size: int


@statement(f"""
    SELECT jobs.id AS job_id, jobs.name, coalesce((jobs.plan ->> 'node_total')::integer, 1) > 1 AS parallel,
        archive.object_key, archive.size
    FROM jobs JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'junit'
    WHERE jobs.pipeline_id = %(pipeline_id)s AND jobs.kind = 'build' AND NOT jobs.retried AND {HAS_NOT_EXPIRED}
    ORDER BY jobs.id
    """)
async def reports_of(database: Executor, pipeline_id: int) -> list[StoredReport]:
    """Return the test reports of the pipeline's current builds, without retried ones."""
