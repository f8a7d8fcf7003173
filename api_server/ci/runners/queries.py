# mypy: disable-error-code="empty-body"
"""Statements about runners, the machines that use their tokens (runner managers), and registration tokens."""

from typing import Any, Literal

import attrs

from api_server.state.database import Database, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Statement
from api_server.web.routes import Role

ENTITIES = read_sql(__package__)

_FILTERS = """
    (%(runner_type)s::text IS NULL OR runners.runner_type = %(runner_type)s)
    AND (%(active)s::boolean IS NULL OR runners.active = %(active)s)
    AND (%(status)s::text IS NULL OR contact_status(runners.contacted_at, runners.created_at, %(now)s) = %(status)s)
    AND (%(tags)s::text[] IS NULL OR runners.tag_list @> %(tags)s)
"""


def _listing(which: str) -> ListQuery:
    return ListQuery(ENTITIES["runner"], f"SELECT runners.* FROM runners WHERE {which} AND {_FILTERS}")


def _her_namespaces(level: Role) -> str:
    return f"""
        SELECT own.id FROM namespaces own WHERE own.owner_id = %(owner_id)s
        UNION ALL
        SELECT below.id FROM namespaces below WHERE below.lineage && ARRAY(
            SELECT members.namespace_id FROM members
            WHERE members.user_id = %(owner_id)s AND members.namespace_id IS NOT NULL
                AND members.access_level >= {int(level)}
                AND counts(members, %(now)s))
    """


LISTING = _listing("true")
_OF_OWNER = _listing(f"""
    runners.id IN (
        SELECT runner_projects.runner_id FROM runner_projects WHERE runner_projects.project_id IN (
            SELECT projects.id FROM projects WHERE projects.namespace_id IN ({_her_namespaces(Role.MAINTAINER)})
            UNION ALL
            SELECT members.project_id FROM members
            WHERE members.user_id = %(owner_id)s AND members.project_id IS NOT NULL
                AND members.access_level >= {int(Role.MAINTAINER)}
                AND counts(members, %(now)s))
        UNION ALL
        SELECT hers.id FROM runners hers WHERE hers.namespace_id IN ({_her_namespaces(Role.OWNER)}))
""")
#: The runners that may run a project's jobs, and those that may run the jobs of all projects of a group.
OF_PROJECT = """
    (runners.runner_type = 'instance_type'
        OR runners.id IN (
            SELECT runner_projects.runner_id FROM runner_projects
            WHERE runner_projects.project_id = %(project_id)s::bigint)
        OR runners.namespace_id IN (
            SELECT unnest(namespaces.lineage) FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE projects.id = %(project_id)s::bigint))
"""
OF_GROUP = """
    (runners.runner_type = 'instance_type'
        OR runners.namespace_id IN (
            SELECT unnest(namespaces.lineage) FROM namespaces WHERE namespaces.id = %(namespace_id)s::bigint))
"""
_LISTS = {
    None: LISTING,
    "owner_id": _OF_OWNER,
    "project_id": _listing(OF_PROJECT),
    "namespace_id": _listing(OF_GROUP),
}
Whose = Literal["owner_id", "project_id", "namespace_id"]


async def list_runners(
    database: Executor,
    page: Page,
    whose: Whose | None = None,
    whose_id: int | None = None,
    **filters: Any,
) -> ListPage:
    """Return a page of the runners that a user may change (`owner_id`), or that may run the jobs of a project
    or a group (`project_id`, `namespace_id`); without `whose`, of all runners.

    `filters` are runner_type, active, status and tags; None means any.
    """
    ids = {} if whose is None else {whose: whose_id}
    return await _LISTS[whose].read(database, page, **ids, **filters)


@statement(
    entity_statement(ENTITIES["runner_details"], "SELECT runners.* FROM runners WHERE id = %(runner_id)s")
)
async def show_runner(database: Executor, runner_id: int) -> str:
    """Return the entity with all details."""


@attrs.frozen
class Runner:
    """A runner with its settings."""

    id: int
    runner_type: str
    description: str | None
    active: bool
    locked: bool
    run_untagged: bool
    tag_list: list[str]
    access_level: str
    #: Seconds.
    maximum_timeout: int | None
    maintenance_note: str | None


_COLUMNS = """
    runners.id, runners.runner_type, runners.description, runners.active, runners.locked, runners.run_untagged,
    runners.tag_list, runners.access_level, runners.maximum_timeout, runners.maintenance_note
"""


@attrs.frozen
class RunnerOfUser(Runner):
    """A runner with a user's greatest role in its projects and the user's role in its group."""

    project_role: int
    group_role: int
    project_ids: list[int]


