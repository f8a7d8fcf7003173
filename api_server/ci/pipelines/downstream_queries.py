"""Statements about bridges and the pipelines that they start."""

import attrs

from api_server.ci.pipelines.states import COMPLETE, Status
from api_server.state.database import Executor
from api_server.state.statements import Query, Statement


@attrs.frozen
class Bridge:
    """A bridge with what its pipeline runs for: a ref, or a merge request.

    `depth` counts its pipeline and the parents of that one. `loops`: projects above it have started each other in a
    circle already. `hierarchy_id` is the pipeline that everything began with.
    """

    id: int
    project_id: int
    pipeline_id: int
    status: Status
    plan: str
    retried: bool
    user_id: int | None
    ref: str
    tag: bool
    sha: str
    before_sha: str
    depth: int
    loops: bool
    hierarchy_id: int
    merge_request_id: int | None


FIND_BRIDGE = Query(
    """
    WITH RECURSIVE above AS (
        SELECT pipelines.*, true AS is_parent FROM pipelines JOIN jobs ON jobs.pipeline_id = pipelines.id
        WHERE jobs.id = %(id)s
        UNION ALL
        SELECT pipelines.*, above.is_parent AND above.source = 'parent_pipeline'
        FROM above JOIN jobs ON jobs.id = above.source_job_id JOIN pipelines ON pipelines.id = jobs.pipeline_id
    )
    SELECT jobs.id, jobs.project_id, jobs.pipeline_id, jobs.status, jobs.plan, jobs.retried, jobs.user_id,
        pipelines.ref, pipelines.tag, pipelines.sha, pipelines.before_sha,
        (SELECT count(*) FROM above WHERE above.is_parent) AS depth,
        EXISTS (SELECT FROM above WHERE above.source <> 'parent_pipeline'
            GROUP BY above.project_id, above.ref, above.tag, above.source HAVING count(*) > 1) AS loops,
        coalesce(pipelines.hierarchy_id, pipelines.id) AS hierarchy_id, pipelines.merge_request_id
    FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id
    WHERE jobs.id = %(id)s AND jobs.kind = 'bridge'
    """,
    Bridge,
)


async def find_bridge(database: Executor, job_id: int) -> Bridge | None:
    return await database.row(FIND_BRIDGE, id=job_id)


@attrs.frozen
class Downstream:
    """The pipeline that a bridge has started."""

    id: int
    status: Status
    source: str


FIND_DOWNSTREAM = Query(
    """
    SELECT pipelines.id, pipelines.status, pipelines.source FROM pipelines WHERE pipelines.source_job_id = %(job_id)s
    """,
    Downstream,
)


async def find_downstream(database: Executor, job_id: int) -> Downstream | None:
    return await database.row(FIND_DOWNSTREAM, job_id=job_id)


FORGOTTEN_BRIDGES = Statement("""
    SELECT ARRAY(
        SELECT jobs.id FROM jobs
        WHERE jobs.kind = 'bridge' AND jobs.status = 'running' AND NOT EXISTS (
            SELECT FROM pipelines WHERE pipelines.source_job_id = jobs.id AND pipelines.status <> ALL (%(complete)s))
        ORDER BY jobs.id LIMIT %(most)s)
""")


async def forgotten_bridges(database: Executor, most: int = 200) -> list[int]:
    """The first `most` bridges that run though nothing runs for them."""
    return list(await database.value(FORGOTTEN_BRIDGES, complete=sorted(COMPLETE), most=most))


@attrs.frozen
class TargetProject:
    """A project that a bridge names, as the user meets it for whom the bridge runs."""

    id: int
    default_branch: str
    archived: bool
    builds_access_level: str
    admin: bool
    role: int


PROJECT_BY_PATH = Query(
    """
    SELECT projects.id, projects.default_branch, projects.archived, projects.builds_access_level,
        users.admin, project_role(projects, namespaces, users.id, %(now)s) AS role
    FROM routes JOIN projects ON projects.id = routes.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    JOIN users ON users.id = %(user_id)s
    WHERE routes.path = lower(%(path)s)
        AND (users.admin OR is_visible(
            projects.visibility, project_role(projects, namespaces, users.id, %(now)s) >= 10, NOT users.external))
    """,
    TargetProject,
)


async def project_by_path(database: Executor, path: str, user_id: int | None) -> TargetProject | None:
    """The project at a full path and the user's role in it, where she can see it."""
    return await database.row(PROJECT_BY_PATH, path=path, user_id=user_id)
