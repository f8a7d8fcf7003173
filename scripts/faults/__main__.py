"""Breaks a service of its own under load, and tells what was lost, done twice or did not heal."""

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import click

from scripts.faults import course
from scripts.faults.course import Load
from scripts.faults.faults import FAULTS
from scripts.faults.ground import prepared
from scripts.faults.report import Report


@click.command()
@click.argument("faults", nargs=-1)
@click.option("--minutes", default=8.0, show_default=True, help="How long faults are made.")
@click.option("--seed", type=int, help="Of an earlier run, for the same faults in the same order.")
@click.option("--keep-logs", type=click.Path(path_type=Path), help="A folder for the logs of all processes.")
def main(faults: tuple[str, ...], minutes: float, seed: int | None, keep_logs: Path | None) -> None:
    """Breaks a forgelet of its own on this machine. FAULTS name some; without any, all are made, at random. Ends with
    status 1 where anything was lost, done twice, not healed or answered as it may not be."""
    unknown = set(faults) - set(FAULTS)
    if unknown:
        raise click.UsageError(
            f"There is no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}."
        )
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"Seed {seed}.")
    if asyncio.run(_main(list(faults or FAULTS), minutes * 60, Random(seed), keep_logs)):
        sys.exit(1)


async def _main(names: list[str], seconds: float, random: Random, keep_logs: Path | None) -> bool:
    """Whether something is wrong."""
    async with prepared(click.echo) as ground:
        for name in list(names):
            if why := FAULTS[name].hindrance(ground):
                click.echo(f"Skipped: {name} {why}.")
                names.remove(name)
        load = Load(ground)
        await load.prepare()
        made = await course.run(ground, load, _by_chance(names, seconds, random), random, click.echo)
        report = Report(ground.ledger, made)
        logs = ground.data.part("logs")
        click.echo(f"\n{report}\n\n{report.findings(logs)}")
        if keep_logs is not None:
            shutil.copytree(logs, keep_logs, dirs_exist_ok=True)
        return report.failed


def _by_chance(names: list[str], seconds: float, random: Random) -> Iterator[str]:
    """All of them in random order, again and again."""
    until = time.monotonic() + seconds
    while names:
        for name in random.sample(names, len(names)):
            if time.monotonic() > until:
                return
            yield name


main(prog_name="scripts/faults/run")
