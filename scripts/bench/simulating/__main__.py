"""Simulates queues and edges of many machines; measures what single operations take; checks one with the other."""

import os
import statistics
from collections.abc import Sequence

import attrs
import click

from scripts.bench.simulating import calibrating, checking, edges, jobs, times
from scripts.bench.simulating.scene import scene

JOBS = 400


@click.group()
def simulate() -> None:
    """What many machines would do, by what one operation takes on one."""


@simulate.command("jobs")
@click.option("--machines", type=click.IntRange(1), default=100, show_default=True)
@click.option(
    "--processors", type=click.IntRange(1), default=4, show_default=True, help="Of a machine; processes too."
)
@click.option(
    "--database", type=click.IntRange(1), default=16, show_default=True, help="Processors of PostgreSQL."
)
@click.option("--runners", type=click.IntRange(1), default=2_000, show_default=True, help="Jobs at a time.")
@click.option("--jobs", "made", type=float, default=8.0, show_default=True, help="A second.")
@click.option("--job-seconds", type=float, default=180.0, show_default=True)
@click.option("--reads", type=float, default=2_000.0, show_default=True, help="Lists a second.")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="That are simulated.")
@click.option("--seed", type=int, default=1, show_default=True)
def simulate_jobs(
    machines: int,
    processors: int,
    database: int,
    runners: int,
    made: float,
    job_seconds: float,
    reads: float,
    seconds: float,
    seed: int,
) -> None:
    """Runners that poll, jobs that are handed out, logs and lists; PostgreSQL is one machine for all."""
    wanted = jobs.Wanted(machines, processors, database, runners, made, job_seconds, reads, seconds)
    fleet = jobs.Jobs(wanted, times.measured(), seed)
    story = fleet.run()
    looked, asked = (number / max(story.handed_out, 1) for number in (story.looked, story.asked))
    busiest = max(place.load for place in fleet.servers.machines)
    click.echo(f"jobs made {story.made}, handed out {story.handed_out}, pending {len(story.pending)}")
    click.echo(f"a job waited {_milliseconds(story.waited)}")
    click.echo(
        f"for each job runners asked {asked:.1f} times, and processes looked for one {looked:.1f} times"
    )
    click.echo(f"a list took {_milliseconds(story.read)}")
    click.echo(
        f"PostgreSQL's processors {fleet.servers.database.load:.0%} busy, the busiest machine {busiest:.0%}"
    )


@simulate.command("edges")
@click.option("--edges", "number", type=click.IntRange(1), default=100, show_default=True)
@click.option("--rate", type=float, default=50.0, show_default=True, help="Requests a second of each.")
@click.option("--objects", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--skew", type=float, default=0.9, show_default=True, help="Of Zipf's law.")
@click.option("--private", type=float, default=0.1, show_default=True, help="Share of requests.")
@click.option("--lifetime", type=float, default=60.0, show_default=True, help="Seconds an object is fresh.")
@click.option("--purges", type=float, default=1.0, show_default=True, help="A second.")
@click.option("--machines", type=click.IntRange(1), default=4, show_default=True, help="Of the origin.")
@click.option("--processors", type=click.IntRange(1), default=4, show_default=True)
@click.option("--database", type=click.IntRange(1), default=8, show_default=True)
@click.option("--seconds", type=float, default=60.0, show_default=True, help="That are simulated.")
@click.option("--seed", type=int, default=1, show_default=True)
def simulate_edges(number: int, seed: int, seconds: float, **given: float) -> None:
    """Edges that have all objects on their disks, before one origin."""
    wanted = edges.Wanted(edges=number, simulated=seconds, **given)  # type: ignore[arg-type]
    fleet = edges.Edges(wanted, times.measured(), seed)
    story = fleet.run()
    origin = fleet.origin
    click.echo(
        f"requests {story.asked}: without the origin {story.hit_ratio:.1%} (of these joined {story.joined})"
    )
    click.echo(
        f"asked of the origin: fetched {story.fetched}, validated {story.validated}, allowed {story.allowed}"
    )
    click.echo(f"{story.purged} purges, of which the origin told {story.purged * number} times")
    click.echo(
        f"the origin answered within {_milliseconds(story.waited)}; under way at the end {story.under_way}"
    )
    busiest = max(place.load for place in origin.machines)
    click.echo(f"its busiest machine {busiest:.0%} busy, PostgreSQL's processors {origin.database.load:.0%}")


@simulate.command("measure")
def measure() -> None:
    """Measures what single operations take here, and prints it as times.toml has it."""
    with scene(JOBS) as found:
        for name, one in calibrating.calibrated(found).items():
            figures = ", ".join(f"{key} = {value:.3f}" for key, value in attrs.asdict(one).items())
            click.echo(f"{name} = {{ {figures} }}")


@simulate.command("check")
@click.option("--seconds", type=float, default=4.0, show_default=True, help="Of each load.")
def check(seconds: float) -> None:
    """Two real API processes under a small load, against the same simulated."""
    processors = len(os.sched_getaffinity(0))
    with scene(20) as found:
        known = calibrating.calibrated(found, seconds)
        for name in checking.MIX:
            figures = ", ".join(f"{key} {value:.2f}" for key, value in attrs.asdict(known[name]).items())
            click.echo(f"{name}: milliseconds of {figures}")
        click.echo(
            f"{'clients':>8}{'pause':>8}{'req/s':>10}{'simulated':>11}{'':>8}{'ms':>10}{'simulated':>11}"
        )
        for one in checking.compared(found, known, processors, seconds):
            rate, mean = (
                one.simulated.rate / one.measured.rate - 1,
                one.simulated.mean / one.measured.mean - 1,
            )
            click.echo(
                f"{one.clients:>8}{one.pause:>8.0f}{one.measured.rate:>10.0f}{one.simulated.rate:>11.0f}{rate:>+8.0%}"
                f"{one.measured.mean:>10.2f}{one.simulated.mean:>11.2f}{mean:>+8.0%}{one.others:>8.2f}"
            )


def _milliseconds(taken: Sequence[float]) -> str:
    if len(taken) < 2:
        return "not told (too few)"
    high = statistics.quantiles(taken, n=100, method="inclusive")[98]
    return f"{statistics.fmean(taken) * 1000:.1f} ms on average, 99 of 100 within {high * 1000:.1f} ms"


if __name__ == "__main__":
    simulate(prog_name="scripts/bench/simulate")
