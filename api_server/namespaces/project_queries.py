# mypy: disable-error-code="empty-body"
"""Statements about projects: lists of projects, and single ones."""

from typing import Any, Literal

import attrs

from api_server.namespaces.namespace_queries import ENTITIES, IN_LISTS
from api_server.namespaces.resources import OverrideRole, Project
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, ListQuery, Page, Search, entity_statement
from api_server.web.routes import Role

#: Namespaces in which the viewer has at least `min_level`: the viewer's own, and those of or below the
#: viewer's memberships.
_HER_NAMESPACES = """
    SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = %(viewer_id)s
    UNION ALL
    SELECT namespaces.id FROM namespaces WHERE namespaces.lineage && ARRAY(
        SELECT members.namespace_id FROM members
        WHERE members.user_id = %(viewer_id)s AND members.namespace_id IS NOT NULL
            AND members.access_level >= %(min_level)s::int
            AND counts(members, %(now)s))
"""
_HER_PROJECTS = """
    SELECT members.project_id FROM members
    WHERE members.user_id = %(viewer_id)s AND members.project_id IS NOT NULL
        AND members.access_level >= %(min_level)s::int
        AND counts(members, %(now)s)
"""
#: Written as filters, so that PostgreSQL builds a hash table of each set once.
_IS_HERS = f"(projects.namespace_id IN ({_HER_NAMESPACES}) OR projects.id IN ({_HER_PROJECTS}))"
_VISIBLE = f"""
    (%(sees_all)s OR is_visible(projects.visibility, {_IS_HERS}, (SELECT is_insider(%(viewer_id)s))))
"""
_HERS_ONLY = f"(NOT %(hers_only)s OR {_IS_HERS})"
_SEARCH = Search("projects", "path", "name")
_FILTERS = f"""
    (%(visibility)s::text IS NULL OR projects.visibility = %(visibility)s)
    AND (%(archived)s::boolean IS NULL OR projects.archived = %(archived)s)
    AND {_SEARCH.condition}
    AND (%(id_after)s::bigint IS NULL OR projects.id > %(id_after)s)
    AND (%(id_before)s::bigint IS NULL OR projects.id < %(id_before)s)
    AND (%(last_activity_after)s::timestamptz IS NULL OR projects.last_activity_at > %(last_activity_after)s)
    AND (%(last_activity_before)s::timestamptz IS NULL OR projects.last_activity_at < %(last_activity_before)s)
"""
#: The values of `_FILTERS` that let every project through.
NO_FILTERS = dict.fromkeys(
    (
        "visibility",
        "archived",
        "search",
        "id_after",
        "id_before",
        "last_activity_after",
        "last_activity_before",
    )
)
_ORDERS = {
    "name": "name",
    "path": "path",
    "created_at": "id",  # ids ascend with the date of creation and have an index
    "updated_at": "updated_at",
    "last_activity_at": "last_activity_at",
}


def _listings(rows: str) -> dict[bool, ListQuery]:
    """Return the statements of a list by whether the `simple` form is requested."""
    forms = {False: IN_LISTS["project"], True: IN_LISTS["basic_project"]}
    return {simple: ListQuery(entity, rows, _ORDERS) for simple, entity in forms.items()}


_ALL = _listings(f"SELECT projects.* FROM projects WHERE {_VISIBLE} AND {_FILTERS}")
LISTING = _ALL[False]
#: These may be few of all projects: OFFSET 0 keeps the planner from searching for them in the order of the
#: list.
_OF_VIEWER = _listings(f"""
    SELECT * FROM (
        SELECT projects.* FROM projects
        WHERE projects.id IN (
            SELECT inside.id FROM projects inside WHERE inside.namespace_id IN ({_HER_NAMESPACES})
            UNION ALL {_HER_PROJECTS})
            AND {_FILTERS}
        OFFSET 0) hers
""")
_OF_GROUP = _listings(f"""
    SELECT projects.* FROM projects
    WHERE projects.namespace_id = %(group_id)s::bigint AND {_VISIBLE} AND {_HERS_ONLY} AND {_FILTERS}
""")
_BELOW_GROUP = _listings(f"""
    SELECT projects.* FROM namespaces CROSS JOIN LATERAL (
        SELECT projects.* FROM projects
        WHERE projects.namespace_id = namespaces.id AND {_VISIBLE} AND {_HERS_ONLY} AND {_FILTERS}
        OFFSET 0) projects
    WHERE namespaces.lineage @> ARRAY[%(group_id)s::bigint]
""")

