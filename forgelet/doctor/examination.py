"""All checks, side by side, within a time that no check can exceed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import attrs

from common.mistakes import Mistake
from forgelet.doctor import database, edges, machine, processes, services, work
from forgelet.doctor.findings import Finding, failed, warning
from forgelet.doctor.patient import Patient, read

Check = Callable[[Patient], Awaitable[list[Finding]]]
#: By the names under which their findings are shown, in this order.
CHECKS: Mapping[str, Check] = {
    "versions": machine.versions,
    "clock": machine.clock,
    "disk": machine.disks,
    "files": machine.modes,
    "database": database.database,
    "API server": processes.api_server,
    "storage edge": processes.storage_edge,
    "edges": edges.edges,
    "mail": services.mail,
    "object store": services.object_store,
    "shared store": services.shared_store,
    "work": work.work,
}
_OF_RUNNING = ("database", "edges", "work")
_OF_MACHINE = ("versions", "clock", "disk")
#: Seconds that all of it may take, and then what is cut off.
LONGEST, _LAST = 13.0, 1.0
#: Seconds in which this machine's clock may gain on what it counts itself.
_JUMP = 1.0


@attrs.frozen
class Examined:
    """The findings by check, and whether some check has not come to an end and may hold a thread."""

    findings: Mapping[str, list[Finding]]
    hangs: bool


async def examine(environment: Mapping[str, str], longest: float = LONGEST) -> Examined:
    """What is found of the instance whose processes have `environment`."""
    return await _examine(CHECKS, environment, longest)


async def examine_stopped(environment: Mapping[str, str]) -> Examined:
    """Likewise of a `forgelet up` that is stopped, and its database and edge with it."""
    checks = {name: check for name, check in CHECKS.items() if name not in _OF_RUNNING}
    return await _examine(checks, environment, LONGEST)


async def settings_cannot_be_found(mistake: Mistake) -> Examined:
    """Likewise where there is no instance yet: what the machine has to have."""
    checks = {name: CHECKS[name] for name in _OF_MACHINE}
    examined = await _examine(checks, {}, LONGEST, known=False)
    what, _, remedy = mistake.message.partition(": ")
    return attrs.evolve(examined, findings={"settings": [warning(what, remedy)], **examined.findings})


async def _examine(
    wanted: Mapping[str, Check], environment: Mapping[str, str], longest: float, *, known: bool = True
) -> Examined:
    begun, counted = time.time(), time.monotonic()
    api, edge, settings = read(environment) if known else (None, None, [])
    async with aiohttp.ClientSession() as session:
        patient = Patient(environment, api, edge, session)
        checks = {name: asyncio.create_task(_found(check, patient)) for name, check in wanted.items()}
        await asyncio.wait(checks.values(), timeout=longest)
        hangs = [name for name, check in checks.items() if not check.done()]
        for name in hangs:
            checks[name].cancel()
        await asyncio.wait(checks.values(), timeout=_LAST)
    findings = {"settings": settings} if known else {}
    for name, check in checks.items():
        findings[name] = [_overdue(name, longest)] if name in hangs else check.result()
    gained = (time.time() - begun) - (time.monotonic() - counted)
    if abs(gained) > _JUMP:
        findings["clock"] = [*findings["clock"], _jumps(gained)]
    return Examined(findings, bool(hangs))


async def _found(check: Check, patient: Patient) -> list[Finding]:
    try:
        return await check(patient)
    except Mistake as mistake:
        return [failed(mistake.message, "put that right")]
    except Exception as problem:  # one check's fault is not another's
        return [
            failed(f"this could not be looked at: {type(problem).__name__} {problem}", "tell its developers")
        ]


def _overdue(name: str, longest: float) -> Finding:
    return failed(
        f"{name}: no answer within {longest:g} s",
        "look for a host, a name server or a disk that swallows what it is asked",
    )


def _jumps(gained: float) -> Finding:
    return warning(
        f"this machine's clock jumped by {gained:.1f} s while it was looked at", "keep it right (NTP)"
    )
