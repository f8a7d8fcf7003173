"""What the service is there for, by its own notes: what fails and why, and where people are sent for files."""

from collections.abc import Sequence

from api_server.operations import failing
from api_server.operations.failing import Failure
from api_server.state import database as databases
from api_server.state.errors import Unavailable
from forgelet.doctor import edges
from forgelet.doctor.findings import Finding, failed, ok, warning
from forgelet.doctor.patient import REQUEST_SECONDS, Patient

#: Of one kind so many are shown.
MOST = 10
#: What lists the others.
_COMMANDS = {"mirror": "mirror list", "delivery": "delivery list", "task": "task list"}


async def work(patient: Patient) -> list[Finding]:
    """Nothing where the database cannot be used: that is said elsewhere."""
    settings = patient.api
    if settings is None or not await patient.database_serves:
        return []
    try:
        async with databases.connect(
            settings.database_url,
            base_url=settings.base_url,
            size=1,
            statement_timeout=REQUEST_SECONDS,
            connect_timeout=REQUEST_SECONDS,
            prepares=settings.prepare_statements,
        ) as database:
            failures = await failing.failing(database, database.now)
            return [*_told(failures), *await edges.external_storage(patient, database)]
    except Unavailable as problem:
        remedy = "look at PostgreSQL's log and load"
        return [failed(f"the database did not say what fails: {problem.cause}", remedy)]


def _told(failures: Sequence[Failure]) -> list[Finding]:
    """A line each, the first `MOST` of a kind."""
    if not failures:
        return [ok("no mirror, delivery, letter, edge, store, runner or task fails")]
    findings: list[Finding] = []
    for kind in dict.fromkeys(one.kind for one in failures):
        of_kind = list(dict.fromkeys(_finding(one) for one in failures if one.kind == kind))
        findings += of_kind[:MOST]
        if len(of_kind) > MOST:
            command = _COMMANDS.get(kind)
            remedy = f"`forgelet {command} --failing` lists them" if command else "mend these first"
            findings.append(failed(f"{len(of_kind) - MOST} more of this kind fail: {kind}", remedy))
    return findings


def _finding(one: Failure) -> Finding:
    """A service whose runners are not there works, and somebody else has to start them."""
    since = f" since {one.since:%Y-%m-%d %H:%M:%S} UTC" if one.since else ""
    say = warning if one.kind == "runner" else failed
    return say(f"{one.kind} {one.name}{since}: {one.reason}", one.remedy)