@statement(f"""
    SELECT {_COLUMNS},
        coalesce((
            SELECT max(project_role(projects, namespaces, %(user_id)s, %(now)s)) FROM runner_projects
            JOIN projects ON projects.id = runner_projects.project_id
            JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE runner_projects.runner_id = runners.id
        ), 0) AS project_role,
        coalesce((
            SELECT namespace_role(namespaces, %(user_id)s, %(now)s) FROM namespaces
            WHERE namespaces.id = runners.namespace_id
        ), 0) AS group_role,
        ARRAY(SELECT project_id FROM runner_projects WHERE runner_projects.runner_id = runners.id) AS project_ids
    FROM runners WHERE runners.id = %(runner_id)s
    """)
async def find_runner(database: Executor, runner_id: int, user_id: int) -> RunnerOfUser | None: ...


@attrs.frozen
class CallingRunner(Runner):
    """A runner, with the digest of the token with which it calls."""

    token_digest: bytes = attrs.field(repr=False)


@statement(
    f"SELECT {_COLUMNS}, runners.token_digest FROM runners WHERE runners.token_digest = %(digest)s",
    prepared=True,
)
async def runner_of_token(database: Executor, digest: bytes) -> CallingRunner | None:
    """Return the runner whose authentication token has that digest, or None."""


@statement("""
    WITH new AS (
        INSERT INTO runners (runner_type, namespace_id, token_digest, description, name, active, locked, run_untagged,
            tag_list, access_level, maximum_timeout, maintenance_note, creator_id, created_at)
        VALUES (%(runner_type)s, %(namespace_id)s, %(token_digest)s, %(description)s, %(name)s, %(active)s, %(locked)s,
            %(run_untagged)s, %(tag_list)s::text[], %(access_level)s, %(maximum_timeout)s, %(maintenance_note)s,
            %(creator_id)s, %(now)s)
        RETURNING id
    ), assigned AS (
        INSERT INTO runner_projects (runner_id, project_id)
        SELECT new.id, %(project_id)s FROM new WHERE %(project_id)s::bigint IS NOT NULL
    )
    SELECT new.id FROM new
""")
async def create_runner(transaction: Transaction, **values: Any) -> int:
    """Create a runner and return its id."""


@statement(f"SELECT {_COLUMNS} FROM runners WHERE runners.id = %(runner_id)s FOR UPDATE")
async def lock_runner(transaction: Transaction, runner_id: int) -> Runner:
    """Lock the runner: until the transaction ends it gets no job. Raise NotFound."""


@statement(f"""
    UPDATE runners SET
        description = coalesce(%(description)s, description),
        active = coalesce(%(active)s, active),
        locked = coalesce(%(locked)s, locked),
        run_untagged = coalesce(%(run_untagged)s, run_untagged),
        tag_list = coalesce(%(tag_list)s::text[], tag_list),
        access_level = coalesce(%(access_level)s, access_level),
        maximum_timeout = CASE WHEN %(sets_timeout)s THEN %(maximum_timeout)s ELSE maximum_timeout END,
        maintenance_note = coalesce(%(maintenance_note)s, maintenance_note)
    WHERE id = %(runner_id)s RETURNING {_COLUMNS}
    """)
async def update_runner(transaction: Transaction, runner_id: int, **values: Any) -> Runner:
    """Change the settings that are not None, and return the changed runner. Raise NotFound."""


@attrs.frozen
class Owner:
    """The group or project that a runner serves."""

    type: Literal["Group", "Project"]
    id: int
    full_path: str


@statement("""
    SELECT 'Group' AS type, namespaces.id, namespaces.full_path
    FROM runners JOIN namespaces ON namespaces.id = runners.namespace_id WHERE runners.id = %(runner_id)s
    UNION ALL (
        SELECT 'Project', projects.id, projects.full_path
        FROM runner_projects JOIN projects ON projects.id = runner_projects.project_id
        WHERE runner_projects.runner_id = %(runner_id)s ORDER BY projects.id LIMIT 1)
    """)
async def owner_of_runner(database: Executor, runner_id: int) -> Owner | None:
    """Return the runner's group or first project; None for a runner of the instance."""


DELETE_RUNNER = """
    DELETE FROM runners WHERE id = %(id)s
"""


async def delete_runner(transaction: Transaction, runner_id: int) -> None:
    """Delete the runner. Raise NotFound."""
    if not await transaction.run(DELETE_RUNNER, id=runner_id):
        raise NotFound


SET_TOKEN = """
    UPDATE runners SET token_digest = %(digest)s WHERE id = %(id)s
"""


async def set_token(transaction: Transaction, runner_id: int, digest: bytes) -> None:
    """Replace the token; the old one becomes invalid. Raise NotFound."""
    if not await transaction.run(SET_TOKEN, id=runner_id, digest=digest):
        raise NotFound


@statement("""
    INSERT INTO runner_projects (runner_id, project_id) VALUES (%(runner_id)s, %(project_id)s)
""")
async def assign(transaction: Transaction, runner_id: int, project_id: int) -> None:
    """Let the runner also run the project's jobs. Raise Conflict on `runner_projects_pkey`."""


