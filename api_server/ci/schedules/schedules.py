"""Pipeline schedules: when they run next, changing them and their variables in the caller's transaction, running them.

Cron expressions have five fields, in the time zones that Rails and IANA name. Every minute the schedules that are due
are queued, in the transaction that stores their next run. So any number of processes run each once, and a schedule that
was missed several times runs once.
"""

import datetime
import re
import uuid
import zoneinfo
from typing import Any

import attrs
import orjson
import structlog
from croniter import croniter

from api_server.accounts.users import USER_LISTENERS, UserEvent
from api_server.ci.config.inputs import MAX_ARGUMENTS
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import creation
from api_server.ci.pipelines.access import check_keys
from api_server.ci.pipelines.creation import (
    PipelineForbidden,
    PipelineMaker,
    PipelineRefused,
    PipelineRequest,
    pipeline_maker,
)
from api_server.ci.schedules import queries
from api_server.ci.schedules.queries import Schedule, StoredVariable
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author
from api_server.state.database import Database, Transaction
from api_server.state.errors import Conflict
from api_server.state.queue import enqueue
from api_server.state.secrets import Vault
from api_server.web.errors import bad_parameters, invalid
from api_server.web.params import Name

#: Rails' names of time zones, which GitLab's clients use, with their IANA names.
RAILS_TIME_ZONES = {
    "International Date Line West": "Etc/GMT+12",
    "Midway Island": "Pacific/Midway",
    "American Samoa": "Pacific/Pago_Pago",
    "Hawaii": "Pacific/Honolulu",
    "Alaska": "America/Juneau",
    "Pacific Time (US & Canada)": "America/Los_Angeles",
    "Tijuana": "America/Tijuana",
    "Mountain Time (US & Canada)": "America/Denver",
    "Arizona": "America/Phoenix",
    "Chihuahua": "America/Chihuahua",
    "Mazatlan": "America/Mazatlan",
    "Central Time (US & Canada)": "America/Chicago",
    "Saskatchewan": "America/Regina",
    "Guadalajara": "America/Mexico_City",
    "Mexico City": "America/Mexico_City",
    "Monterrey": "America/Monterrey",
    "Central America": "America/Guatemala",
    "Eastern Time (US & Canada)": "America/New_York",
    "Indiana (East)": "America/Indiana/Indianapolis",
    "Bogota": "America/Bogota",
    "Lima": "America/Lima",
    "Quito": "America/Lima",
    "Atlantic Time (Canada)": "America/Halifax",
    "Caracas": "America/Caracas",
    "La Paz": "America/La_Paz",
    "Santiago": "America/Santiago",
    "Asuncion": "America/Asuncion",
    "Newfoundland": "America/St_Johns",
    "Brasilia": "America/Sao_Paulo",
    "Buenos Aires": "America/Argentina/Buenos_Aires",
    "Montevideo": "America/Montevideo",
    "Georgetown": "America/Guyana",
    "Puerto Rico": "America/Puerto_Rico",
    "Greenland": "America/Nuuk",
    "Mid-Atlantic": "Atlantic/South_Georgia",
    "Azores": "Atlantic/Azores",
    "Cape Verde Is.": "Atlantic/Cape_Verde",
    "Dublin": "Europe/Dublin",
    "Edinburgh": "Europe/London",
    "Lisbon": "Europe/Lisbon",
    "London": "Europe/London",
    "Casablanca": "Africa/Casablanca",
    "Monrovia": "Africa/Monrovia",
    "UTC": "Etc/UTC",
    "Belgrade": "Europe/Belgrade",
    "Bratislava": "Europe/Bratislava",
    "Budapest": "Europe/Budapest",
    "Ljubljana": "Europe/Ljubljana",
    "Prague": "Europe/Prague",
    "Sarajevo": "Europe/Sarajevo",
    "Skopje": "Europe/Skopje",
    "Warsaw": "Europe/Warsaw",
    "Zagreb": "Europe/Zagreb",
    "Brussels": "Europe/Brussels",
    "Copenhagen": "Europe/Copenhagen",
    "Madrid": "Europe/Madrid",
    "Paris": "Europe/Paris",
    "Amsterdam": "Europe/Amsterdam",
    "Berlin": "Europe/Berlin",
    "Bern": "Europe/Zurich",
    "Zurich": "Europe/Zurich",
    "Rome": "Europe/Rome",
    "Stockholm": "Europe/Stockholm",
    "Vienna": "Europe/Vienna",
    "West Central Africa": "Africa/Algiers",
    "Bucharest": "Europe/Bucharest",
    "Cairo": "Africa/Cairo",
    "Helsinki": "Europe/Helsinki",
    "Kyiv": "Europe/Kiev",
    "Riga": "Europe/Riga",
    "Sofia": "Europe/Sofia",
    "Tallinn": "Europe/Tallinn",
    "Vilnius": "Europe/Vilnius",
    "Athens": "Europe/Athens",
    "Istanbul": "Europe/Istanbul",
    "Minsk": "Europe/Minsk",
    "Jerusalem": "Asia/Jerusalem",
    "Harare": "Africa/Harare",
    "Pretoria": "Africa/Johannesburg",
    "Kaliningrad": "Europe/Kaliningrad",
    "Moscow": "Europe/Moscow",
    "St. Petersburg": "Europe/Moscow",
    "Volgograd": "Europe/Volgograd",
    "Samara": "Europe/Samara",
    "Kuwait": "Asia/Kuwait",
    "Riyadh": "Asia/Riyadh",
    "Nairobi": "Africa/Nairobi",
    "Baghdad": "Asia/Baghdad",
    "Tehran": "Asia/Tehran",
    "Abu Dhabi": "Asia/Muscat",
    "Muscat": "Asia/Muscat",
    "Baku": "Asia/Baku",
    "Tbilisi": "Asia/Tbilisi",
    "Yerevan": "Asia/Yerevan",
    "Kabul": "Asia/Kabul",
    "Ekaterinburg": "Asia/Yekaterinburg",
    "Islamabad": "Asia/Karachi",
    "Karachi": "Asia/Karachi",
    "Tashkent": "Asia/Tashkent",
    "Chennai": "Asia/Kolkata",
    "Kolkata": "Asia/Kolkata",
    "Mumbai": "Asia/Kolkata",
    "New Delhi": "Asia/Kolkata",
    "Kathmandu": "Asia/Kathmandu",
    "Dhaka": "Asia/Dhaka",
    "Sri Jayawardenepura": "Asia/Colombo",
    "Almaty": "Asia/Almaty",
    "Astana": "Asia/Almaty",
    "Novosibirsk": "Asia/Novosibirsk",
    "Rangoon": "Asia/Rangoon",
    "Bangkok": "Asia/Bangkok",
    "Hanoi": "Asia/Bangkok",
    "Jakarta": "Asia/Jakarta",
    "Krasnoyarsk": "Asia/Krasnoyarsk",
    "Beijing": "Asia/Shanghai",
    "Chongqing": "Asia/Chongqing",
    "Hong Kong": "Asia/Hong_Kong",
    "Urumqi": "Asia/Urumqi",
    "Kuala Lumpur": "Asia/Kuala_Lumpur",
    "Singapore": "Asia/Singapore",
    "Taipei": "Asia/Taipei",
    "Perth": "Australia/Perth",
    "Irkutsk": "Asia/Irkutsk",
    "Ulaanbaatar": "Asia/Ulaanbaatar",
    "Seoul": "Asia/Seoul",
    "Osaka": "Asia/Tokyo",
    "Sapporo": "Asia/Tokyo",
    "Tokyo": "Asia/Tokyo",
    "Yakutsk": "Asia/Yakutsk",
    "Darwin": "Australia/Darwin",
    "Adelaide": "Australia/Adelaide",
    "Canberra": "Australia/Canberra",
    "Melbourne": "Australia/Melbourne",
    "Sydney": "Australia/Sydney",
    "Brisbane": "Australia/Brisbane",
    "Hobart": "Australia/Hobart",
    "Vladivostok": "Asia/Vladivostok",
    "Guam": "Pacific/Guam",
    "Port Moresby": "Pacific/Port_Moresby",
    "Magadan": "Asia/Magadan",
    "Srednekolymsk": "Asia/Srednekolymsk",
    "Solomon Is.": "Pacific/Guadalcanal",
    "New Caledonia": "Pacific/Noumea",
    "Fiji": "Pacific/Fiji",
    "Kamchatka": "Asia/Kamchatka",
    "Marshall Is.": "Pacific/Majuro",
    "Auckland": "Pacific/Auckland",
    "Wellington": "Pacific/Auckland",
    "Nuku'alofa": "Pacific/Tongatapu",
    "Tokelau Is.": "Pacific/Fakaofo",
    "Chatham Is.": "Pacific/Chatham",
    "Samoa": "Pacific/Apia",
}


