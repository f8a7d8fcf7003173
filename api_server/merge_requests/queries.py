# mypy: disable-error-code="empty-body"
"""Statements about merge requests, the people named in them, their approvals and their versions."""

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import orjson

from api_server.ci.pipelines.queries import ENTITIES as PIPELINES
from api_server.merge_requests.heads import Heads
from api_server.namespaces.resources import Project
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query


def entities(note_body: str) -> dict[str, str]:
    """Return the parts of entities.sql with this text of a note."""
    return read_sql("api_server.merge_requests", extra={**PIPELINES, "note_body": note_body})


ENTITIES = entities("page.body")

SHOW = entity_statement(
    ENTITIES["merge_request_details"],
    "SELECT merge_requests.* FROM merge_requests WHERE merge_requests.id = %(id)s",
)


async def show(database: Executor, merge_request_id: int, project: Project) -> str:
    """Return the merge request's entity for a caller who can see its project: with the caller's rights, and
    with the pipeline of its head if the caller may see pipelines."""
    return await database.entity(
        SHOW,
        id=merge_request_id,
        shows_pipelines=project.shows_pipelines,
        viewer_role=project.role,
        viewer_is_admin=project.admin,
    )


#: Whether a rebase is running; after 15 minutes the process that ran it is assumed to have died.
UNDER_REBASE = """
    (merge_requests.rebasing_since IS NOT NULL AND merge_requests.rebasing_since > %(now)s - interval '15 minutes')
"""


@statement(f"SELECT {UNDER_REBASE} FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s")
async def is_rebasing(database: Executor, merge_request_id: int) -> bool: ...


@attrs.frozen(kw_only=True)
class MergeRequest:
    """The attributes of a merge request that rules need."""

    id: int
    iid: int
    project_id: int
    author_id: int | None
    title: str
    draft: bool
    description: str
    labels: list[str]
    source_branch: str
    target_branch: str
    remove_source_branch: bool
    squash: bool
    state: str
    head_sha: str
    base_sha: str | None
    #: The target's head when it was last known to have moved.
    target_sha: str | None
    mergeability: str
    #: The commit that squashes all commits; the merge request is merged when it arrives in the target.
    squash_commit_sha: str | None
    #: The user who has merged it or requested automatic merging; the options of the latter as JSON.
    merge_user_id: int | None
    auto_merge: str | None


#: The columns of `MergeRequest`.
COLUMNS = """
    merge_requests.id, merge_requests.iid, merge_requests.project_id, merge_requests.author_id, merge_requests.title,
    is_draft(merge_requests.title) AS draft, merge_requests.description, merge_requests.labels,
    merge_requests.source_branch, merge_requests.target_branch, merge_requests.remove_source_branch,
    merge_requests.squash, merge_requests.state, merge_requests.head_sha, merge_requests.base_sha,
    merge_requests.target_sha, merge_requests.mergeability, merge_requests.squash_commit_sha,
    merge_requests.merge_user_id, merge_requests.auto_merge
"""


@statement(
    f"""
    SELECT {COLUMNS} FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = %(iid)s::bigint
    """,
    prepared=True,
)
async def find(database: Executor, project_id: int, iid: int) -> MergeRequest:
    """Return the merge request. Raise NotFound."""


@statement(f"SELECT {COLUMNS} FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s FOR UPDATE")
async def lock(executor: Executor, merge_request_id: int) -> MergeRequest:
    """Lock and return the merge request. Raise NotFound."""


LOCK_PROJECT = """
    SELECT projects.id FROM projects JOIN merge_requests ON merge_requests.project_id = projects.id
    WHERE merge_requests.id = %(id)s FOR NO KEY UPDATE OF projects
"""


async def lock_with_project(executor: Executor, merge_request_id: int) -> MergeRequest:
    """Lock the project and then the merge request, in the order of transactions that move refs, and return
    the merge request. Raise NotFound."""
    await executor.value(LOCK_PROJECT, id=merge_request_id)
    return await lock(executor, merge_request_id)


OPEN_PAIR = """
    SELECT merge_requests.iid FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.source_branch = %(source_branch)s
        AND merge_requests.target_branch = %(target_branch)s AND merge_requests.state = 'opened'
"""


