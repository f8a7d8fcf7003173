"""Breaks a service of its own under load, and tells what was lost, done twice or did not heal."""

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from random import Random

import attrs
import click

from scripts.faults import course, object_store, soak
from scripts.faults.course import Load
from scripts.faults.faults import FAULTS, S3, hindrance, parts
from scripts.faults.ground import Ground, prepared
from scripts.faults.report import Report

#: What is killed again and again, and what has to succeed before the next kill.
KILLS = ("kill-tree", "kill-edge")
LEISURE = 4.0
QUICK_PULSE = ("read", "commit", "edge read")


@attrs.frozen
class Wanted:
    """What the options say."""

    faults: Sequence[str]
    #: Those of them that need a service with S3.
    s3: Collection[str]
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
@click.option("--seed", type=int, help="Of an earlier run, for the same faults in the same order.")
@click.option("--keep-logs", type=click.Path(path_type=Path), help="A folder for the logs of all processes.")
def main(
    faults: tuple[str, ...],
    minutes: float,
    kills: int,
    soak: float,
    seed: int | None,
    keep_logs: Path | None,
) -> None:
    """Breaks a forgelet of its own on this machine. FAULTS name some (kill-tree+full-edge: both at the same moment);
    without any, all are made, at random. Ends with status 1 where anything was lost, done twice, not healed or
    answered as it may not be."""
    try:
        s3 = {name for name in faults or FAULTS if S3.keys() & set(parts(name))}
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"Seed {seed}.")
    wanted = Wanted(faults or list(FAULTS), s3, minutes, kills, soak, Random(seed), keep_logs)
    if asyncio.run(_main(wanted)):
        sys.exit(1)


async def _main(wanted: Wanted) -> bool:
    """Whether something is wrong."""
    if wanted.soak or wanted.kills:
        return await _on_a_ground(wanted, [], 0, with_s3=False)
    with_s3 = [name for name in wanted.faults if name in wanted.s3]
    without = [name for name in wanted.faults if name not in wanted.s3]
    if with_s3 and not object_store.is_there():
        click.echo(
            f"Skipped: {', '.join(with_s3)}: needs {object_store.PROGRAM} on PATH (pip install 'moto[server]')."
        )
        with_s3 = []
    seconds = wanted.minutes * 60 / len(with_s3 + without)
    failed = False
    for names in filter(None, (without, with_s3)):
        failed |= await _on_a_ground(wanted, names, seconds * len(names), with_s3=names is with_s3)
    return failed


async def _on_a_ground(wanted: Wanted, names: list[str], seconds: float, *, with_s3: bool) -> bool:
    async with prepared(click.echo, with_s3=with_s3) as ground:
        load = Load(ground, leisure=LEISURE if wanted.kills else 1.0)
        await load.prepare()
        try:
            report = await _made(wanted, ground, load, names, seconds)
            logs = ground.data.part("logs")
            click.echo(f"\n{report}\n\n{report.findings(logs)}")
        finally:
            if wanted.keep_logs is not None:
                name = "with-s3" if with_s3 else "with-files"
                shutil.copytree(ground.data.part("logs"), wanted.keep_logs / name, dirs_exist_ok=True)
        return report.failed


async def _made(wanted: Wanted, ground: Ground, load: Load, names: list[str], seconds: float) -> Report:
    if wanted.soak:
        await soak.soaked(ground, load, wanted.soak * 60, click.echo)
        return Report(ground.ledger, [])
    if wanted.kills:
        kills = wanted.random.sample(KILLS * wanted.kills, 2 * wanted.kills)
        made = await course.run(ground, load, kills, wanted.random, click.echo, pulse=QUICK_PULSE)
        return Report(ground.ledger, made)
    for name in list(names):
        if why := hindrance(name, ground):
            click.echo(f"Skipped: {name}: {why}.")
            names.remove(name)
    chosen = _by_chance(names, seconds, wanted.random)
    return Report(ground.ledger, await course.run(ground, load, chosen, wanted.random, click.echo))


def _by_chance(names: list[str], seconds: float, random: Random) -> Iterator[str]:
    """All of them in random order, again and again."""
    until = time.monotonic() + seconds
    while names:
        for name in random.sample(names, len(names)):
            if time.monotonic() > until:
                return
            yield name


main(prog_name="scripts/faults/run")