#: Fields that croniter would fill with random numbers.
_CHOSEN_BY_CHANCE = re.compile(r"(?<![a-z])[rh](?![a-z])", re.IGNORECASE)
_FIELDS = 5
_HOURS = 1


def cron_problems(cron: str, time_zone: str) -> dict[str, list[str]]:
    """Return the errors of the expression and the time zone, by attribute, in GitLab's words."""
    errors = {}
    if _zone(time_zone) is None:
        errors["cron_timezone"] = [" is invalid syntax"]
    try:
        next_run(cron, "UTC", datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
    except ValueError:
        errors["cron"] = [" is invalid syntax"]
    return errors


def next_run(cron: str, time_zone: str, after: datetime.datetime) -> datetime.datetime:
    """Return the first run after `after`, in UTC. Raise ValueError if the expression is invalid or matches no
    moment.

    When clocks are put back, a schedule for a particular hour runs in the first of the two hours. When they
    are put forward, a schedule for the missing hour runs when that hour has passed.
    """
    fields = cron.split()
    zone = _zone(time_zone)
    if len(fields) != _FIELDS or _CHOSEN_BY_CHANCE.search(cron) or zone is None:
        raise ValueError(f"{cron!r} in {time_zone!r} has no moments")
    moments = croniter(" ".join(fields), after.astimezone(zone))
    while True:
        moment: datetime.datetime = moments.get_next(datetime.datetime).astimezone(datetime.UTC)
        is_repeated = moment.astimezone(zone).fold == 1
        if not is_repeated or fields[_HOURS].startswith("*"):
            return moment


def _zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(RAILS_TIME_ZONES.get(name, name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder, or a name too long
        return None


#: Fields whose changes are recorded as audit events.
_AUDITED = ("owner_id", "description", "ref", "cron", "cron_timezone", "active")


async def create(transaction: Transaction, author: Author, limit: int, values: dict[str, Any]) -> int:
    """Create a schedule and return its id; the project may have up to `limit` (0: no limit). Raise 400 in
    GitLab's words."""
    _refuse_problems(values["cron"], values["cron_timezone"])
    runs = next_run(values["cron"], values["cron_timezone"], transaction.now)
    schedule_id = await queries.create(transaction, **values, next_run_at=runs)
    if await queries.QUOTA.is_exceeded(transaction, values["project_id"], limit):
        raise invalid({"base": [f"Maximum number of pipeline schedules ({limit}) exceeded"]})
    schedule = await queries.lock(transaction, schedule_id)
    await audit_trail.record(transaction, "pipeline_schedule_created", author, schedule.audit_target)
    return schedule_id


async def update(transaction: Transaction, author: Author, before: Schedule, changes: dict[str, Any]) -> None:
    """Change the attributes that are not None. The next run is the first one from now on. Raise 400."""
    after = attrs.evolve(before, **{name: new for name, new in changes.items() if new is not None})
    _refuse_problems(after.cron, after.cron_timezone)
    runs = next_run(after.cron, after.cron_timezone, transaction.now)
    await queries.update(transaction, attrs.evolve(after, next_run_at=runs))
    for change in audit_trail.changes(before, after, _AUDITED):
        change["change"] = change["change"].removesuffix("_id")
        await audit_trail.record(
            transaction, "pipeline_schedule_updated", author, after.audit_target, **change
        )


async def deactivate(transaction: Transaction, schedule: Schedule) -> None:
    """Deactivate a schedule whose owner may no longer run it, unless somebody else has become its owner.
    Raise NotFound."""
    before = await queries.lock(transaction, schedule.id)
    if before.active and before.owner_id == schedule.owner_id:
        await queries.update(transaction, attrs.evolve(before, active=False))
        change: dict[str, Any] = {"change": "active", "from": True, "to": False}
        await audit_trail.record(
            transaction, "pipeline_schedule_updated", SYSTEM, before.audit_target, **change
        )


async def delete(transaction: Transaction, author: Author, before: Schedule) -> None:
    await queries.delete(transaction, before.id)
    await audit_trail.record(transaction, "pipeline_schedule_destroyed", author, before.audit_target)


async def add_variable(
    transaction: Transaction, author: Author, limit: int, schedule: Schedule, new: StoredVariable
) -> None:
    """Add a variable. Raise 400 if its key is invalid or taken, or if there are too many variables."""
    check_keys([new.key])
    try:
        await queries.add_variable(transaction, schedule.id, new)
    except Conflict:
        raise invalid({"key": ["has already been taken"]}) from None
    if await queries.VARIABLES_QUOTA.is_exceeded(transaction, schedule.id, limit):
        raise invalid({"base": [f"Maximum number of pipeline schedule variables ({limit}) exceeded"]})
    await record_variable(transaction, author, schedule)


async def record_variable(transaction: Transaction, author: Author, schedule: Schedule) -> None:
    """Record an audit event for an added, changed or removed variable, without its value."""
    await audit_trail.record(
        transaction, "pipeline_schedule_updated", author, schedule.audit_target, change="variables"
    )


#: Maximum characters of an input's value as JSON.
MAX_INPUT = 1024


@attrs.frozen(kw_only=True)
class ScheduleInput:
    """An input to set on a schedule, or to remove from it."""

    name: Name = attrs.field(metadata={"present": True})
    value: Any = attrs.field(default=None, repr=False)
    destroy: bool = False


async def change_inputs(
    transaction: Transaction, vault: Vault, author: Author, schedule_id: int, changes: list[ScheduleInput]
) -> None:
    """Set the given inputs, and remove those to be destroyed. Raise 400."""
    if not changes:
        return
    await queries.delete_inputs(
        transaction, schedule_id, [change.name for change in changes if change.destroy]
    )
    values = {change.name: _written(change) for change in changes if not change.destroy}
    sealed = [vault.encrypt(text) for text in values.values()]
    await queries.set_inputs(transaction, schedule_id, list(values), sealed)
    if await queries.INPUTS_QUOTA.is_exceeded(transaction, schedule_id, MAX_ARGUMENTS):
        raise invalid({"inputs": [f"exceed the limit of {MAX_ARGUMENTS}."]})
    schedule = await queries.lock(transaction, schedule_id)
    await audit_trail.record(
        transaction, "pipeline_schedule_updated", author, schedule.audit_target, change="inputs"
    )


def _written(change: ScheduleInput) -> str:
    if change.value is None:
        raise bad_parameters("inputs[value] is missing")
    text = orjson.dumps(change.value).decode()
    if len(text) > MAX_INPUT:
        raise invalid({"inputs.value": [f"exceeds max serialized size: {MAX_INPUT} characters"]})
    return text


def _refuse_problems(expression: str, time_zone: str) -> None:
    if problems := cron_problems(expression, time_zone):
        raise invalid(problems)


log = structlog.get_logger(__name__)

RUN = "run_pipeline_schedule"
DEACTIVATE = "deactivate_schedules_of_blocked_user"
#: Schedules that are queued in one transaction.
BATCH = 100


def setup(services: Services) -> None:
    """Make this application run its schedules."""

    async def queue_due() -> None:
        await queue_due_schedules(services.database)

    async def run(schedule_id: int, origin: str, user_id: int | None = None) -> None:
        await run_schedule(services, schedule_id, origin, user_id)

    async def deactivate_of_blocked(user_id: int) -> None:
        for schedule in await queries.active_of_blocked(services.database, user_id):
            async with services.database.transaction() as transaction:
                await deactivate(transaction, schedule)

    services[USER_LISTENERS].append(follow_user)
    services.queue.add_periodic("queue_due_schedules", "* * * * *", queue_due)
    services.queue.add(RUN, run, attempts=5)
    services.queue.add(DEACTIVATE, deactivate_of_blocked, attempts=5)


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    if event.kind == "restricted":
        await enqueue(transaction, DEACTIVATE, user_id=event.user_id)


async def queue_due_schedules(database: Database) -> None:
    """Queue the schedules that are due."""
    batch_size = BATCH
    while batch_size == BATCH:
        async with database.transaction() as transaction:
            due = await queries.lock_due(transaction, BATCH)
            for schedule in due:
                await _queue_due(transaction, schedule)
        batch_size = len(due)


async def _queue_due(transaction: Transaction, schedule: Schedule) -> None:
    try:
        next_run_at = next_run(schedule.cron, schedule.cron_timezone, transaction.now)
    except ValueError:  # its time zone no longer exists
        await deactivate(transaction, schedule)
        return
    await queries.set_next_run(transaction, schedule.id, next_run_at)
    origin = f"schedule:{schedule.id}:{schedule.next_run_at.isoformat()}"
    await enqueue(transaction, RUN, schedule_id=schedule.id, origin=origin)


async def queue_now(transaction: Transaction, schedule_id: int, user_id: int) -> None:
    """Queue an additional run for the user who asks for it."""
    await enqueue(transaction, RUN, schedule_id=schedule_id, user_id=user_id, origin=uuid.uuid4().hex)


async def run_schedule(services: Services, schedule_id: int, origin: str, user_id: int | None = None) -> None:
    """Create the pipeline with the current rights of the user who asked for it, or else of the owner.

    If the owner has lost the right, deactivate the schedule until somebody becomes its new owner.
    """
    making = pipeline_maker(services)
    schedule = await queries.find_by_id(making.database, schedule_id)
    if schedule is None or (user_id is None and not schedule.active):
        return
    by = schedule.owner_id if user_id is None else user_id
    try:
        await _make_pipeline(making, schedule, by, origin)
    except PipelineRefused as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a schedule", schedule_id=schedule_id, reason=reason)
        if isinstance(refused, PipelineForbidden) and by == schedule.owner_id:
            async with making.database.transaction() as transaction:
                await deactivate(transaction, schedule)


async def _make_pipeline(making: PipelineMaker, schedule: Schedule, user_id: int | None, origin: str) -> int:
    """Create the pipeline of a schedule and return its id. Raise `PipelineRefused`."""
    on = making.resolve(schedule.project_id, schedule.ref)
    rows = await queries.variables(making.database, schedule.id)
    inputs = await queries.inputs(making.database, schedule.id)
    return await creation.make_with_rights(
        making,
        PipelineRequest(
            project_id=schedule.project_id,
            ref=on.name,
            tag=on.kind == "tag",
            sha=on.commit,
            source="schedule",
            user_id=user_id,
            origin=origin,
            schedule_id=schedule.id,
            variables=tuple(
                Variable(row.key, making.vault.decrypt(row.value), file=row.variable_type == "file")
                for row in rows
            ),
            inputs={row.name: orjson.loads(making.vault.decrypt(row.value)) for row in inputs},
        ),
    )
