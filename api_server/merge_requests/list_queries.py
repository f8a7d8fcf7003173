# mypy: disable-error-code="empty-body"
"""Statements for lists of merge requests, and about the merge requests that a commit belongs to."""

from collections.abc import Sequence
from typing import Any

import attrs

from api_server.merge_requests.queries import ENTITIES
from api_server.state.database import Executor
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page


def _filter_by_person(part: str) -> str:
    """Return the condition that a user, given by id or name, or anybody at all, is an assignee or reviewer.
    The ids are put in arrays so that they are looked up in the index."""
    people = f"""
        SELECT people.merge_request_id FROM merge_request_people people
        WHERE people.part = '{part}' AND people.user_id"""
    return f"""
        AND (%({part}_id)s::bigint IS NULL OR merge_requests.id = ANY (ARRAY({people} = %({part}_id)s)))
        AND (%({part}_username)s::text IS NULL OR merge_requests.id = ANY (ARRAY({people} = (
            SELECT users.id FROM users WHERE lower(users.username) = lower(%({part}_username)s)))))
        AND (%(any_{part})s::boolean IS NULL OR %(any_{part})s = EXISTS (
            SELECT FROM merge_request_people people
            WHERE people.merge_request_id = merge_requests.id AND people.part = '{part}'))
    """


_FILTERS = f"""
    (%(state)s::text IS NULL OR merge_requests.state = %(state)s)
    AND (%(iids)s::bigint[] IS NULL OR merge_requests.iid = ANY (%(iids)s))
    AND (%(source_branch)s::text IS NULL OR merge_requests.source_branch = %(source_branch)s)
    AND (%(target_branch)s::text IS NULL OR merge_requests.target_branch = %(target_branch)s)
    AND (%(source_project_id)s::bigint IS NULL OR merge_requests.project_id = %(source_project_id)s)
    AND (%(author_id)s::bigint IS NULL OR merge_requests.author_id = %(author_id)s)
    AND (%(author_username)s::text IS NULL OR merge_requests.author_id = (
        SELECT users.id FROM users WHERE lower(users.username) = lower(%(author_username)s)))
    AND (%(created_by_id)s::bigint IS NULL OR merge_requests.author_id = %(created_by_id)s)
    AND (%(part_of_viewer)s::text IS NULL OR merge_requests.id = ANY (ARRAY(
        SELECT people.merge_request_id FROM merge_request_people people
        WHERE people.part = %(part_of_viewer)s AND people.user_id = %(part_of_id)s::bigint)))
    {_filter_by_person("assignee")}
    {_filter_by_person("reviewer")}
    AND (%(labels)s::text[] IS NULL OR merge_requests.labels @> %(labels)s)
    AND (%(any_label)s::boolean IS NULL OR %(any_label)s = (merge_requests.labels <> '{{}}'))
    AND (%(draft)s::boolean IS NULL OR is_draft(merge_requests.title) = %(draft)s)
    AND (%(search)s::text IS NULL
        OR %(in_title)s AND strpos(lower(merge_requests.title), lower(%(search)s)) > 0
        OR %(in_description)s AND strpos(lower(merge_requests.description), lower(%(search)s)) > 0)
    AND (%(created_after)s::timestamptz IS NULL OR merge_requests.created_at >= %(created_after)s)
    AND (%(created_before)s::timestamptz IS NULL OR merge_requests.created_at <= %(created_before)s)
    AND (%(updated_after)s::timestamptz IS NULL OR merge_requests.updated_at >= %(updated_after)s)
    AND (%(updated_before)s::timestamptz IS NULL OR merge_requests.updated_at <= %(updated_before)s)
"""
_ORDERS = {
    "created_at": "id",  # ids ascend with the date of creation and have an index
    "updated_at": "updated_at",
    "merged_at": "merged_at",
    "title": "title",
}
_ENTITY = ENTITIES["merge_request"]

OF_PROJECT = ListQuery(
    _ENTITY,
    f"""
    SELECT merge_requests.* FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND {_FILTERS}
    """,
    _ORDERS,
)


