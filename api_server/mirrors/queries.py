# mypy: disable-error-code="empty-body"
"""Statements about mirrors, the states of their runs, and the LFS objects that a target still lacks.

Each event of a run is one statement. The table `remote_mirror_transitions` holds the states: `none` → `started` →
`finished` | `to_retry` | `failed`; from each of the last three a run can begin again.
"""

import datetime
from collections.abc import Collection, Sequence
from typing import Literal

import attrs

from api_server.git.remote.ssh_keys import HostKey
from api_server.mirrors.configuration import Configuration, host_keys_column
from api_server.state.database import EntityRow, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

_MIRROR = read_sql("api_server.mirrors")["mirror"]
LISTING = ListQuery(
    _MIRROR, "SELECT remote_mirrors.* FROM remote_mirrors WHERE remote_mirrors.project_id = %(project_id)s"
)


async def list_mirrors(database: Executor, page: Page, project_id: int) -> ListPage:
    return await LISTING.read(database, page, project_id=project_id)


_ONE = "WHERE remote_mirrors.id = %(id)s AND remote_mirrors.project_id = %(project_id)s"

SHOW = entity_statement(_MIRROR, f"SELECT remote_mirrors.* FROM remote_mirrors {_ONE}")


async def show(database: Executor, project_id: int, mirror_id: int) -> str:
    """Return the mirror's entity. Raise NotFound."""
    return await database.entity(SHOW, id=mirror_id, project_id=project_id)


@attrs.frozen(kw_only=True)
class Mirror(Configuration):
    """A mirror: its configuration and state. Its runs are numbered; `run` is the number of the last one."""

    id: int
    project_id: int
    update_status: str
    last_update_at: datetime.datetime | None
    last_update_started_at: datetime.datetime | None
    run: int
    updated_at: datetime.datetime


COLUMNS = """
    remote_mirrors.url, remote_mirrors.shown_url, remote_mirrors.uniqueness_key, remote_mirrors.credentials,
    remote_mirrors.enabled, remote_mirrors.only_protected_branches, remote_mirrors.keep_divergent_refs,
    remote_mirrors.mirror_branch_regex, remote_mirrors.auth_method, remote_mirrors.host_keys,
    remote_mirrors.private_key, remote_mirrors.public_key, remote_mirrors.id, remote_mirrors.project_id,
    remote_mirrors.update_status, remote_mirrors.last_update_at, remote_mirrors.last_update_started_at,
    remote_mirrors.run, remote_mirrors.updated_at
"""
_FIND = f"SELECT {COLUMNS} FROM remote_mirrors {_ONE}"
FIND = Query(_FIND, Mirror)
LOCK = Query(f"{_FIND} FOR UPDATE", Mirror)


async def find(database: Executor, project_id: int, mirror_id: int) -> Mirror:
    """Return the mirror. Raise NotFound, also if it belongs to another project."""
    return await database.one(FIND, id=mirror_id, project_id=project_id)


async def lock(transaction: Transaction, project_id: int, mirror_id: int) -> Mirror:
    """Lock and return the mirror until the transaction ends. Raise NotFound, also if it belongs to another project."""
    return await transaction.one(LOCK, id=mirror_id, project_id=project_id)


@statement("""
    SELECT count(*) FROM remote_mirrors WHERE project_id = %(project_id)s AND enabled
""")
async def count_enabled(transaction: Transaction, project_id: int) -> int: ...


CREATE = entity_statement(
    _MIRROR,
    """
    INSERT INTO remote_mirrors (project_id, enabled, url, shown_url, uniqueness_key, credentials, auth_method,
        private_key, public_key, host_keys, only_protected_branches, keep_divergent_refs, mirror_branch_regex,
        created_at, updated_at)
    VALUES (%(project_id)s, %(enabled)s, %(url)s, %(shown_url)s, %(uniqueness_key)s, %(credentials)s,
        %(auth_method)s, %(private_key)s, %(public_key)s, %(host_keys)s, %(only_protected_branches)s,
        %(keep_divergent_refs)s, %(mirror_branch_regex)s, %(now)s, %(now)s)
    RETURNING *
    """,
)


