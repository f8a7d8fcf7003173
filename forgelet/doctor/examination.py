"""The command `forgelet doctor`, which runs all checks at the same time, within a time limit."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import attrs
import click

from common import logs
from common.config_errors import ConfigError
from common.settings import SETTINGS_FILE_VARIABLE
from forgelet.doctor import processes, surroundings
from forgelet.doctor.findings import DiagnosedInstance, Finding, State, failed, read_settings, warning, worst
from forgelet.frame import Command, answer
from forgelet.instance import Instance
from forgelet.local import variables

Check = Callable[[DiagnosedInstance], Awaitable[list[Finding]]]
#: The checks, in the order of their findings, by the names that are shown with these.
CHECKS: Mapping[str, Check] = {
    "versions": surroundings.versions,
    "clock": surroundings.clock,
    "disk": surroundings.disks,
    "files": surroundings.modes,
    "database": surroundings.database,
    "API server": processes.api_server,
    "storage edge": processes.storage_edge,
    "edges": processes.edges,
    "mail": surroundings.mail,
    "object store": surroundings.object_store,
    "shared store": surroundings.shared_store,
    "work": processes.work,
}
_OF_RUNNING = ("database", "edges", "work")
_OF_MACHINE = ("versions", "clock", "disk")
#: Maximum number of seconds for all checks, and for the cancellation of those that have not ended by then.
LONGEST, _LAST = 13.0, 1.0
#: Seconds by which the wall clock and the monotonic clock may differ after the checks.
_JUMP = 1.0


@attrs.frozen
class Examined:
    """The findings by check. `hangs`: a check did not end, and may occupy a thread."""

    findings: Mapping[str, list[Finding]]
    hangs: bool


async def examine(
    environment: Mapping[str, str], longest: float = LONGEST, *, is_local: bool = False
) -> Examined:
    """Check the instance whose processes have these variables, for at most `longest` seconds. `is_local`: it is that of
    a `forgelet up`."""
    return await _examine(CHECKS, environment, longest, is_local=is_local)


async def examine_stopped(environment: Mapping[str, str]) -> Examined:
    """Check a stopped `forgelet up`, whose database and edge do not run either."""
    checks = {name: check for name, check in CHECKS.items() if name not in _OF_RUNNING}
    return await _examine(checks, environment, LONGEST, is_local=True)


async def settings_cannot_be_found(error: ConfigError) -> Examined:
    """Check only the machine, if there is no instance yet. `error` becomes a warning."""
    checks = {name: CHECKS[name] for name in _OF_MACHINE}
    examined = await _examine(checks, {}, LONGEST, has_settings=False)
    what, _, remedy = error.message.partition(": ")
    return attrs.evolve(examined, findings={"settings": [warning(what, remedy)], **examined.findings})


async def _examine(
    to_run: Mapping[str, Check],
    environment: Mapping[str, str],
    longest: float,
    *,
    has_settings: bool = True,
    is_local: bool = False,
) -> Examined:
    started_at, started_monotonic = time.time(), time.monotonic()
    api, edge, settings = read_settings(environment) if has_settings else (None, None, [])
    async with aiohttp.ClientSession() as session:
        instance = DiagnosedInstance(environment, api, edge, session, is_local)
        checks = {name: asyncio.create_task(_findings_of(check, instance)) for name, check in to_run.items()}
        await asyncio.wait(checks.values(), timeout=longest)
        hangs = [name for name, check in checks.items() if not check.done()]
        for name in hangs:
            checks[name].cancel()
        await asyncio.wait(checks.values(), timeout=_LAST)
    findings = {"settings": settings} if has_settings else {}
    for name, check in checks.items():
        findings[name] = [_overdue(name, longest)] if name in hangs else check.result()
    gained = (time.time() - started_at) - (time.monotonic() - started_monotonic)
    if abs(gained) > _JUMP:
        findings["clock"] = [*findings["clock"], _jumps(gained)]
    return Examined(findings, bool(hangs))


async def _findings_of(check: Check, instance: DiagnosedInstance) -> list[Finding]:
    try:
        return await check(instance)
    except ConfigError as error:
        return [failed(error.message, "put that right")]
    except Exception as problem:  # a failing check does not affect the others
        return [
            failed(f"this could not be checked: {type(problem).__name__} {problem}", "tell its developers")
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


_COLOURS: Mapping[State, str] = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command(cls=Command)
@click.option("--quiet", "-q", is_flag=True, help="Print only problems.")
@click.pass_obj
def doctor(instance: Instance, *, quiet: bool) -> int:
    """Check everything that the service needs.

    It prints one line for each check: what is wrong and what to do. It checks settings, programs, clock, disks, files
    with secrets, the database and its role, the secret key, both processes, the edges and their tokens, mail, object
    stores, and failures that the service has recorded. It changes nothing (a store gets an object that is removed
    again), works without a running service, and takes at most 15 seconds.

    Exit status 1 means that something has failed; with warnings alone it is 0.
    """
    logs.set_level("CRITICAL")  # problems are reported here, once
    examined = _examined(instance)
    findings = {
        check: [finding for finding in of_check if not quiet or finding.state != "ok"]
        for check, of_check in examined.findings.items()
    }
    lines = [
        f"{click.style(finding.state.ljust(7), _COLOURS[finding.state])} {check:<13}{finding.text}"
        for check, of_check in findings.items()
        for finding in of_check
    ]
    state = worst(finding for of_check in examined.findings.values() for finding in of_check)
    document = {
        "state": state,
        "findings": [
            {"check": check, **finding.as_json()}
            for check, of_check in findings.items()
            for finding in of_check
        ],
    }
    answer(document, "\n".join(lines) or "All is well.")
    status = 1 if state == "failed" else 0
    if examined.hangs:  # Python would wait for a thread that waits for a name server
        sys.stdout.flush()
        os._exit(status)
    return status


def _examined(instance: Instance) -> Examined:
    try:
        environment, data, running = instance.environment, instance.data, instance.running
    except ConfigError as error:
        if instance.named is not None:
            raise
        if any(name.startswith((variables.API.prefix, SETTINGS_FILE_VARIABLE)) for name in os.environ):
            return asyncio.run(examine(os.environ))  # the settings' problems are among the findings
        return asyncio.run(settings_cannot_be_found(error))
    if data is not None and running is None and variables.has_own_postgres(data):
        return asyncio.run(examine_stopped(environment))
    return asyncio.run(examine(environment, is_local=data is not None))
