"""Statements about pipeline triggers."""

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, Quota, one, read_sql
from api_server.state.statements import Query

_TRIGGER = read_sql(__package__)["trigger"]

QUOTA = Quota("pipeline_triggers", "project_id")
LISTING = Listing(
    _TRIGGER,
    "SELECT pipeline_triggers.* FROM pipeline_triggers WHERE pipeline_triggers.project_id = %(project_id)s",
)


async def list_triggers(database: Executor, page: Page, project_id: int) -> Listed:
    return await LISTING.read(database, page, project_id=project_id)


SHOW = one(_TRIGGER, "SELECT pipeline_triggers.* FROM pipeline_triggers WHERE pipeline_triggers.id = %(id)s")


async def show(database: Executor, trigger_id: int) -> str:
    return await database.entity(SHOW, id=trigger_id)


@attrs.frozen
class Trigger:
    """A trigger, with whether its owner is an administrator; `active`: she may sign in."""

    id: int
    project_id: int
    owner_id: int
    description: str
    admin: bool
    active: bool


_FOUND = """
    SELECT pipeline_triggers.id, pipeline_triggers.project_id, pipeline_triggers.owner_id,
        pipeline_triggers.description, users.admin, users.state = 'active' AS active
    FROM pipeline_triggers JOIN users ON users.id = pipeline_triggers.owner_id
"""
FIND = Query(
    f"{_FOUND} WHERE pipeline_triggers.project_id = %(project_id)s AND pipeline_triggers.id = %(id)s", Trigger
)
FIND_BY_TOKEN = Query(f"{_FOUND} WHERE pipeline_triggers.token_digest = %(digest)s", Trigger)


async def find(database: Executor, project_id: int, trigger_id: int) -> Trigger:
    """Return the trigger. Raises NotFound where it is not the project's."""
    return await database.one(FIND, project_id=project_id, id=trigger_id)


async def find_by_token(database: Executor, token_digest: bytes) -> Trigger | None:
    return await database.row(FIND_BY_TOKEN, digest=token_digest)


CREATE = """
    INSERT INTO pipeline_triggers (project_id, owner_id, description, token_seed, token_digest, created_at, updated_at)
    VALUES (%(project_id)s, %(owner_id)s, %(description)s, %(seed)s, %(digest)s, %(now)s, %(now)s)
    RETURNING id
"""


async def create(
    transaction: Transaction, *, project_id: int, owner_id: int, description: str, seed: bytes, digest: bytes
) -> int:
    """Return the new trigger's id."""
    return int(
        await transaction.value(
            CREATE,
            project_id=project_id,
            owner_id=owner_id,
            description=description,
            seed=seed,
            digest=digest,
        )
    )


UPDATE = """
    UPDATE pipeline_triggers SET description = %(description)s, updated_at = %(now)s WHERE id = %(id)s
"""


async def update(transaction: Transaction, trigger_id: int, description: str) -> None:
    await transaction.run(UPDATE, id=trigger_id, description=description)


DELETE = """
    DELETE FROM pipeline_triggers WHERE id = %(id)s
"""


async def delete(transaction: Transaction, trigger_id: int) -> None:
    await transaction.run(DELETE, id=trigger_id)


NOTE_USE = """
    UPDATE pipeline_triggers SET last_used_at = %(now)s WHERE id = %(id)s
"""


async def note_use(transaction: Transaction, trigger_id: int) -> None:
    await transaction.run(NOTE_USE, id=trigger_id)


HIERARCHY_OF_JOB = """
    SELECT coalesce(pipelines.hierarchy_id, pipelines.id) FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id
    WHERE jobs.id = %(id)s
"""


async def hierarchy_of_job(database: Executor, job_id: int) -> int | None:
    """Return the first pipeline of the hierarchy that this job belongs to."""
    found = await database.value(HIERARCHY_OF_JOB, id=job_id)
    return None if found is None else int(found)