async def iid_of_open_pair(
    transaction: Transaction, project_id: int, source_branch: str, target_branch: str
) -> int | None:
    iid: int | None = await transaction.value(
        OPEN_PAIR, project_id=project_id, source_branch=source_branch, target_branch=target_branch
    )
    return iid


CREATE = Query(
    f"""
    INSERT INTO merge_requests (project_id, iid, author_id, title, description, labels, source_branch, target_branch,
        remove_source_branch, squash, head_sha, start_sha, target_sha, base_sha, last_commit, mergeability,
        fast_forward, created_at, updated_at)
    SELECT projects.id, 1 + greatest(projects.greatest_deleted_merge_request_iid, (
            SELECT max(others.iid) FROM merge_requests others WHERE others.project_id = projects.id)),
        %(author_id)s, %(title)s, %(description)s, %(labels)s, %(source_branch)s, %(target_branch)s,
        coalesce(%(remove_source_branch)s, projects.remove_source_branch_after_merge),
        coalesce(%(squash)s, projects.squash_option IN ('always', 'default_on')),
        %(head_sha)s, %(start_sha)s, %(start_sha)s, %(base_sha)s, %(last_commit)s, %(mergeability)s, %(fast_forward)s,
        %(now)s, %(now)s
    FROM projects WHERE projects.id = %(project_id)s
    RETURNING {COLUMNS}
    """,
    MergeRequest,
)


async def create(transaction: Transaction, heads: Heads, **values: Any) -> MergeRequest:
    """Create a merge request and return it. The project has to be locked, so that nobody else takes the same
    iid."""
    return await transaction.one(CREATE, **values, **heads.columns)


EDIT = """
    UPDATE merge_requests SET
        title = coalesce(%(title)s, title),
        description = coalesce(%(description)s, description),
        labels = coalesce(%(labels)s, labels),
        target_branch = coalesce(%(target_branch)s, target_branch),
        remove_source_branch = coalesce(%(remove_source_branch)s, remove_source_branch),
        squash = coalesce(%(squash)s, squash),
        auto_merge = CASE WHEN %(target_branch)s IS NULL THEN auto_merge END,
        merge_user_id = CASE WHEN %(target_branch)s IS NULL THEN merge_user_id END,
        last_edited_at = CASE WHEN coalesce(%(title)s, %(description)s) IS NULL THEN last_edited_at ELSE %(now)s END,
        last_edited_by_id =
            CASE WHEN coalesce(%(title)s, %(description)s) IS NULL THEN last_edited_by_id ELSE %(user_id)s END,
        updated_by_id = %(user_id)s,
        updated_at = %(now)s
    WHERE id = %(id)s
    RETURNING is_draft(title)
"""


async def edit(transaction: Transaction, merge_request_id: int, user_id: int, **values: Any) -> bool:
    """Change the attributes that are given and not None; return whether it is a draft now. A new target
    branch ends automatic merging."""
    columns = ("title", "description", "labels", "target_branch", "remove_source_branch", "squash")
    values = dict.fromkeys(columns) | values
    return bool(await transaction.value(EDIT, id=merge_request_id, user_id=user_id, **values))


@statement("""
    UPDATE merge_requests SET state = 'closed', closed_by_id = %(user_id)s, closed_at = %(now)s,
        merge_user_id = NULL, auto_merge = NULL, updated_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = %(merge_request_id)s
""")
async def close(transaction: Transaction, merge_request_id: int, user_id: int) -> None:
    """Close the merge request; this ends automatic merging."""


@statement("""
    UPDATE merge_requests SET state = 'opened', closed_by_id = NULL, closed_at = NULL,
        updated_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = %(merge_request_id)s
""")
async def reopen(transaction: Transaction, merge_request_id: int, user_id: int) -> None: ...


@statement("""
    WITH deleted AS (DELETE FROM merge_requests WHERE id = %(merge_request_id)s RETURNING project_id, iid)
    UPDATE projects
    SET greatest_deleted_merge_request_iid = greatest(projects.greatest_deleted_merge_request_iid, deleted.iid)
    FROM deleted WHERE projects.id = deleted.project_id
""")
async def delete(transaction: Transaction, merge_request_id: int) -> None:
    """Delete the merge request with everything that belongs to it; its number is not reused."""


