"""Which projects and mirrors there are, and which commits rows name that have to be in their repositories."""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class NamedProject:
    """A project."""

    id: int
    full_path: str
    empty_repo: bool  # then it may have no repository yet


ALL_PROJECTS = Query("SELECT id, full_path, empty_repo FROM projects ORDER BY id", NamedProject)
ONE_PROJECT = Query(
    "SELECT id, full_path, empty_repo FROM projects WHERE id::text = %(named)s OR full_path = %(named)s"
    " ORDER BY id LIMIT 1",
    NamedProject,
)


async def all_projects(database: Executor) -> list[NamedProject]:
    return await database.rows(ALL_PROJECTS)


async def project(database: Executor, named: str) -> NamedProject | None:
    """By its id or full path."""
    return await database.row(ONE_PROJECT, named=named)


@attrs.frozen
class NamedCommit:
    """A commit that the service keeps, and what names it."""

    sha: str
    named_by: str


#: Old heads of merge requests are not among them: nothing keeps what no branch leads to any more.
NAMED_COMMITS = Query(
    """
    SELECT DISTINCT ON (sha) sha, named_by FROM (
        SELECT pipelines.sha, 'pipeline ' || pipelines.id AS named_by FROM pipelines
        WHERE pipelines.project_id = %(project_id)s::bigint
        UNION ALL
        SELECT merge_requests.head_sha, 'merge request !' || merge_requests.iid FROM merge_requests
        WHERE merge_requests.project_id = %(project_id)s::bigint AND merge_requests.state = 'opened'
    ) named ORDER BY sha, named_by
    """,
    NamedCommit,
)


async def named_commits(database: Executor, project_id: int) -> list[NamedCommit]:
    return await database.rows(NAMED_COMMITS, project_id=project_id)


@attrs.frozen
class NamedMirror:
    """A mirror that runs."""

    id: int


ENABLED_MIRROR = Query(
    """
    SELECT remote_mirrors.id FROM remote_mirrors JOIN projects ON projects.id = remote_mirrors.project_id
    WHERE remote_mirrors.id = %(id)s AND remote_mirrors.enabled
        AND projects.repository_access_level <> 'disabled'
    """,
    NamedMirror,
)


async def enabled_mirror(database: Executor, mirror_id: int) -> int:
    """Its id. Raises NotFound also for one that is switched off."""
    return (await database.one(ENABLED_MIRROR, id=mirror_id)).id
