"""Statements about runner managers: the machines that use a runner's token."""

import attrs

from api_server.ci.runners.queries import ENTITIES
from api_server.state.database import Database, Executor, Transaction
from api_server.state.listing import Listed, Listing, Page
from api_server.state.statements import Statement

LISTING = Listing(
    ENTITIES["manager"],
    "SELECT runner_managers.* FROM runner_managers WHERE runner_managers.runner_id = %(runner_id)s",
)


async def list_managers(database: Executor, page: Page, runner_id: int) -> Listed:
    return await LISTING.read(database, page, runner_id=runner_id)


DELETE_MANAGER = """
    DELETE FROM runner_managers WHERE runner_id = %(runner_id)s AND system_id = %(system_id)s
"""


async def delete_manager(transaction: Transaction, runner_id: int, system_id: str) -> bool:
    """False where the runner has no such machine."""
    return await transaction.run(DELETE_MANAGER, runner_id=runner_id, system_id=system_id) > 0


@attrs.frozen(kw_only=True)
class Machine:
    """What a runner says of the machine that it is on, by which `system_id` it is known again."""

    system_id: str
    version: str | None
    revision: str | None
    platform: str | None
    architecture: str | None
    executor: str | None
    ip_address: str | None


#: Told at each poll; written down once in this many seconds, or when something else than the moment has changed.
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


async def note_contact(database: Database, runner_id: int, machine: Machine) -> int:
    """The runner has been heard of: the manager's id."""
    told = attrs.asdict(machine)
    noted = await database.value(NOTED_MANAGER, runner_id=runner_id, **told)
    if noted is None:
        async with database.transaction() as transaction:
            noted = await transaction.value(NOTE_CONTACT, runner_id=runner_id, **told)
    return int(noted)