@attrs.frozen(kw_only=True)
class ActiveUser:
    """The user who has requested something that is done later."""

    id: int
    name: str
    email: str
    admin: bool


@statement("""
    SELECT users.id, users.name, users.email, users.admin FROM users
    WHERE users.id = %(user_id)s AND users.state = 'active'
    """)
async def find_active_user(database: Executor, user_id: int) -> ActiveUser | None: ...


@statement("SELECT merge_requests.iid FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s")
async def iid_of(database: Executor, merge_request_id: int) -> int: ...


Part = Literal["assignee", "reviewer"]

REVIEWERS = ListQuery(
    ENTITIES["reviewer"],
    """
    SELECT people.* FROM merge_request_people people
    WHERE people.merge_request_id = %(merge_request_id)s AND people.part = 'reviewer'
    """,
)


async def list_reviewers(database: Executor, page: Page, merge_request_id: int) -> ListPage:
    return await REVIEWERS.read(database, page, merge_request_id=merge_request_id)


PARTICIPANTS = ListQuery(
    ENTITIES["participant"],
    """
    SELECT taking_part.id FROM (
        SELECT merge_requests.author_id AS id FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s
        UNION
        SELECT people.user_id FROM merge_request_people people
        WHERE people.merge_request_id = %(merge_request_id)s
        UNION
        SELECT notes.author_id FROM notes
        WHERE notes.merge_request_id = %(merge_request_id)s AND NOT notes.system AND NOT notes.internal) taking_part
    WHERE taking_part.id IS NOT NULL
    """,
)


async def list_participants(database: Executor, page: Page, merge_request_id: int) -> ListPage:
    """Return a page of the author, assignees, reviewers, and authors of notes that everybody may read; each
    once."""
    return await PARTICIPANTS.read(database, page, merge_request_id=merge_request_id)


READERS = """
    SELECT coalesce(array_agg(users.id ORDER BY wanted.position), '{}')
    FROM unnest(%(user_ids)s::bigint[]) WITH ORDINALITY wanted (id, position)
    JOIN users ON users.id = wanted.id AND users.state = 'active'
    JOIN projects ON projects.id = %(project_id)s
    JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE reads_repository(
        projects,
        CASE WHEN users.admin THEN 50 ELSE project_role(projects, namespaces, users.id, %(now)s) END,
        NOT users.external)
"""


async def readers_among(database: Executor, project_id: int, user_ids: list[int]) -> list[int]:
    """Return those of these users who can see the project's merge requests, in the given order."""
    return list(await database.value(READERS, project_id=project_id, user_ids=user_ids))


@attrs.frozen
class People:
    """JSON arrays in the form of webhook deliveries."""

    assignees: str
    reviewers: str


DELIVERED = Query(
    """
    SELECT delivered_people(merge_requests, 'assignee') AS assignees,
        delivered_people(merge_requests, 'reviewer') AS reviewers
    FROM merge_requests WHERE merge_requests.id = %(id)s
    """,
    People,
)


async def delivered_people(database: Executor, merge_request_id: int, part: Part) -> list[dict[str, Any]]:
    """Return the assignees or reviewers in the form of webhook deliveries. Raise NotFound."""
    people = await database.one(DELIVERED, id=merge_request_id)
    entities: list[dict[str, Any]] = orjson.loads(getattr(people, f"{part}s"))
    return entities


@statement("""
    WITH others AS (
        DELETE FROM merge_request_people
        WHERE merge_request_id = %(merge_request_id)s AND part = %(part)s AND user_id <> ALL (%(user_ids)s::bigint[]))
    INSERT INTO merge_request_people (merge_request_id, part, user_id, created_at)
    SELECT %(merge_request_id)s, %(part)s, wanted.id, %(now)s
    FROM unnest(%(user_ids)s::bigint[]) WITH ORDINALITY wanted (id, position) ORDER BY wanted.position
    ON CONFLICT (merge_request_id, part, user_id) DO NOTHING
""")
async def replace_people(
    transaction: Transaction, merge_request_id: int, part: Part, user_ids: list[int]
) -> None:
    """Replace the assignees or reviewers; those who stay keep their position."""


