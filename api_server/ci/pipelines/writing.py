"""Statements that write down a new pipeline with its variables and jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from api_server.ci.config.plan import PlannedJob, to_json
from api_server.ci.config.variables import Variable
from api_server.state.database import Transaction

#: Of a `creation.Wanted`, what is a column of pipelines as it is.
COLUMNS = frozenset(
    {"project_id", "user_id", "source", "ref", "tag", "sha", "before_sha", "origin", "source_job_id"}
)
#: Seconds a job may run when its file does not say.
DEFAULT_TIMEOUT = 3600

CREATE_PIPELINE = """
    WITH counted AS (
        INSERT INTO pipeline_iids (project_id, last) VALUES (%(project_id)s, 1)
        ON CONFLICT (project_id) DO UPDATE SET last = pipeline_iids.last + 1
        RETURNING last
    )
    INSERT INTO pipelines (project_id, iid, user_id, status, source, name, ref, tag, protected, sha, before_sha, commit,
        yaml_errors, origin, source_job_id, committed_at, finished_at)
    SELECT %(project_id)s, counted.last, %(user_id)s, %(status)s, %(source)s, %(name)s, %(ref)s, %(tag)s, %(protected)s,
        %(sha)s, %(before_sha)s, %(commit)s, %(yaml_errors)s, %(origin)s, %(source_job_id)s, %(committed_at)s,
        CASE WHEN %(status)s IN ('failed', 'skipped') THEN now() END
    FROM counted
    RETURNING id
"""


async def create_pipeline(transaction: Transaction, **values: Any) -> int:
    """The new pipeline's id. Raises Conflict on `pipelines_origin` and `pipelines_source_job`."""
    return int(await transaction.value(CREATE_PIPELINE, **values))


CREATE_VARIABLES = """
    INSERT INTO pipeline_variables (pipeline_id, key, value, variable_type)
    SELECT %(pipeline_id)s, key, value, variable_type
    FROM unnest(%(keys)s::text[], %(values)s::bytea[], %(types)s::text[]) AS given(key, value, variable_type)
"""


async def create_variables(
    transaction: Transaction, pipeline_id: int, variables: Sequence[Variable], sealed: Mapping[str, bytes]
) -> None:
    """Variables of a pipeline; `sealed` are their values, encrypted, by key."""
    unique = {variable.key: variable for variable in variables}
    await transaction.row(
        CREATE_VARIABLES,
        pipeline_id=pipeline_id,
        keys=list(unique),
        values=[sealed[key] for key in unique],
        types=["file" if variable.file else "env_var" for variable in unique.values()],
    )


CREATE_JOBS = """
    INSERT INTO jobs (project_id, pipeline_id, kind, name, stage, stage_index, needs, when_run, allow_failure, tag_list,
        protected, resource_group, environment, timeout, plan, user_id)
    SELECT pipelines.project_id, pipelines.id, planned.kind, planned.name, planned.stage, planned.stage_index,
        planned.needs, planned.when_run, planned.allow_failure, planned.tag_list, pipelines.protected,
        planned.resource_group, planned.environment, planned.timeout, planned.plan, %(user_id)s
    FROM pipelines, ROWS FROM (jsonb_to_recordset(%(jobs)s::jsonb) AS (kind text, name text, stage text,
        stage_index integer, needs text[], when_run text, allow_failure boolean, tag_list text[], resource_group text,
        environment text, timeout integer, plan jsonb)) WITH ORDINALITY
        AS planned (kind, name, stage, stage_index, needs, when_run, allow_failure, tag_list, resource_group,
            environment, timeout, plan, position)
    WHERE pipelines.id = %(pipeline_id)s
    ORDER BY planned.position
"""


async def create_jobs(
    transaction: Transaction, pipeline_id: int, planned: Sequence[PlannedJob], *, user_id: int | None
) -> None:
    """The jobs of a plan, all in status `created`, with ids in the plan's order."""
    await transaction.row(
        CREATE_JOBS,
        pipeline_id=pipeline_id,
        user_id=user_id,
        jobs=orjson.dumps([_columns(job) for job in planned]).decode(),
    )


def _columns(job: PlannedJob) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "name": job.name,
        "stage": job.stage,
        "stage_index": job.stage_index,
        "needs": None if job.needs is None else [need.job for need in job.needs],
        "when_run": job.when,
        "allow_failure": job.allow_failure,
        "tag_list": sorted(job.tags),
        "resource_group": job.resource_group,
        "environment": None if job.environment is None else job.environment.name,
        "timeout": job.timeout or DEFAULT_TIMEOUT,
        "plan": to_json(job),
    }
