"""The database: it can be reached, is of this version, lets the role serve, and goes with the secret key."""

import math

from api_server.settings import Settings
from api_server.state import migrate
from api_server.state.migrate import OLDEST_POSTGRESQL, Inspected
from common.mistakes import Mistake
from forgelet.doctor.findings import Finding, failed, of_mistake, ok, warning
from forgelet.doctor.patient import REQUEST_SECONDS, Patient, in_thread

#: Seconds by which clocks may differ.
CLOCKS_DIFFER = 2.0
#: Connections of one process beside its pool: the queue's, those that listen, and one for commands such as this.
_BESIDE_THE_POOL = 6


async def database(patient: Patient) -> list[Finding]:
    """All that can be seen through one connection."""
    findings: list[Finding] = []
    serves = False
    try:
        if patient.api is not None:
            found = await in_thread(_inspect, patient.api)
            serves = found.serves
            findings = [_version(found), *_suitability(found)]
            if found.version >= OLDEST_POSTGRESQL:
                findings += [_schema(found), *_key(found), _connections(found, patient.api), _clock(found)]
    except Mistake as mistake:
        remedy = "start PostgreSQL, or mend database_url: host, port, name, role, password"
        findings = [of_mistake(mistake.message, remedy)]
    finally:
        patient.database_serves.set_result(serves)
    return findings


def _inspect(settings: Settings) -> Inspected:
    return migrate.inspect(
        settings.database_url, settings.data_dir, connect_timeout=math.ceil(REQUEST_SECONDS)
    )


def _version(found: Inspected) -> Finding:
    if found.version < OLDEST_POSTGRESQL:
        return failed(
            f"PostgreSQL is {found.version_text}, {OLDEST_POSTGRESQL // 10000} is needed", "upgrade it"
        )
    return ok(f"PostgreSQL {found.version_text}: database {found.database} as role {found.role}")


def _suitability(found: Inspected) -> list[Finding]:
    findings = []
    if found.read_only:
        findings.append(
            failed(
                "the database is read-only",
                "name the primary server in database_url, or set default_transaction_read_only to off",
            )
        )
    if found.encoding != "UTF8":
        findings.append(
            failed(
                f"the database's encoding is {found.encoding}, texts need UTF8",
                "make a database with ENCODING 'UTF8'",
            )
        )
    return findings


def _schema(found: Inspected) -> Finding:
    if found.schema is not None:
        return of_mistake(found.schema)
    if found.to_migrate:
        return warning(
            "the database is not of this version's schema yet",
            "back it up; the next start brings it up to date, or run `forgelet migrate`",
        )
    if found.lacking:
        return failed(
            f"role {found.role} lacks rights ({', '.join(found.lacking)})",
            f"run `forgelet migrate --grant-to {found.role}` as the role that owns the tables",
        )
    return ok("the schema is this version's, and the role has its rights")


def _key(found: Inspected) -> list[Finding]:
    if found.key is not None:
        return [of_mistake(found.key)]
    if not found.serves:
        return []  # what there is of the key in the database cannot be read
    if not found.has_key:
        return [ok("there is no secret key yet, and nothing that one has sealed: the first start makes one")]
    return [ok("the secret key is the one that the database's secrets are sealed under")]


def _connections(found: Inspected, settings: Settings) -> Finding:
    wanted = settings.database_pool + _BESIDE_THE_POOL
    if found.connections < wanted:
        return warning(
            f"PostgreSQL gives {found.connections} connections, one server may want {wanted}",
            "raise max_connections (or the role's or database's CONNECTION LIMIT), or lower database_pool",
        )
    return ok(f"PostgreSQL gives {found.connections} connections, one server wants at most {wanted}")


def _clock(found: Inspected) -> Finding:
    ahead = found.clock_ahead
    if abs(ahead) > CLOCKS_DIFFER:
        return warning(
            f"the database's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
            "keep both right (NTP)",
        )
    return ok(f"this machine's clock and the database's agree within {CLOCKS_DIFFER:.0f} s")
