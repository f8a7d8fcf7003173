# mypy: disable-error-code="empty-body"
"""Statements about pipeline schedules."""

import datetime
from typing import Any, Literal

import attrs

from api_server.ci.pipelines.queries import ENTITIES as PIPELINES
from api_server.state.audit_trail import Entity, Target
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Quota, entity_statement, read_sql

ENTITIES = read_sql(__package__)

QUOTA = Quota("pipeline_schedules", "project_id")
LISTING = ListQuery(
    ENTITIES["schedule"],
    """
    SELECT pipeline_schedules.id FROM pipeline_schedules
    WHERE pipeline_schedules.project_id = %(project_id)s
        AND (%(active)s::boolean IS NULL OR pipeline_schedules.active = %(active)s)
    """,
)


async def list_schedules(database: Executor, page: Page, project_id: int, *, active: bool | None) -> ListPage:
    """Return the schedules that are active (True), those that are not (False), or all (None)."""
    return await LISTING.read(database, page, project_id=project_id, active=active)


OF_SCHEDULE = ListQuery(
    PIPELINES["pipeline_basic"],
    "SELECT pipelines.* FROM pipelines WHERE pipelines.schedule_id = %(schedule_id)s",
)


async def list_pipelines(database: Executor, page: Page, schedule_id: int) -> ListPage:
    """Return the pipelines of a schedule."""
    return await OF_SCHEDULE.read(database, page, schedule_id=schedule_id)


@statement(
    entity_statement(
        ENTITIES["schedule_details"],
        "SELECT pipeline_schedules.id FROM pipeline_schedules WHERE pipeline_schedules.id = %(schedule_id)s",
    )
)
async def show(database: Executor, schedule_id: int) -> str:
    """Return the entity; the values of its variables and inputs are encrypted, as base64."""


@attrs.frozen(kw_only=True)
class Schedule:
    """The data of a schedule that rules need; `ref` is a full name."""

    id: int
    project_id: int
    project_path: str
    owner_id: int | None
    description: str
    ref: str
    cron: str
    cron_timezone: str
    active: bool
    next_run_at: datetime.datetime

    @property
    def audit_target(self) -> Target:
        return Entity("Project", self.project_id, self.project_path).target(self.id, self.description)


_FOUND = """
    SELECT pipeline_schedules.id, pipeline_schedules.project_id, projects.full_path AS project_path,
        pipeline_schedules.owner_id, pipeline_schedules.description, pipeline_schedules.ref, pipeline_schedules.cron,
        pipeline_schedules.cron_timezone, pipeline_schedules.active, pipeline_schedules.next_run_at
    FROM pipeline_schedules JOIN projects ON projects.id = pipeline_schedules.project_id
"""
_OF_PROJECT = f"""
    {_FOUND} WHERE pipeline_schedules.project_id = %(project_id)s AND pipeline_schedules.id = %(schedule_id)s
"""


@statement(_OF_PROJECT)
async def find(database: Executor, project_id: int, schedule_id: int) -> Schedule | None:
    """Return the schedule, or None if it does not belong to the project."""


@statement(f"{_OF_PROJECT} FOR UPDATE OF pipeline_schedules")
async def hold(database: Executor, project_id: int, schedule_id: int) -> Schedule | None:
    """Find the schedule like `find`, and prevent changes of it until the transaction ends."""


@statement(f"{_FOUND} WHERE pipeline_schedules.id = %(schedule_id)s")
async def find_by_id(database: Executor, schedule_id: int) -> Schedule | None: ...


@statement(f"{_FOUND} WHERE pipeline_schedules.id = %(schedule_id)s FOR UPDATE OF pipeline_schedules")
async def lock(transaction: Transaction, schedule_id: int) -> Schedule:
    """Return the schedule, locked until the transaction ends. Raise NotFound."""


@statement(f"""
    {_FOUND} WHERE pipeline_schedules.active AND pipeline_schedules.next_run_at <= %(now)s
    ORDER BY pipeline_schedules.next_run_at LIMIT %(limit)s FOR UPDATE OF pipeline_schedules SKIP LOCKED
    """)
async def lock_due(transaction: Transaction, limit: int) -> list[Schedule]:
    """Lock and return schedules that are due; concurrent transactions get others."""


@statement(f"""
    {_FOUND} JOIN users ON users.id = pipeline_schedules.owner_id
    WHERE users.id = %(user_id)s AND users.state = 'blocked' AND pipeline_schedules.active
    ORDER BY pipeline_schedules.id
    """)
async def active_of_blocked(database: Executor, user_id: int) -> list[Schedule]:
    """Return the active schedules of a user, if the user is blocked."""