Below = Literal["directly", "with_subgroups"]


async def list_projects(
    database: Executor,
    page: Page,
    *,
    viewer_id: int | None,
    sees_all: bool,
    min_level: int | None = None,
    group_id: int | None = None,
    below: Below = "directly",
    simple: bool = False,
    **filters: Any,
) -> ListPage:
    """Return a page of the projects that the viewer can see (without a viewer, the public ones), or of all if
    the viewer `sees_all`: everywhere or in a group; with `min_level`, those where the viewer has that role;
    `simple`: with few keys. `filters` are some of `NO_FILTERS`."""
    filters = NO_FILTERS | filters
    filters["found"] = await _SEARCH.find(database, filters["search"])
    if viewer_id is None and not sees_all:  # with this filter, an index finds few public ones among many
        filters["visibility"] = filters["visibility"] or "public"
    viewer = {"viewer_id": viewer_id, "min_level": min_level or Role.GUEST}
    if group_id is not None:
        listing = _OF_GROUP if below == "directly" else _BELOW_GROUP
        return await listing[simple].read(
            database,
            page,
            group_id=group_id,
            sees_all=sees_all,
            hers_only=min_level is not None,
            **viewer,
            **filters,
        )
    if min_level is not None or (filters["visibility"] == "private" and not sees_all):
        return await _OF_VIEWER[simple].read(database, page, **viewer, **filters)
    return await _ALL[simple].read(database, page, sees_all=sees_all, **viewer, **filters)


@statement(
    entity_statement(
        ENTITIES["project"], "SELECT projects.* FROM projects WHERE projects.id = %(project_id)s"
    )
)
async def show_project(database: Executor, project_id: int, viewer_id: int) -> str:
    """Return the project's entity. Raise NotFound if it no longer exists."""


@statement(
    """
    SELECT projects.id, namespaces.lineage, projects.path, projects.full_path, projects.visibility,
        projects.default_branch, projects.ci_config_path, projects.archived, projects.public_jobs,
        projects.repository_access_level, projects.builds_access_level,
        projects.ci_pipeline_variables_minimum_override_role, hers.role,
        %(admin)s::boolean AS admin,
        coalesce(lower(%(path)s::text) <> lower(projects.full_path), false) AS moved
    FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN %(job_project_id)s::bigint IS NULL OR lets_in_jobs_of(projects, %(job_project_id)s::bigint)
            THEN %(user_id)s::bigint END AS id
        OFFSET 0) viewer
    CROSS JOIN LATERAL (
        SELECT CASE WHEN %(admin)s THEN 50 ELSE project_role(projects, namespaces, viewer.id, %(now)s) END AS role
        OFFSET 0) hers
    WHERE projects.id = coalesce(
            %(project_id)s::bigint, (SELECT routes.project_id FROM routes WHERE routes.path = lower(%(path)s::text)))
        AND is_visible(projects.visibility, hers.role >= 10, is_insider(viewer.id))
    """,
    prepared=True,
)
async def find_project(
    database: Executor,
    *,
    project_id: int | None,
    path: str | None,
    user_id: int | None,
    admin: bool,
    job_project_id: int | None,
) -> Project | None:
    """Find a project by id or, without one, by a current or former path. Return None if the user cannot see
    it. The user's roles do not count for a job of a `job_project_id` that the project does not admit."""


@attrs.frozen(kw_only=True)
class Settings:
    """The attributes of a project that can be changed."""

    name: str
    path: str
    full_path: str
    description: str | None
    visibility: str
    default_branch: str
    ci_config_path: str | None
    public_jobs: bool
    repository_access_level: str
    builds_access_level: str
    only_allow_merge_if_pipeline_succeeds: bool
    allow_merge_on_skipped_pipeline: bool
    only_allow_merge_if_all_status_checks_passed: bool
    ci_pipeline_variables_minimum_override_role: OverrideRole
    merge_method: str
    squash_option: str
    only_allow_merge_if_all_discussions_are_resolved: bool
    build_timeout: int
    remove_source_branch_after_merge: bool
    ci_default_git_depth: int
    build_git_strategy: str
    auto_cancel_pending_pipelines: str
    ci_id_token_sub_claim_components: list[str]
    archived: bool