async def list_of_project(
    database: Executor, page: Page, project_id: int, filters: dict[str, Any]
) -> ListPage:
    """Return a page of the project's merge requests; `filters` are those of `ListMergeRequests`, or None."""
    return await OF_PROJECT.read(database, page, project_id=project_id, **filters)


def _viewer_has_role(level: int) -> str:
    """Return the condition that the viewer has at least that role in a project: PostgreSQL builds a hash
    table of each set once."""
    rows = f"""
        FROM members WHERE members.user_id = %(viewer_id)s AND members.access_level >= {level}
            AND counts(members, %(now)s)"""
    return f"""(
        projects.namespace_id IN (
            SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = %(viewer_id)s
            UNION ALL
            SELECT namespaces.id FROM namespaces
            WHERE namespaces.lineage && ARRAY(SELECT members.namespace_id {rows} AND members.namespace_id IS NOT NULL))
        OR projects.id IN (SELECT members.project_id {rows} AND members.project_id IS NOT NULL))"""


#: The same rule as `Project.reads_repository`.
_IS_READABLE = f"""
    projects.repository_access_level <> 'disabled'
    AND (%(sees_all)s OR CASE WHEN projects.visibility = 'private' THEN {_viewer_has_role(20)}
        ELSE projects.repository_access_level = 'enabled'
                AND (projects.visibility = 'public' OR (SELECT is_insider(%(viewer_id)s)))
            OR {_viewer_has_role(10)} END)
    AND (NOT %(non_archived)s OR NOT projects.archived)
"""
#: OFFSET 0 keeps the planner from reading all projects to find the few of somebody's own merge requests.
OF_ALL = ListQuery(
    _ENTITY,
    f"""
    SELECT merge_requests.* FROM merge_requests CROSS JOIN LATERAL (
        SELECT FROM projects WHERE projects.id = merge_requests.project_id AND {_IS_READABLE} OFFSET 0) readable
    WHERE {_FILTERS}
    """,
    {"created_at": "id", "updated_at": "updated_at"},  # the other orders have no index over all projects
)
BELOW_GROUP = ListQuery(
    _ENTITY,
    f"""
    SELECT merge_requests.* FROM merge_requests JOIN projects ON projects.id = merge_requests.project_id
    WHERE projects.namespace_id IN (
            SELECT namespaces.id FROM namespaces WHERE namespaces.lineage @> ARRAY[%(group_id)s::bigint])
        AND {_IS_READABLE} AND {_FILTERS}
    """,
    _ORDERS,
)


async def list_readable(
    database: Executor,
    page: Page,
    *,
    viewer_id: int,
    sees_all: bool,
    non_archived: bool,
    filters: dict[str, Any],
    group_id: int | None = None,
) -> ListPage:
    """Return a page of the merge requests of all projects whose files the viewer may read, or of those below
    a group; `filters` as in `list_of_project`."""
    conditions = {"viewer_id": viewer_id, "sees_all": sees_all, "non_archived": non_archived, **filters}
    if group_id is None:
        return await OF_ALL.read(database, page, **conditions)
    return await BELOW_GROUP.read(database, page, group_id=group_id, **conditions)


@attrs.frozen
class Candidate:
    """A merge request whose head contains the commit, with its merge base."""

    id: int
    base_sha: str | None


@attrs.frozen
class Merged:
    id: int


@statement("SELECT id FROM merge_requests WHERE project_id = %(project_id)s AND merge_commit_sha = %(sha)s")
async def merged_by(database: Executor, project_id: int, sha: str) -> list[int]:
    """Return the merge requests that this very commit merged."""


@statement("""
    SELECT id, base_sha FROM merge_requests
    WHERE project_id = %(project_id)s AND iid = ANY (%(iids)s::integer[])
    """)
async def candidates(database: Executor, project_id: int, iids: Sequence[int]) -> list[Candidate]: ...


BY_IDS = ListQuery(
    _ENTITY,
    """
    SELECT merge_requests.* FROM merge_requests
    WHERE merge_requests.id = ANY (%(ids)s::bigint[])
        AND (%(state)s::text IS NULL OR merge_requests.state = %(state)s)
    """,
)


async def list_by_ids(database: Executor, page: Page, ids: Sequence[int], state: str | None) -> ListPage:
    return await BY_IDS.read(database, page, ids=list(ids), state=state)
