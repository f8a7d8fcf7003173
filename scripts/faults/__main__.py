"""Break a service of its own under load, and report what was lost, done twice or did not heal."""

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import attrs
import click

from scripts.faults.environment import Environment, running_environment
from scripts.faults.faults import FAULTS, hindrance
from scripts.faults.faults import shape as shape_for
from scripts.faults.scenario import InjectedFault, Load, Report, run_faults, soak
from scripts.faults.surroundings import ALONE, FLEET, WITH_S3, Shape

#: The faults of `--kills`, and the kinds of operations that have to succeed before the next one.
KILLS = ("kill-tree", "kill-edge")
KILLS_PAUSE_FACTOR = 4.0
QUICK_PULSE = ("read", "commit", "edge read")


@attrs.frozen
class Options:
    """The options of the command. `shapes` has the service for each fault; `shape` is the service for a load without
    faults or with kills."""

    shapes: Mapping[str, Shape]
    shape: Shape
    minutes: float
    kills: int
    soak: float
    random: Random
    keep_logs: Path | None


@click.command()
@click.argument("faults", nargs=-1)
@click.option("--minutes", default=7.0, show_default=True, help="Minutes in which faults are made.")
@click.option(
    "--kills", default=0, help="Instead, kill the server's process tree and the edge this many times each."
)
@click.option(
    "--soak", "soak_minutes", default=0.0, help="Instead, run the load without faults for this many minutes."
)
@click.option("--fleet", is_flag=True, help=f"Use {FLEET.title} for all faults, as on several machines.")
@click.option("--seed", type=int, help="Seed of an earlier run, for the same faults in the same order.")
@click.option(
    "--keep-logs", type=click.Path(path_type=Path), help="Copy the logs of all processes to this folder."
)
def main(
    faults: tuple[str, ...],
    minutes: float,
    kills: int,
    soak_minutes: float,
    fleet: bool,
    seed: int | None,
    keep_logs: Path | None,
) -> None:
    """Break a forgelet of its own on this machine. FAULTS are names of faults (kill-tree+full-edge: both at the same
    moment); without any, all faults are made, in random order. The exit status is 1 if anything was lost, done twice,
    did not heal, or if an answer was not allowed."""
    try:
        shapes = {name: FLEET if fleet else shape_for(name) for name in faults or FAULTS}
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"Seed {seed}.")
    shape = FLEET if fleet else ALONE
    sys.exit(
        asyncio.run(_main(Options(shapes, shape, minutes, kills, soak_minutes, Random(seed), keep_logs)))
    )


async def _main(options: Options) -> bool:
    """Return whether anything failed."""
    if options.soak or options.kills:
        if reason := options.shape.hindrance():
            raise click.UsageError(f"{options.shape.title}: {reason}.")
        return await _run_on(options.shape, options, [], 0)
    by_shape: dict[Shape, list[str]] = {}
    for shape in (ALONE, WITH_S3, FLEET):
        names = [name for name, needed in options.shapes.items() if needed == shape]
        if names and (reason := shape.hindrance()):
            click.echo(f"Skipped: {', '.join(names)}: {reason}.")
        elif names:
            by_shape[shape] = names
    seconds = options.minutes * 60 / max(1, sum(map(len, by_shape.values())))
    failed = [await _run_on(shape, options, names, seconds * len(names)) for shape, names in by_shape.items()]
    return any(failed)


async def _run_on(shape: Shape, options: Options, names: list[str], seconds: float) -> bool:
    """Make the faults on a service of this shape; return whether anything failed."""
    async with running_environment(click.echo, shape) as environment:
        load = Load(environment, pause_factor=KILLS_PAUSE_FACTOR if options.kills else 1.0)
        await load.prepare()
        logs = environment.data.part("logs")
        try:
            report = Report(environment.ledger, await _injected(options, environment, load, names, seconds))
            click.echo(f"\n{report}\n\n{report.findings(logs)}")
        finally:
            if options.keep_logs is not None:
                shutil.copytree(logs, options.keep_logs / shape.name, dirs_exist_ok=True)
        return report.failed


async def _injected(
    options: Options, environment: Environment, load: Load, names: list[str], seconds: float
) -> list[InjectedFault]:
    if options.soak:
        await soak(environment, load, options.soak * 60, click.echo)
        return []
    random = options.random
    if options.kills:
        kills = random.sample(KILLS * options.kills, 2 * options.kills)
        return await run_faults(environment, load, kills, random, click.echo, pulse=QUICK_PULSE)
    for name in list(names):
        if reason := hindrance(name, environment):
            click.echo(f"Skipped: {name}: {reason}.")
            names.remove(name)
    return await run_faults(environment, load, _by_chance(names, seconds, random), random, click.echo)


def _by_chance(names: list[str], seconds: float, random: Random) -> Iterator[str]:
    """Yield all names in random order, again and again, for this many seconds."""
    until = time.monotonic() + seconds
    while names:
        for name in random.sample(names, len(names)):
            if time.monotonic() > until:
                return
            yield name


main(prog_name="scripts/faults/run")
