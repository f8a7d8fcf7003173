"""What making, changing and removing a pipeline schedule or a variable of it means, in the caller's transaction."""

from typing import Any

import attrs

from api_server.ci.pipelines.access import check_keys
from api_server.ci.schedules import cron, queries
from api_server.ci.schedules.queries import Schedule, StoredVariable
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import invalid

#: What the trail tells of.
_TOLD = ("owner_id", "description", "ref", "cron", "cron_timezone", "active")


async def create(transaction: Transaction, author: Author, most: int, values: dict[str, Any]) -> int:
    """The new schedule's id; its project may have up to `most` (0: any number). Raises 400 as GitLab words it."""
    _refuse_problems(values["cron"], values["cron_timezone"])
    runs = cron.next_run(values["cron"], values["cron_timezone"], transaction.now)
    made = await queries.create(transaction, **values, next_run_at=runs)
    if await queries.QUOTA.is_exceeded(transaction, values["project_id"], most):
        raise invalid({"base": [f"Maximum number of pipeline schedules ({most}) exceeded"]})
    await _record(transaction, "created", author, await queries.lock(transaction, made), "Added")
    return made


async def update(transaction: Transaction, author: Author, before: Schedule, changes: dict[str, Any]) -> None:
    """What is given and not None; its next moment is then the first one from now on. Raises 400."""
    after = attrs.evolve(before, **{name: new for name, new in changes.items() if new is not None})
    _refuse_problems(after.cron, after.cron_timezone)
    runs = cron.next_run(after.cron, after.cron_timezone, transaction.now)
    await queries.update(transaction, attrs.evolve(after, next_run_at=runs))
    for name in _TOLD:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            details = {"change": name.removesuffix("_id"), "from": old, "to": new}
            await _record(transaction, "updated", author, after, "Changed", **details)


async def deactivate(transaction: Transaction, found: Schedule) -> None:
    """The service does, while it belongs to who may not run it any more. Raises NotFound."""
    before = await queries.lock(transaction, found.id)
    if before.active and before.owner_id == found.owner_id:
        await queries.update(transaction, attrs.evolve(before, active=False))
        details: dict[str, Any] = {"change": "active", "from": True, "to": False}
        await _record(transaction, "updated", audit_trail.SYSTEM, before, "Changed", **details)


async def delete(transaction: Transaction, author: Author, before: Schedule) -> None:
    await queries.delete(transaction, before.id)
    await _record(transaction, "destroyed", author, before, "Removed")


async def add_variable(
    transaction: Transaction, author: Author, most: int, schedule: Schedule, new: StoredVariable
) -> None:
    """Raises 400 for a key that no variable can have, that is taken, or that is one too many."""
    check_keys([new.key])
    try:
        await queries.add_variable(transaction, schedule.id, new)
    except Conflict:
        raise invalid({"key": ["has already been taken"]}) from None
    if await queries.VARIABLES_QUOTA.is_exceeded(transaction, schedule.id, most):
        raise invalid({"base": [f"Maximum number of pipeline schedule variables ({most}) exceeded"]})
    await record_variable(transaction, author, schedule)


async def record_variable(transaction: Transaction, author: Author, schedule: Schedule) -> None:
    """A variable was added, changed or removed; the trail never holds its value."""
    await _record(transaction, "updated", author, schedule, "Changed", change="variables")


def _refuse_problems(expression: str, time_zone: str) -> None:
    if found := cron.problems(expression, time_zone):
        raise invalid(found)


async def _record(
    transaction: Transaction,
    action: str,
    author: Author,
    schedule: Schedule,
    verb: str,
    **details: Any,
) -> None:
    await audit_trail.record(
        transaction,
        f"pipeline_schedule_{action}",
        author=author,
        entity=Entity(type="Project", id=schedule.project_id, path=schedule.project_path),
        target_id=schedule.id,
        target_details=schedule.description,
        message=f"{verb} pipeline schedule with id {schedule.id}",
        **details,
    )