@attrs.frozen
class NamedUser:
    """A user, by the user name or id that was given."""

    name: str
    id: int


USERS_NAMED = Query(
    """
    SELECT lower(users.username) AS name, users.id FROM users WHERE lower(users.username) = ANY (%(names)s::text[])
    UNION ALL
    SELECT users.id::text, users.id FROM users WHERE users.id = ANY (%(ids)s::bigint[])
    """,
    NamedUser,
)


async def users_named(database: Executor, names: Sequence[str], ids: Sequence[int]) -> dict[str, int]:
    """Return the ids of the users with these user names or ids, by the names in lower case and by the ids as
    text."""
    rows = await database.rows(USERS_NAMED, names=[name.lower() for name in names], ids=list(ids))
    return {row.name: row.id for row in rows}


@statement(
    entity_statement(
        ENTITIES["approvals"],
        "SELECT merge_requests.id FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s",
    )
)
async def show_approvals(
    database: Executor, merge_request_id: int, *, viewer_id: int, viewer_may_approve: bool
) -> str: ...


@statement("""
    INSERT INTO merge_request_approvals (merge_request_id, user_id, created_at)
    VALUES (%(merge_request_id)s, %(user_id)s, %(now)s) ON CONFLICT DO NOTHING
""")
async def approve(transaction: Transaction, merge_request_id: int, user_id: int) -> bool:
    """Record the approval; return whether this user had not approved yet."""


@statement("""
    DELETE FROM merge_request_approvals WHERE merge_request_id = %(merge_request_id)s AND user_id = %(user_id)s
""")
async def unapprove(transaction: Transaction, merge_request_id: int, user_id: int) -> bool:
    """Delete the approval; return whether this user had approved."""


@statement("""
    DELETE FROM merge_request_approvals WHERE merge_request_id = %(merge_request_id)s
""")
async def reset_approvals(transaction: Transaction, merge_request_id: int) -> None:
    """Delete all approvals."""


VERSIONS = ListQuery(
    ENTITIES["version"],
    """
    SELECT merge_request_versions.* FROM merge_request_versions
    WHERE merge_request_versions.merge_request_id = %(merge_request_id)s
    """,
)


async def list_versions(database: Executor, page: Page, merge_request_id: int) -> ListPage:
    return await VERSIONS.read(database, page, merge_request_id=merge_request_id)


@attrs.frozen
class Version:
    """A version; `base_sha` is None for two histories without a common ancestor."""

    id: int
    base_sha: str | None
    head_sha: str


@statement("""
    SELECT merge_request_versions.id, merge_request_versions.base_sha, merge_request_versions.head_sha
    FROM merge_request_versions
    WHERE merge_request_versions.merge_request_id = %(merge_request_id)s
        AND merge_request_versions.id = %(version_id)s
    """)
async def find_version(database: Executor, merge_request_id: int, version_id: int) -> Version:
    """Return the version. Raise NotFound."""


@statement(
    entity_statement(
        ENTITIES["version"],
        "SELECT merge_request_versions.* FROM merge_request_versions WHERE merge_request_versions.id = %(version_id)s",
    )
)
async def show_version(database: Executor, version_id: int) -> str: ...


@statement("""
    INSERT INTO merge_request_versions (merge_request_id, head_sha, start_sha, base_sha, created_at)
    SELECT merge_requests.id, merge_requests.head_sha, merge_requests.start_sha, merge_requests.base_sha, %(now)s
    FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s AND NOT EXISTS (
        SELECT FROM (
            SELECT newest.* FROM merge_request_versions newest WHERE newest.merge_request_id = merge_requests.id
            ORDER BY newest.id DESC LIMIT 1) newest
        WHERE (newest.head_sha, newest.start_sha, newest.base_sha)
            IS NOT DISTINCT FROM (merge_requests.head_sha, merge_requests.start_sha, merge_requests.base_sha))
""")
async def record_version(transaction: Transaction, merge_request_id: int) -> None:
    """Record the present heads as a version, unless the newest version has them already."""
