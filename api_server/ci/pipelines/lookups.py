"""Statements about what pipelines are made of and started by."""

from api_server.state.database import Executor, Row

SUBJECT = """
    SELECT projects.id, projects.namespace_id, projects.full_path, projects.name, projects.description,
        projects.visibility, projects.default_branch, projects.ci_config_path, projects.builds_access_level,
        projects.archived,
        coalesce((SELECT pipeline_iids.last FROM pipeline_iids WHERE pipeline_iids.project_id = projects.id), 0) + 1
            AS next_iid,
        users.id AS user_id, users.username, users.name AS user_name, users.email
    FROM projects LEFT JOIN users ON users.id = %(user_id)s
    WHERE projects.id = %(project_id)s
"""


async def subject(database: Executor, project_id: int, user_id: int | None) -> Row | None:
    """What the variables of a pipeline of this project, started by this user, are made of."""
    return await database.row(SUBJECT, project_id=project_id, user_id=user_id)


PIPELINE_OF_ORIGIN = """
    SELECT pipelines.id FROM pipelines
    WHERE pipelines.origin = %(origin)s OR pipelines.source_job_id = %(source_job_id)s
"""


async def pipeline_of_origin(
    database: Executor, *, origin: str | None = None, source_job_id: int | None = None
) -> int:
    """The id of the pipeline that was made for this origin or bridge; 0 when there is none."""
    return int(await database.value(PIPELINE_OF_ORIGIN, origin=origin, source_job_id=source_job_id) or 0)


FIND_BRIDGE = """
    WITH RECURSIVE above AS (
        SELECT pipelines.source_job_id, 1 AS depth FROM pipelines JOIN jobs ON jobs.pipeline_id = pipelines.id
        WHERE jobs.id = %(id)s
        UNION ALL
        SELECT pipelines.source_job_id, above.depth + 1
        FROM above JOIN jobs ON jobs.id = above.source_job_id JOIN pipelines ON pipelines.id = jobs.pipeline_id
    )
    SELECT jobs.*, pipelines.ref, pipelines.tag, pipelines.sha, pipelines.before_sha,
        (SELECT max(above.depth) FROM above) AS depth
    FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id
    WHERE jobs.id = %(id)s AND jobs.kind = 'bridge'
"""


async def find_bridge(database: Executor, job_id: int) -> Row | None:
    """The bridge's row with its pipeline's ref, tag, sha, before_sha, and how many pipelines it stands below, its own
    included."""
    return await database.row(FIND_BRIDGE, id=job_id)


FIND_DOWNSTREAM = """
    SELECT pipelines.id, pipelines.status, pipelines.source FROM pipelines WHERE pipelines.source_job_id = %(job_id)s
"""


async def find_downstream(database: Executor, job_id: int) -> Row | None:
    """id, status and source of the pipeline that a bridge has started."""
    return await database.row(FIND_DOWNSTREAM, job_id=job_id)


PROJECT_BY_PATH = """
    SELECT projects.id, projects.default_branch, projects.archived, projects.builds_access_level,
        users.admin, project_role(projects, namespaces, users.id, %(now)s) AS role
    FROM routes JOIN projects ON projects.id = routes.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    JOIN users ON users.id = %(user_id)s
    WHERE routes.path = lower(%(path)s)
        AND (users.admin OR projects.visibility <> 'private'
            OR project_role(projects, namespaces, users.id, %(now)s) >= 10)
"""


async def project_by_path(database: Executor, path: str, user_id: int) -> Row | None:
    """The project at a full path and the user's role in it, where she can see it."""
    return await database.row(PROJECT_BY_PATH, path=path, user_id=user_id)


PIPELINE_VARIABLES = """
    SELECT pipeline_variables.key, pipeline_variables.value, pipeline_variables.variable_type
    FROM pipeline_variables WHERE pipeline_variables.pipeline_id = %(pipeline_id)s ORDER BY pipeline_variables.id
"""


async def pipeline_variables(database: Executor, pipeline_id: int) -> list[Row]:
    """key, value (encrypted) and variable_type of what was given to the pipeline when it was started."""
    return await database.rows(PIPELINE_VARIABLES, pipeline_id=pipeline_id)
