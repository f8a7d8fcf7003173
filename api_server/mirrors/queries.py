"""Statements about mirrors as they are configured and shown."""

import datetime

import attrs

from api_server.mirrors.configuration import Configuration
from api_server.state.database import Executor, Shown, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query

_MIRROR = read_sql("api_server.mirrors")["mirror"]
LISTING = Listing(
    _MIRROR, "SELECT remote_mirrors.* FROM remote_mirrors WHERE remote_mirrors.project_id = %(project_id)s"
)


async def list_mirrors(database: Executor, page: Page, project_id: int) -> Listed:
    return await LISTING.read(database, page, project_id=project_id)


_ONE = "WHERE remote_mirrors.id = %(id)s AND remote_mirrors.project_id = %(project_id)s"

SHOW = one(_MIRROR, f"SELECT remote_mirrors.* FROM remote_mirrors {_ONE}")


async def show(database: Executor, project_id: int, mirror_id: int) -> str:
    """Raises NotFound."""
    return await database.entity(SHOW, id=mirror_id, project_id=project_id)


@attrs.frozen(kw_only=True)
class Mirror(Configuration):
    """A mirror: its configuration, and where it stands. Its runs are numbered: `run` is the last one."""

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
    """Raises NotFound, also for another project's."""
    return await database.one(FIND, id=mirror_id, project_id=project_id)


async def lock(transaction: Transaction, project_id: int, mirror_id: int) -> Mirror:
    """As it is until the transaction ends. Raises as `find`."""
    return await transaction.one(LOCK, id=mirror_id, project_id=project_id)


COUNT_ENABLED = """
    SELECT count(*) FROM remote_mirrors WHERE project_id = %(project_id)s AND enabled
"""


async def count_enabled(transaction: Transaction, project_id: int) -> int:
    return int(await transaction.value(COUNT_ENABLED, project_id=project_id))


CREATE = one(
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


async def create(transaction: Transaction, project_id: int, configuration: Configuration) -> Shown:
    """The new mirror. Raises Conflict."""
    return await transaction.one(CREATE, project_id=project_id, **configuration.columns)


UPDATE = one(
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
    """The changed mirror's JSON. Raises Conflict, NotFound."""
    return await transaction.entity(UPDATE, id=mirror_id, **configuration.columns)


DELETE = """
    DELETE FROM remote_mirrors WHERE id = %(id)s
"""


async def delete(transaction: Transaction, mirror_id: int) -> None:
    await transaction.run(DELETE, id=mirror_id)


@attrs.frozen
class PublicKey:
    """What the target has to accept from a mirror that logs in by key."""

    public_key: str


PUBLIC_KEY = Query(
    f"""
    SELECT remote_mirrors.public_key FROM remote_mirrors {_ONE}
        AND remote_mirrors.auth_method = 'ssh_public_key' AND remote_mirrors.url ILIKE 'ssh://%%'
    """,
    PublicKey,
)


async def public_key(database: Executor, project_id: int, mirror_id: int) -> str:
    """Raises NotFound, also for a mirror that has no use for a key."""
    return (await database.one(PUBLIC_KEY, id=mirror_id, project_id=project_id)).public_key


@attrs.frozen
class ProtectedName:
    """A protected branch's name, with its wildcards."""

    name: str


PROTECTED_NAMES = Query(
    "SELECT name FROM protected_branches WHERE project_id = %(project_id)s ORDER BY name", ProtectedName
)


async def protected_names(database: Executor, project_id: int) -> list[str]:
    """Of the project's protected branches."""
    return [row.name for row in await database.rows(PROTECTED_NAMES, project_id=project_id)]


@attrs.frozen
class Maintainer:
    """Who can mend a mirror."""

    id: int
    email: str


MAINTAINERS = Query(
    """
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
    """,
    Maintainer,
)


async def maintainers(database: Executor, project_id: int) -> list[Maintainer]:
    """Those who are Maintainer or more in the project, inherited roles included."""
    return await database.rows(MAINTAINERS, project_id=project_id)


@attrs.frozen
class MirroredProject:
    """A mirror's project; `url` is its page."""

    full_path: str
    url: str


PROJECT_OF = Query(
    """
    SELECT projects.full_path, web_url(projects.full_path) AS url
    FROM projects WHERE projects.id = %(project_id)s
    """,
    MirroredProject,
)


async def project_of(database: Executor, project_id: int) -> MirroredProject:
    """Raises NotFound."""
    return await database.one(PROJECT_OF, project_id=project_id)
