# mypy: disable-error-code="empty-body"
"""Statements about pipeline triggers."""

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Quota, entity_statement, read_sql

_TRIGGER = read_sql(__package__)["trigger"]

QUOTA = Quota("pipeline_triggers", "project_id")
LISTING = ListQuery(
    _TRIGGER,
    "SELECT pipeline_triggers.* FROM pipeline_triggers WHERE pipeline_triggers.project_id = %(project_id)s",
)


async def list_triggers(database: Executor, page: Page, project_id: int) -> ListPage:
    return await LISTING.read(database, page, project_id=project_id)


@statement(
    entity_statement(
        _TRIGGER,
        "SELECT pipeline_triggers.* FROM pipeline_triggers WHERE pipeline_triggers.id = %(trigger_id)s",
    )
)
async def show(database: Executor, trigger_id: int) -> str: ...


@attrs.frozen
class Trigger:
    """A trigger; `admin` says whether its owner is an administrator, `active` whether the owner may sign
    in."""

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


@statement(
    f"{_FOUND} WHERE pipeline_triggers.project_id = %(project_id)s AND pipeline_triggers.id = %(trigger_id)s"
)
async def find(database: Executor, project_id: int, trigger_id: int) -> Trigger:
    """Return the trigger. Raise NotFound if it does not belong to the project."""


@statement(f"{_FOUND} WHERE pipeline_triggers.token_digest = %(token_digest)s")
async def find_by_token(database: Executor, token_digest: bytes) -> Trigger | None: ...


@statement("""
    INSERT INTO pipeline_triggers (project_id, owner_id, description, token_seed, token_digest, created_at, updated_at)
    VALUES (%(project_id)s, %(owner_id)s, %(description)s, %(seed)s, %(digest)s, %(now)s, %(now)s)
    RETURNING id
""")
async def create(
    transaction: Transaction, *, project_id: int, owner_id: int, description: str, seed: bytes, digest: bytes
) -> int:
    """Create a trigger and return its id."""


@statement("""
    UPDATE pipeline_triggers SET description = %(description)s, updated_at = %(now)s WHERE id = %(trigger_id)s
""")
async def update(transaction: Transaction, trigger_id: int, description: str) -> None: ...


@statement("""
    DELETE FROM pipeline_triggers WHERE id = %(trigger_id)s
""")
async def delete(transaction: Transaction, trigger_id: int) -> None: ...


@statement("""
    UPDATE pipeline_triggers SET last_used_at = %(now)s WHERE id = %(trigger_id)s
""")
async def note_use(transaction: Transaction, trigger_id: int) -> None: ...


HIERARCHY_OF_JOB = """
    SELECT coalesce(pipelines.hierarchy_id, pipelines.id) FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id
    WHERE jobs.id = %(id)s
"""


async def hierarchy_of_job(database: Executor, job_id: int) -> int | None:
    """Return the first pipeline of the hierarchy that this job belongs to."""
    pipeline_id = await database.value(HIERARCHY_OF_JOB, id=job_id)
    return None if pipeline_id is None else int(pipeline_id)