@attrs.frozen(kw_only=True)
class LockedProject(Settings):
    """A locked project; `limit` is the visibility of its namespace, which it cannot exceed."""

    namespace_id: int
    limit: str


#: Lock first the rows whose removal or hiding includes the project, in the order that all transactions use.
@statement("""
    SELECT projects.name, projects.path, projects.full_path, projects.description, projects.visibility,
        projects.default_branch, projects.ci_config_path, projects.public_jobs, projects.repository_access_level,
        projects.builds_access_level, projects.only_allow_merge_if_pipeline_succeeds,
        projects.allow_merge_on_skipped_pipeline, projects.only_allow_merge_if_all_status_checks_passed,
        projects.ci_pipeline_variables_minimum_override_role, projects.merge_method, projects.squash_option,
        projects.only_allow_merge_if_all_discussions_are_resolved, projects.build_timeout,
        projects.remove_source_branch_after_merge, projects.ci_default_git_depth, projects.build_git_strategy,
        projects.auto_cancel_pending_pipelines, projects.ci_id_token_sub_claim_components, projects.archived,
        projects.namespace_id,
        namespaces.visibility AS limit
    FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE projects.id = %(project_id)s FOR SHARE OF namespaces FOR NO KEY UPDATE OF projects
    """)
async def lock_project(transaction: Transaction, project_id: int) -> LockedProject:
    """Return the project's attributes and prevent others from changing them until the transaction ends. Raise
    NotFound."""


@statement("""
    UPDATE projects SET name = %(name)s, path = %(path)s, full_path = %(full_path)s, description = %(description)s,
        visibility = %(visibility)s, default_branch = %(default_branch)s, ci_config_path = %(ci_config_path)s,
        public_jobs = %(public_jobs)s, repository_access_level = %(repository_access_level)s,
        builds_access_level = %(builds_access_level)s,
        only_allow_merge_if_pipeline_succeeds = %(only_allow_merge_if_pipeline_succeeds)s,
        allow_merge_on_skipped_pipeline = %(allow_merge_on_skipped_pipeline)s,
        only_allow_merge_if_all_status_checks_passed = %(only_allow_merge_if_all_status_checks_passed)s,
        ci_pipeline_variables_minimum_override_role = %(ci_pipeline_variables_minimum_override_role)s,
        merge_method = %(merge_method)s, squash_option = %(squash_option)s,
        only_allow_merge_if_all_discussions_are_resolved = %(only_allow_merge_if_all_discussions_are_resolved)s,
        build_timeout = %(build_timeout)s, remove_source_branch_after_merge = %(remove_source_branch_after_merge)s,
        ci_default_git_depth = %(ci_default_git_depth)s, build_git_strategy = %(build_git_strategy)s,
        auto_cancel_pending_pipelines = %(auto_cancel_pending_pipelines)s,
        ci_id_token_sub_claim_components = %(ci_id_token_sub_claim_components)s,
        archived = %(archived)s, namespace_id = %(namespace_id)s, updated_at = %(now)s
    WHERE id = %(project_id)s
""")
async def update_project(transaction: Transaction, project_id: int, after: LockedProject) -> None:
    """Update the locked row."""


