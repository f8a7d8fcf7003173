"""Breaks a service of its own under load, and tells what was lost, done twice or did not heal."""

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import attrs
import click

from scripts.faults import scenario
from scripts.faults.environment import Environment, running_environment
from scripts.faults.faults import FAULTS, hindrance
from scripts.faults.faults import shape as shape_for
from scripts.faults.scenario import Load, Report
from scripts.faults.surroundings import ALONE, FLEET, WITH_S3, Shape

#: What is killed again and again, and what has to succeed before the next kill.
KILLS = ("kill-tree", "kill-edge")
LEISURE = 4.0
QUICK_PULSE = ("read", "commit", "edge read")


@attrs.frozen
class Wanted:
    """What the options say."""

    faults: Sequence[str]
    #: Of the service that a fault, or the load alone, is for.
    shapes: Mapping[str, Shape]
    shape: Shape
    minutes: float
    kills: int
    soak: float
    random: Random
    keep_logs: Path | None


@click.command()
@click.argument("faults", nargs=-1)
@click.option("--minutes", default=7.0, show_default=True, help="How long faults are made.")
@click.option(
    "--kills", default=0, help="So many kills of the server's whole tree, and of the edge, instead."
)
@click.option("--soak", default=0.0, help="So many minutes of load without a fault, instead.")
@click.option("--fleet", is_flag=True, help=f"On {FLEET}, as on several machines, whatever the fault needs.")
@click.option("--seed", type=int, help="Of an earlier run, for the same faults in the same order.")
@click.option("--keep-logs", type=click.Path(path_type=Path), help="A folder for the logs of all processes.")
def main(
    faults: tuple[str, ...],
    minutes: float,
    kills: int,
    soak: float,
    fleet: bool,
    seed: int | None,
    keep_logs: Path | None,
) -> None:
    """Breaks a forgelet of its own on this machine. FAULTS name some (kill-tree+full-edge: both at the same moment);
    without any, all are made, at random. Ends with status 1 where anything was lost, done twice, not healed or
    answered as it may not be."""
    try:
        shapes = {name: FLEET if fleet else shape_for(name) for name in faults or FAULTS}
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"Seed {seed}.")
    shape = FLEET if fleet else ALONE
    wanted = Wanted(list(shapes), shapes, shape, minutes, kills, soak, Random(seed), keep_logs)
    if asyncio.run(_main(wanted)):
        sys.exit(1)


async def _main(wanted: Wanted) -> bool:
    """Whether something is wrong."""
    if wanted.soak or wanted.kills:
        if why := wanted.shape.hindrance():
            raise click.UsageError(f"{wanted.shape}: {why}.")
        return await _on_a_ground(wanted, [], 0, wanted.shape)
    by_shape = {
        shape: [name for name in wanted.faults if wanted.shapes[name] == shape]
        for shape in (ALONE, WITH_S3, FLEET)
    }
    for shape, names in by_shape.items():
        if names and (why := shape.hindrance()):
            click.echo(f"Skipped: {', '.join(names)}: {why}.")
            by_shape[shape] = []
    count = sum(map(len, by_shape.values()))
    failed = False
    for shape, names in by_shape.items():
        if names:
            seconds = wanted.minutes * 60 * len(names) / count
            failed |= await _on_a_ground(wanted, names, seconds, shape)
    return failed


async def _on_a_ground(wanted: Wanted, names: list[str], seconds: float, shape: Shape) -> bool:
    async with running_environment(click.echo, shape) as ground:
        load = Load(ground, leisure=LEISURE if wanted.kills else 1.0)
        await load.prepare()
        try:
            report = await _made(wanted, ground, load, names, seconds)
            logs = ground.data.part("logs")
            click.echo(f"\n{report}\n\n{report.findings(logs)}")
        finally:
            if wanted.keep_logs is not None:
                name = {ALONE: "with-files", WITH_S3: "with-s3", FLEET: "fleet"}[shape]
                shutil.copytree(ground.data.part("logs"), wanted.keep_logs / name, dirs_exist_ok=True)
        return report.failed


async def _made(wanted: Wanted, ground: Environment, load: Load, names: list[str], seconds: float) -> Report:
    if wanted.soak:
        await scenario.soak(ground, load, wanted.soak * 60, click.echo)
        return Report(ground.ledger, [])
    if wanted.kills:
        kills = wanted.random.sample(KILLS * wanted.kills, 2 * wanted.kills)
        made = await scenario.run_faults(ground, load, kills, wanted.random, click.echo, pulse=QUICK_PULSE)
        return Report(ground.ledger, made)
    for name in list(names):
        if why := hindrance(name, ground):
            click.echo(f"Skipped: {name}: {why}.")
            names.remove(name)
    chosen = _by_chance(names, seconds, wanted.random)
    return Report(ground.ledger, await scenario.run_faults(ground, load, chosen, wanted.random, click.echo))


def _by_chance(names: list[str], seconds: float, random: Random) -> Iterator[str]:
    """All of them in random order, again and again."""
    until = time.monotonic() + seconds
    while names:
        for name in random.sample(names, len(names)):
            if time.monotonic() > until:
                return
            yield name


main(prog_name="scripts/faults/run")
