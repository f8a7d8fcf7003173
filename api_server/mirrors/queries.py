"""Statements about mirrors as they are configured and shown."""

from typing import Any

from api_server.mirrors.configuration import Configuration
from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

MIRROR = read_sql("api_server.mirrors")["mirror"]
LISTING = Listing(
    MIRROR, "SELECT remote_mirrors.* FROM remote_mirrors WHERE remote_mirrors.project_id = %(project_id)s"
)


async def list_mirrors(database: Executor, page: Page, project_id: int) -> Listed:
    return await LISTING.read(database, page, project_id=project_id)


SHOW_MIRROR = one(
    MIRROR,
    "SELECT remote_mirrors.* FROM remote_mirrors "
    "WHERE remote_mirrors.id = %(id)s AND remote_mirrors.project_id = %(project_id)s",
)


async def show_mirror(database: Executor, project_id: int, mirror_id: int) -> str | None:
    return await database.entity_if_there(SHOW_MIRROR, id=mirror_id, project_id=project_id)


LOCK_MIRROR = """
    SELECT remote_mirrors.*, remote_mirrors.enabled AND projects.repository_access_level <> 'disabled' AS works
    FROM remote_mirrors JOIN projects ON projects.id = remote_mirrors.project_id
    WHERE remote_mirrors.id = %(id)s AND remote_mirrors.project_id = %(project_id)s
    FOR UPDATE OF remote_mirrors
"""


async def lock_mirror(transaction: Transaction, project_id: int, mirror_id: int) -> Row | None:
    """The mirror's row, and whether it `works`, which nobody else changes until the transaction ends."""
    return await transaction.row(LOCK_MIRROR, id=mirror_id, project_id=project_id)


COUNT_ENABLED = """
    SELECT count(*) FROM remote_mirrors WHERE project_id = %(project_id)s AND enabled
"""


async def count_enabled(transaction: Transaction, project_id: int) -> int:
    return int(await transaction.value(COUNT_ENABLED, project_id=project_id))


CREATE_MIRROR = one(
    MIRROR,
    """
    INSERT INTO remote_mirrors (project_id, enabled, url, shown_url, uniqueness_key, credentials, auth_method,
        private_key, public_key, host_keys, only_protected_branches, keep_divergent_refs, mirror_branch_regex)
    VALUES (%(project_id)s, %(enabled)s, %(url)s, %(shown_url)s, %(uniqueness_key)s, %(credentials)s,
        %(auth_method)s, %(private_key)s, %(public_key)s, %(host_keys)s, %(only_protected_branches)s,
        %(keep_divergent_refs)s, %(mirror_branch_regex)s)
    RETURNING *
    """,
)


async def create_mirror(transaction: Transaction, project_id: int, configuration: Configuration) -> Row:
    """The new mirror's `id` and `entity`. Raises Conflict."""
    return await transaction.row(CREATE_MIRROR, project_id=project_id, **configuration.columns)


UPDATE_MIRROR = one(
    MIRROR,
    """
    UPDATE remote_mirrors SET enabled = %(enabled)s, url = %(url)s, shown_url = %(shown_url)s,
        uniqueness_key = %(uniqueness_key)s, credentials = %(credentials)s, auth_method = %(auth_method)s,
        private_key = %(private_key)s, public_key = %(public_key)s, host_keys = %(host_keys)s,
        only_protected_branches = %(only_protected_branches)s, keep_divergent_refs = %(keep_divergent_refs)s,
        mirror_branch_regex = %(mirror_branch_regex)s, updated_at = now()
    WHERE id = %(id)s
    RETURNING *
    """,
)


async def update_mirror(transaction: Transaction, mirror_id: int, configuration: Configuration) -> str:
    """Raises Conflict."""
    row: Any = await transaction.row(UPDATE_MIRROR, id=mirror_id, **configuration.columns)
    return str(row.entity)


DELETE_MIRROR = """
    DELETE FROM remote_mirrors WHERE id = %(id)s
"""


async def delete_mirror(transaction: Transaction, mirror_id: int) -> None:
    await transaction.row(DELETE_MIRROR, id=mirror_id)


PUBLIC_KEY = """
    SELECT public_key FROM remote_mirrors
    WHERE id = %(id)s AND project_id = %(project_id)s AND auth_method = 'ssh_public_key' AND url ILIKE 'ssh://%%'
"""


async def public_key(database: Executor, project_id: int, mirror_id: int) -> str | None:
    """The key of a mirror that logs in with one."""
    key = await database.value(PUBLIC_KEY, id=mirror_id, project_id=project_id)
    return None if key is None else str(key)


PROTECTED_NAMES = """
    SELECT name FROM protected_branches WHERE project_id = %(project_id)s ORDER BY name
"""


async def protected_names(database: Executor, project_id: int) -> list[str]:
    """Names of the project's protected branches, with their wildcards."""
    return [row.name for row in await database.rows(PROTECTED_NAMES, project_id=project_id)]


MAINTAINERS = """
    SELECT users.id, users.email FROM users
    WHERE users.state = 'active' AND users.id IN (
        SELECT members.user_id FROM members, projects JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE projects.id = %(project_id)s
            AND (members.project_id = projects.id OR members.namespace_id = ANY (namespaces.lineage))
            AND members.access_level >= 40
            AND counts(members, %(now)s)
        UNION
        SELECT namespaces.owner_id FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE projects.id = %(project_id)s)
    ORDER BY users.id
"""


async def maintainers(database: Executor, project_id: int) -> list[Row]:
    """id and email of those who are Maintainer or more in the project, inherited roles included."""
    return await database.rows(MAINTAINERS, project_id=project_id)


PROJECT_OF_MIRROR = """
    SELECT projects.id, projects.full_path, web_url(projects.full_path) AS url
    FROM projects WHERE projects.id = %(project_id)s
"""


async def project_of(database: Executor, project_id: int) -> Row:
    """id, full_path and web URL."""
    return await database.row(PROJECT_OF_MIRROR, project_id=project_id)