@statement("""
    DELETE FROM runner_projects
    WHERE runner_id = %(runner_id)s AND project_id = %(project_id)s
        AND EXISTS (
            SELECT FROM runner_projects others
            WHERE others.runner_id = %(runner_id)s AND others.project_id <> %(project_id)s)
""")
async def unassign(transaction: Transaction, runner_id: int, project_id: int) -> bool:
    """Stop the runner from running the project's jobs. Return False for its only project, which stays
    assigned."""


@statement("""
    SELECT EXISTS (
        SELECT FROM runner_projects WHERE runner_id = %(runner_id)s AND project_id = %(project_id)s)
""")
async def is_assigned(database: Executor, runner_id: int, project_id: int) -> bool: ...


MANAGER_LISTING = ListQuery(
    ENTITIES["manager"],
    "SELECT runner_managers.* FROM runner_managers WHERE runner_managers.runner_id = %(runner_id)s",
)


async def list_managers(database: Executor, page: Page, runner_id: int) -> ListPage:
    return await MANAGER_LISTING.read(database, page, runner_id=runner_id)


@statement("""
    DELETE FROM runner_managers WHERE runner_id = %(runner_id)s AND system_id = %(system_id)s
""")
async def delete_manager(transaction: Transaction, runner_id: int, system_id: str) -> bool:
    """Remove one machine. Return False if the runner has no such machine."""


@attrs.frozen(kw_only=True)
class Machine:
    """The data that a runner reports about its machine; `system_id` identifies the machine."""

    system_id: str
    version: str | None
    revision: str | None
    platform: str | None
    architecture: str | None
    executor: str | None
    ip_address: str | None


#: Each poll is a contact, but contacts are stored only once in this many seconds, or if the machine has
#: changed.
CONTACT_EVERY = 40

NOTE_CONTACT = Statement(f"""
    WITH runner AS (
        UPDATE runners SET contacted_at = %(now)s
        WHERE id = %(runner_id)s AND (contacted_at IS NULL
            OR contacted_at < %(now)s::timestamptz - interval '{CONTACT_EVERY} seconds')
    )
    INSERT INTO runner_managers AS known (runner_id, system_id, version, revision, platform, architecture, executor,
        ip_address, contacted_at, created_at)
    VALUES (%(runner_id)s, %(system_id)s, %(version)s, %(revision)s, %(platform)s, %(architecture)s, %(executor)s,
        %(ip_address)s, %(now)s, %(now)s)
    ON CONFLICT (runner_id, system_id) DO UPDATE SET
        version = excluded.version, revision = excluded.revision, platform = excluded.platform,
        architecture = excluded.architecture, executor = excluded.executor, ip_address = excluded.ip_address,
        contacted_at = excluded.contacted_at
    RETURNING id
""")

NOTED_MANAGER = Statement(f"""
    SELECT known.id FROM runner_managers known
    WHERE known.runner_id = %(runner_id)s AND known.system_id = %(system_id)s
        AND known.contacted_at > %(now)s::timestamptz - interval '{CONTACT_EVERY} seconds'
        AND (known.version, known.revision, known.platform, known.architecture, known.executor, known.ip_address)
            IS NOT DISTINCT FROM (%(version)s::text, %(revision)s::text, %(platform)s::text, %(architecture)s::text,
                %(executor)s::text, %(ip_address)s::text)
""")


async def note_manager_contact(database: Database, runner_id: int, machine: Machine) -> int:
    """Record a contact with the runner and return the manager's id."""
    reported = attrs.asdict(machine)
    manager_id = await database.value(NOTED_MANAGER, runner_id=runner_id, **reported)
    if manager_id is None:
        async with database.transaction() as transaction:
            manager_id = await transaction.value(NOTE_CONTACT, runner_id=runner_id, **reported)
    return int(manager_id)


@statement("""
    INSERT INTO runner_registration_tokens (namespace_id, project_id, digest, created_at)
    VALUES (%(namespace_id)s, %(project_id)s, %(digest)s, %(now)s)
    ON CONFLICT (namespace_id, project_id) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at
""")
async def set_registration_token(
    transaction: Transaction, digest: bytes, *, namespace_id: int | None = None, project_id: int | None = None
) -> None:
    """Set the token with which runners of this group or project (without either: of the instance) register
    from now on."""


@attrs.frozen
class Registration:
    """The group or project of a registration token; with neither, it is for the instance."""

    namespace_id: int | None
    project_id: int | None


@statement("""
    SELECT runner_registration_tokens.namespace_id, runner_registration_tokens.project_id
    FROM runner_registration_tokens WHERE runner_registration_tokens.digest = %(digest)s
    FOR KEY SHARE
    """)
async def hold_registration(transaction: Transaction, digest: bytes) -> Registration | None:
    """Return the owner of the token, or None, and prevent its replacement until the transaction ends."""