async def create(transaction: Transaction, project_id: int, configuration: Configuration) -> EntityRow:
    """Store and return a new mirror. Raise Conflict if the project has one with the same `uniqueness_key`."""
    return await transaction.one(CREATE, project_id=project_id, **configuration.columns)


UPDATE = entity_statement(
    _MIRROR,
    """
    UPDATE remote_mirrors SET enabled = %(enabled)s, url = %(url)s, shown_url = %(shown_url)s,
        uniqueness_key = %(uniqueness_key)s, credentials = %(credentials)s, auth_method = %(auth_method)s,
        private_key = %(private_key)s, public_key = %(public_key)s, host_keys = %(host_keys)s,
        only_protected_branches = %(only_protected_branches)s, keep_divergent_refs = %(keep_divergent_refs)s,
        mirror_branch_regex = %(mirror_branch_regex)s, updated_at = %(now)s
    WHERE id = %(id)s
    RETURNING *
    """,
)


async def update(transaction: Transaction, mirror_id: int, configuration: Configuration) -> str:
    """Store the configuration and return the mirror's JSON. Raise NotFound; Conflict for a used `uniqueness_key`."""
    return await transaction.entity(UPDATE, id=mirror_id, **configuration.columns)


@statement("""
    DELETE FROM remote_mirrors WHERE id = %(mirror_id)s
""")
async def delete(transaction: Transaction, mirror_id: int) -> None: ...


@attrs.frozen
class PublicKey:
    """The public key of a mirror that logs in by key; its target must accept it."""

    public_key: str


PUBLIC_KEY = Query(
    f"""
    SELECT remote_mirrors.public_key FROM remote_mirrors {_ONE}
        AND remote_mirrors.auth_method = 'ssh_public_key' AND remote_mirrors.url ILIKE 'ssh://%%'
    """,
    PublicKey,
)


async def public_key(database: Executor, project_id: int, mirror_id: int) -> str:
    """Return the mirror's public key. Raise NotFound, also if the mirror does not log in by key."""
    return (await database.one(PUBLIC_KEY, id=mirror_id, project_id=project_id)).public_key


@statement("SELECT name FROM protected_branches WHERE project_id = %(project_id)s ORDER BY name")
async def protected_names(database: Executor, project_id: int) -> list[str]:
    """Return the names of the project's protected branches, which may contain wildcards."""


@attrs.frozen
class Maintainer:
    """A user who can repair a mirror."""

    id: int
    email: str


@statement("""
    SELECT users.id, users.email FROM users
    WHERE users.state = 'active' AND NOT users.bot AND users.id IN (
        SELECT members.user_id FROM members, projects JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE projects.id = %(project_id)s
            AND (members.project_id = projects.id OR members.namespace_id = ANY (namespaces.lineage))
            AND members.access_level >= 40
            AND counts(members, %(now)s)
        UNION
        SELECT namespaces.owner_id FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE projects.id = %(project_id)s)
    ORDER BY users.id
    """)
async def maintainers(database: Executor, project_id: int) -> list[Maintainer]:
    """Return the active people with at least the Maintainer role in the project, also by inheritance."""


@attrs.frozen
class MirroredProject:
    """A mirror's project; `url` is the address of its page."""

    full_path: str
    url: str


@statement("""
    SELECT projects.full_path, web_url(projects.full_path) AS url
    FROM projects WHERE projects.id = %(project_id)s
    """)
async def project_of(database: Executor, project_id: int) -> MirroredProject:
    """Return the mirror's project. Raise NotFound."""


#: Maximum number of automatic runs after a failed one; if the last of them fails too, the mirror has failed.
MAX_RETRIES = 3

Ending = Literal["succeed", "diverge", "retry", "fail"]

_MAY_RUN = "remote_mirrors.enabled AND projects.repository_access_level <> 'disabled'"


