"""`forgelet doctor`."""

import asyncio
import os
import sys
from collections.abc import Mapping

import click

from common import logs
from common.mistakes import Mistake
from common.settings import SETTINGS_FILE_VARIABLE
from forgelet.doctor.examination import Examined, examine, examine_stopped, settings_cannot_be_found
from forgelet.doctor.findings import State, worst
from forgelet.frame import Command
from forgelet.instance import Instance
from forgelet.local import variables
from forgelet.output import answer

_COLOURS: Mapping[State, str] = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command(cls=Command)
@click.option("--quiet", "-q", is_flag=True, help="Only what is not well.")
@click.pass_obj
def doctor(instance: Instance, *, quiet: bool) -> int:
    """Looks at everything that the service needs, and says in a line each what is wrong and what to do.

    Settings, programs, clock, disks, files with secrets, the database and its role, the secret key, both processes, the
    edges and their tokens, mail, object stores, and all that fails by the service's own notes. Changes nothing (a store
    gets an object that is removed again), needs nothing to run, and takes 15 seconds at most.

    Exit status 1 is that something has failed; warnings alone are 0.
    """
    logs.set_level("CRITICAL")  # what is wrong is said here, once
    examined = _examined(instance)
    findings = {
        check: [finding for finding in found if not quiet or finding.state != "ok"]
        for check, found in examined.findings.items()
    }
    lines = [
        f"{click.style(finding.state.ljust(7), _COLOURS[finding.state])} {check:<13}{finding.text}"
        for check, found in findings.items()
        for finding in found
    ]
    state = worst(finding for found in examined.findings.values() for finding in found)
    document = {
        "state": state,
        "findings": [{"check": check, **one.as_json()} for check, found in findings.items() for one in found],
    }
    answer(document, "\n".join(lines) or "All is well.")
    status = 1 if state == "failed" else 0
    if examined.hangs:  # what waits for a name server in a thread would be waited for
        sys.stdout.flush()
        os._exit(status)
    return status


def _examined(instance: Instance) -> Examined:
    try:
        environment, data, running = instance.environment, instance.data, instance.running
    except Mistake as mistake:
        if instance.named is not None:
            raise
        if any(name.startswith((variables.API.prefix, SETTINGS_FILE_VARIABLE)) for name in os.environ):
            return asyncio.run(examine(os.environ))  # what is wrong with it is told with the settings
        return asyncio.run(settings_cannot_be_found(mistake))
    if data is not None and running is None and variables.has_own_postgres(data):
        return asyncio.run(examine_stopped(environment))
    return asyncio.run(examine(environment))
