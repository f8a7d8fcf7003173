# mypy: disable-error-code="empty-body"
"""Statements for commands: projects, mirrors, and the commits that a repository must contain; and the rows of the API's
and the admin area's lists."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import orjson

from api_server.state.database import Database, Executor
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, Page
from forgelet.instance import Instance


@attrs.frozen
class NamedProject:
    """A project. An empty one may have no repository yet."""

    id: int
    full_path: str
    empty_repo: bool


@statement("SELECT id, full_path, empty_repo FROM projects ORDER BY id")
async def all_projects(database: Executor) -> list[NamedProject]:
    """Return all projects."""


@statement("""
    SELECT id, full_path, empty_repo FROM projects WHERE id::text = %(reference)s OR full_path = %(reference)s
    ORDER BY id LIMIT 1
""")
async def project(database: Executor, reference: str) -> NamedProject | None:
    """Return the project with this id or full path."""


@attrs.frozen
class NamedCommit:
    """A commit that the service must keep, and the row that names it."""

    sha: str
    named_by: str


# Former heads of merge requests are not included: commits that no branch contains any more are not kept.
@statement("""
    SELECT DISTINCT ON (sha) sha, named_by FROM (
        SELECT pipelines.sha, 'pipeline ' || pipelines.id AS named_by FROM pipelines
        WHERE pipelines.project_id = %(project_id)s::bigint
        UNION ALL
        SELECT merge_requests.head_sha, 'merge request !' || merge_requests.iid FROM merge_requests
        WHERE merge_requests.project_id = %(project_id)s::bigint AND merge_requests.state = 'opened'
    ) named ORDER BY sha, named_by
""")
async def named_commits(database: Executor, project_id: int) -> list[NamedCommit]:
    """Return the commits that the project's repository must contain."""


@attrs.frozen
class EnabledMirror:
    """An enabled mirror."""

    id: int


@statement("""
    SELECT remote_mirrors.id FROM remote_mirrors JOIN projects ON projects.id = remote_mirrors.project_id
    WHERE remote_mirrors.id = %(mirror_id)s AND remote_mirrors.enabled
        AND projects.repository_access_level <> 'disabled'
""")
async def enabled_mirror(database: Executor, mirror_id: int) -> EnabledMirror:
    """Return the mirror. Raise `NotFound` if it does not exist, or if it or its repository is disabled."""


#: Number of rows of a list that are read at once.
_PAGE = 500
Read = Callable[[Database, Page], Awaitable[ListPage]]


def read_rows(
    instance: Instance, limit: int, read: Read, accepts: Callable[[dict[str, Any]], bool] | None = None
) -> list[dict[str, Any]]:
    """Return up to `limit` rows of a list for which `accepts` returns true."""

    async def run() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        page, has_more = Page(size=_PAGE, counted=False), limit > 0
        async with instance.database() as database:
            while has_more and len(rows) < limit:
                list_page = await read(database, page)
                rows += [row for row in orjson.loads(list_page.body) if accepts is None or accepts(row)]
                page, has_more = Page(size=_PAGE, counted=False, after=list_page.last_id), list_page.more
        return rows[:limit]

    return asyncio.run(run())