@statement(f"""
    UPDATE remote_mirrors SET
        update_status = transition.after,
        last_update_started_at = %(now)s,
        run = remote_mirrors.run + 1
    FROM remote_mirror_transitions transition, projects
    WHERE remote_mirrors.id = %(mirror_id)s
        AND transition.event = 'begin' AND transition.before = remote_mirrors.update_status
        AND projects.id = remote_mirrors.project_id
        AND {_MAY_RUN}
    RETURNING {COLUMNS}
    """)
async def begin_run(transaction: Transaction, mirror_id: int) -> Mirror | None:
    """Begin a run and return the mirror with its number, or None if the mirror is disabled or no longer exists."""


@attrs.frozen
class RunResult:
    """The mirror's `status` after a run, and whether a failure has to be reported to the maintainers now."""

    status: str
    to_be_told: bool


END = Query(
    """
    UPDATE remote_mirrors SET
        update_status = transition.after,
        last_error = %(last_error)s,
        last_update_at =
            CASE WHEN transition.after = 'to_retry' THEN remote_mirrors.last_update_at ELSE %(now)s END,
        last_successful_update_at =
            CASE WHEN transition.after = 'finished' THEN %(now)s ELSE remote_mirrors.last_successful_update_at END,
        retries = CASE WHEN transition.after = 'to_retry' THEN remote_mirrors.retries + 1 ELSE 0 END,
        failure_told = transition.after = 'failed'
            OR transition.after = 'to_retry' AND remote_mirrors.failure_told,
        host_keys = CASE WHEN remote_mirrors.host_keys = '[]' THEN %(host_keys)s ELSE remote_mirrors.host_keys END
    FROM remote_mirror_transitions transition, remote_mirrors mirror_before
    WHERE remote_mirrors.id = %(id)s AND mirror_before.id = remote_mirrors.id AND remote_mirrors.run = %(run)s
        AND transition.before = remote_mirrors.update_status
        AND transition.event = CASE WHEN %(event)s = 'retry' AND remote_mirrors.retries >= %(max_retries)s
            THEN 'fail' ELSE %(event)s END
    RETURNING remote_mirrors.update_status AS status,
        remote_mirrors.update_status = 'failed' AND NOT mirror_before.failure_told AS to_be_told
    """,
    RunResult,
)


async def end_run(
    transaction: Transaction,
    mirror_id: int,
    run: int,
    event: Ending,
    last_error: str | None,
    host_keys: Sequence[HostKey] = (),
) -> RunResult | None:
    """End the run with that number; `retry` becomes `fail` after `MAX_RETRIES`. Pin the `host_keys` of the target's
    server if none are pinned yet. Return None if the run was superseded.

    This is one statement: a row that is changed twice is checked again against its project, for which a transaction
    that removes the project would wait.
    """
    return await transaction.row(
        END,
        id=mirror_id,
        run=run,
        event=event,
        last_error=last_error,
        max_retries=MAX_RETRIES,
        host_keys=host_keys_column(host_keys),
    )


@statement("""
    SELECT EXISTS (SELECT FROM remote_mirrors WHERE id = %(mirror_id)s AND run = %(run)s AND update_status = 'started')
""")
async def is_current_run(database: Executor, mirror_id: int, run: int) -> bool:
    """Return whether the run is still valid: mirror and project exist, and the target has not changed."""


@statement("""
    WITH forgotten AS (DELETE FROM remote_mirror_lfs_owed WHERE mirror_id = %(mirror_id)s)
    UPDATE remote_mirrors SET
        update_status = transition.after,
        lfs_followed = false,
        run = remote_mirrors.run + 1,
        retries = 0,
        failure_told = false,
        last_error = NULL,
        last_update_at = NULL,
        last_successful_update_at = NULL
    FROM remote_mirror_transitions transition
    WHERE remote_mirrors.id = %(mirror_id)s
        AND transition.event = 'retarget' AND transition.before = remote_mirrors.update_status
""")
async def retarget(transaction: Transaction, mirror_id: int) -> None:
    """Clear the results of runs with the former target or credentials. A run in progress notices it and ends."""