@statement("""
    INSERT INTO projects (namespace_id, creator_id, name, path, full_path, description, visibility, default_branch,
        ci_config_path, public_jobs, repository_access_level, builds_access_level,
        only_allow_merge_if_pipeline_succeeds, allow_merge_on_skipped_pipeline,
        only_allow_merge_if_all_status_checks_passed, only_allow_merge_if_all_discussions_are_resolved, merge_method,
        squash_option, build_timeout, remove_source_branch_after_merge, ci_default_git_depth, build_git_strategy,
        auto_cancel_pending_pipelines, created_at, updated_at, last_activity_at)
    VALUES (%(namespace_id)s, %(creator_id)s, %(name)s, %(path)s, %(full_path)s, %(description)s, %(visibility)s,
        %(default_branch)s, %(ci_config_path)s, %(public_jobs)s, %(repository_access_level)s,
        %(builds_access_level)s, %(only_allow_merge_if_pipeline_succeeds)s, %(allow_merge_on_skipped_pipeline)s,
        %(only_allow_merge_if_all_status_checks_passed)s, %(only_allow_merge_if_all_discussions_are_resolved)s,
        %(merge_method)s, %(squash_option)s, %(build_timeout)s, %(remove_source_branch_after_merge)s,
        %(ci_default_git_depth)s, %(build_git_strategy)s, %(auto_cancel_pending_pipelines)s, %(now)s, %(now)s, %(now)s)
    RETURNING id
""")
async def create_project(transaction: Transaction, **values: Any) -> int: ...


@statement("""
    SELECT EXISTS (SELECT FROM projects WHERE projects.id = %(project_id)s)
""")
async def is_there(database: Executor, project_id: int) -> bool: ...


LOCK_PROJECTS_LIMIT = """
    SELECT users.projects_limit FROM users WHERE users.id = %(user_id)s FOR NO KEY UPDATE
"""


async def lock_projects_limit(transaction: Transaction, user_id: int) -> int:
    """Return the number of personal projects that the user may have, and make other transactions that ask
    wait until this one ends. Raise NotFound."""
    limit = await transaction.value(LOCK_PROJECTS_LIMIT, user_id=user_id)
    if limit is None:
        raise NotFound
    return int(limit)


@statement("""
    SELECT EXISTS (
        SELECT FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE namespaces.owner_id = %(user_id)s OFFSET %(at_least)s - 1)
""")
async def has_personal_projects(database: Executor, user_id: int, *, at_least: int) -> bool:
    """Return whether the user's own namespace holds at least that many projects (one or more)."""


@attrs.frozen(kw_only=True)
class Namespace:
    """The namespace of a project: a group, or (with `owner_id`) a user's own. `role` is the caller's."""

    id: int
    owner_id: int | None
    lineage: list[int]
    role: int
    project_creation_level: str


@statement("""
    SELECT namespaces.id, namespaces.owner_id, namespaces.lineage, hers.role, namespaces.project_creation_level
    FROM namespaces
    CROSS JOIN LATERAL (
        SELECT CASE WHEN %(admin)s THEN 50 ELSE namespace_role(namespaces, %(user_id)s, %(now)s) END AS role
        OFFSET 0) hers
    WHERE namespaces.id = coalesce(%(namespace_id)s::bigint, (
            SELECT routes.namespace_id FROM routes WHERE routes.path = lower(%(path)s::text) AND NOT routes.moved))
        AND is_visible(namespaces.visibility, hers.role > 0, is_insider(%(user_id)s))
    """)
async def find_namespace(
    database: Executor, *, namespace_id: int | None, path: str | None, user_id: int, admin: bool
) -> Namespace | None:
    """Find a namespace that the user can see, by id or (without one) by full path."""


@attrs.frozen(kw_only=True)
class NamedNamespace(Namespace):
    """A namespace in a list of choices."""

    full_path: str


@statement("""
    SELECT namespaces.id, namespaces.owner_id, namespaces.lineage,
        CASE WHEN %(admin)s THEN 50 ELSE namespace_role(namespaces, %(user_id)s, %(now)s) END AS role,
        namespaces.project_creation_level, namespaces.full_path
    FROM namespaces
    WHERE namespaces.owner_id = %(user_id)s
        OR namespaces.kind = 'group' AND (%(admin)s OR namespaces.lineage && ARRAY(
            SELECT members.namespace_id FROM members
            WHERE members.user_id = %(user_id)s AND members.namespace_id IS NOT NULL
                AND counts(members, %(now)s)))
    ORDER BY namespaces.owner_id IS NULL, lower(namespaces.full_path) LIMIT %(limit)s
    """)
async def namespaces_of(database: Executor, user_id: int, *, admin: bool, limit: int) -> list[NamedNamespace]:
    """Return the user's own namespace, then the groups that the user is a member of; all groups for
    administrators."""