@statement("""
    INSERT INTO pipeline_schedules (project_id, owner_id, description, ref, cron, cron_timezone, active, next_run_at,
        created_at, updated_at)
    VALUES (%(project_id)s, %(owner_id)s, %(description)s, %(ref)s, %(cron)s, %(cron_timezone)s, %(active)s,
        %(next_run_at)s, %(now)s, %(now)s)
    RETURNING id
""")
async def create(transaction: Transaction, **values: Any) -> int:
    """Create a schedule and return its id."""


UPDATE = """
    UPDATE pipeline_schedules SET owner_id = %(owner_id)s, description = %(description)s, ref = %(ref)s,
        cron = %(cron)s, cron_timezone = %(cron_timezone)s, active = %(active)s, next_run_at = %(next_run_at)s,
        updated_at = %(now)s
    WHERE id = %(id)s
"""


async def update(transaction: Transaction, schedule: Schedule) -> None:
    values = attrs.asdict(schedule)
    await transaction.run(UPDATE, **{name: values[name] for name in _WRITTEN})


_WRITTEN = ("id", "owner_id", "description", "ref", "cron", "cron_timezone", "active", "next_run_at")


@statement("""
    UPDATE pipeline_schedules SET next_run_at = %(next_run_at)s WHERE id = %(schedule_id)s
""")
async def set_next_run(
    transaction: Transaction, schedule_id: int, next_run_at: datetime.datetime
) -> None: ...


@statement("""
    DELETE FROM pipeline_schedules WHERE id = %(schedule_id)s
""")
async def delete(transaction: Transaction, schedule_id: int) -> None: ...


VARIABLES_QUOTA = Quota("pipeline_schedule_variables", "schedule_id")


@attrs.frozen
class StoredVariable:
    """A variable of a schedule, with its value encrypted."""

    key: str
    value: bytes
    variable_type: Literal["env_var", "file"]


_VARIABLES = """
    SELECT pipeline_schedule_variables.key, pipeline_schedule_variables.value, pipeline_schedule_variables.variable_type
    FROM pipeline_schedule_variables WHERE pipeline_schedule_variables.schedule_id = %(schedule_id)s
"""


@statement(f"{_VARIABLES} ORDER BY pipeline_schedule_variables.id")
async def variables(database: Executor, schedule_id: int) -> list[StoredVariable]: ...


@statement(f"{_VARIABLES} AND pipeline_schedule_variables.key = %(key)s FOR UPDATE")
async def lock_variable(transaction: Transaction, schedule_id: int, key: str) -> StoredVariable | None: ...


@statement("""
    INSERT INTO pipeline_schedule_variables (schedule_id, key, value, variable_type)
    VALUES (%(schedule_id)s, %(key)s, %(value)s, %(variable_type)s)
""")
async def add_variable(transaction: Transaction, schedule_id: int, variable: StoredVariable) -> None:
    """Add a variable. Raise Conflict on `pipeline_schedule_variables_key`."""


@statement("""
    UPDATE pipeline_schedule_variables SET value = %(value)s, variable_type = %(variable_type)s
    WHERE schedule_id = %(schedule_id)s AND key = %(key)s
""")
async def set_variable(transaction: Transaction, schedule_id: int, variable: StoredVariable) -> None: ...


@statement("""
    DELETE FROM pipeline_schedule_variables WHERE schedule_id = %(schedule_id)s AND key = %(key)s
""")
async def delete_variable(transaction: Transaction, schedule_id: int, key: str) -> None: ...


@attrs.frozen
class StoredInput:
    """An input of a schedule; its value is JSON, encrypted."""

    name: str
    value: bytes


@statement("""
    SELECT pipeline_schedule_inputs.name, pipeline_schedule_inputs.value FROM pipeline_schedule_inputs
    WHERE pipeline_schedule_inputs.schedule_id = %(schedule_id)s ORDER BY pipeline_schedule_inputs.id
""")
async def inputs(database: Executor, schedule_id: int) -> list[StoredInput]: ...


@statement("""
    INSERT INTO pipeline_schedule_inputs (schedule_id, name, value)
    SELECT %(schedule_id)s, given.name, given.value
    FROM unnest(%(names)s::text[], %(values)s::bytea[]) AS given(name, value)
    ON CONFLICT (schedule_id, name) DO UPDATE SET value = excluded.value
""")
async def set_inputs(
    transaction: Transaction, schedule_id: int, names: list[str], values: list[bytes]
) -> None:
    """Add the inputs, or change those of the same name; no name may occur twice."""


@statement("""
    DELETE FROM pipeline_schedule_inputs WHERE schedule_id = %(schedule_id)s AND name = ANY(%(names)s)
""")
async def delete_inputs(transaction: Transaction, schedule_id: int, names: list[str]) -> None: ...


INPUTS_QUOTA = Quota("pipeline_schedule_inputs", "schedule_id")