@statement(f"""
    SELECT {COLUMNS} FROM remote_mirrors JOIN projects ON projects.id = remote_mirrors.project_id
    WHERE remote_mirrors.update_status IN ('started', 'to_retry')
        AND (remote_mirrors.update_status = 'started' OR {_MAY_RUN})
        AND NOT EXISTS (
            SELECT FROM procrastinate_jobs
            WHERE procrastinate_jobs.lock = %(lock_prefix)s || remote_mirrors.id
                AND procrastinate_jobs.status IN ('todo', 'doing'))
    ORDER BY remote_mirrors.id
    """)
async def unattended_runs(database: Executor, lock_prefix: str) -> list[Mirror]:
    """Return the mirrors with an unfinished run, or with another one to come, but no task in the queue. The lock of a
    mirror's task is `lock_prefix` followed by the mirror's id."""


@statement(f"""
    SELECT {COLUMNS} FROM remote_mirrors
    WHERE remote_mirrors.project_id = %(project_id)s AND remote_mirrors.enabled
    ORDER BY remote_mirrors.id
    """)
async def enabled_mirrors(transaction: Transaction, project_id: int) -> list[Mirror]:
    """Return the project's enabled mirrors, which run after pushes."""


@attrs.frozen
class LfsDebt:
    """Whether the target's commits have been searched for LFS pointers (`lfs_followed`), and whether the target still
    lacks objects of those commits (`owes`)."""

    lfs_followed: bool
    owes: bool


@statement("""
    SELECT remote_mirrors.lfs_followed, EXISTS (
        SELECT FROM remote_mirror_lfs_owed owed
        JOIN lfs_objects ON lfs_objects.oid = owed.oid AND lfs_objects.project_id = remote_mirrors.project_id
        WHERE owed.mirror_id = remote_mirrors.id) AS owes
    FROM remote_mirrors
    WHERE remote_mirrors.id = %(id)s AND remote_mirrors.run = %(run)s
        AND EXISTS (SELECT FROM lfs_objects WHERE lfs_objects.project_id = remote_mirrors.project_id)
    """)
async def lfs_debt(database: Executor, mirror: Mirror) -> LfsDebt | None:
    """Return the LFS state of the mirror, or None if the project has no LFS objects or the run was superseded."""


@attrs.frozen
class OwedObject:
    """An LFS object of the project that the mirror's target may lack."""

    oid: str
    size: int
    object_key: str


@statement("""
    SELECT lfs_objects.oid, lfs_objects.size, lfs_objects.object_key FROM lfs_objects
    WHERE lfs_objects.project_id = %(project_id)s AND lfs_objects.oid IN (
        SELECT unnest(%(new)s::text[])
        UNION SELECT owed.oid FROM remote_mirror_lfs_owed owed WHERE owed.mirror_id = %(id)s)
    ORDER BY lfs_objects.oid
    """)
async def owed_objects(database: Executor, mirror: Mirror, new: Collection[str]) -> list[OwedObject]:
    """Return the project's objects among the `new` ones and those that the target still lacks from earlier runs."""


@statement("""
    WITH mirror AS (
        UPDATE remote_mirrors SET lfs_followed = true WHERE id = %(id)s AND run = %(run)s RETURNING id
    ), arrived AS (
        DELETE FROM remote_mirror_lfs_owed owed USING mirror
        WHERE owed.mirror_id = mirror.id AND owed.oid = ANY (%(arrived)s)
    )
    INSERT INTO remote_mirror_lfs_owed (mirror_id, oid)
    SELECT mirror.id, oid FROM mirror, unnest(%(owed)s::text[]) AS oid
    ON CONFLICT DO NOTHING
""")
async def note_lfs_objects(
    transaction: Transaction, mirror: Mirror, *, arrived: Collection[str], owed: Collection[str]
) -> None:
    """Record which objects the target has now, and which it lacks although its commits point to them."""


@statement("""
    UPDATE remote_mirrors SET lfs_followed = false WHERE id = %(id)s AND run = %(run)s
""")
async def search_all_again(transaction: Transaction, mirror: Mirror) -> None:
    """Make the next run search all commits again."""
