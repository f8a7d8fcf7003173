"""Measure rows or read measurements; print a table, compare it with another run, and write the page."""

import datetime
import sys
from pathlib import Path

import attrs
import click

from scripts.bench import measuring, report, runs
from scripts.bench.rows import ALL_ROWS, GROUPS
from scripts.bench.runs import FULL, TINY, Bench, Run, Size

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("names", metavar="[ROW]...", nargs=-1)
@click.option("--list", "listed", is_flag=True, help="List the rows without measuring them.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=FULL.rounds,
    show_default=True,
    help="Number of rounds of each side.",
)
@click.option("--json", "keep", type=click.Path(path_type=Path), help="Write the measurements to this file.")
@click.option("--from", "kept", type=FILE, help="Read a file that --json has written instead of measuring.")
@click.option(
    "--compare",
    type=FILE,
    help="Report rows that got slower since this --json file, beyond noise; exit status 1 if any did.",
)
@click.option(
    "--page", "writes_page", is_flag=True, help="Write the table and the charts of docs/performance.md."
)
@click.option(
    "--tiny", is_flag=True, help="Only check that each row can be measured: little data, one short round."
)
def bench(
    names: tuple[str, ...],
    listed: bool,
    rounds: int,
    keep: Path | None,
    kept: Path | None,
    compare: Path | None,
    writes_page: bool,
    tiny: bool,
) -> None:
    """Measure speed against known programs. ROW is the name of a row or of a group of rows; without any, all rows are
    measured."""
    chosen = _chosen(names)
    if listed:
        for name in chosen:
            title, row = ALL_ROWS[name]
            click.echo(report.row_description(title, row))
        return
    try:
        old = runs.read_run(compare) if compare else None
        size = TINY if tiny else attrs.evolve(FULL, rounds=rounds)
        run = runs.read_run(kept) if kept else _measured(chosen, size)
        if kept:
            if names:
                run = attrs.evolve(run, outcomes=[row for row in run.outcomes if row.name in chosen])
            click.echo(report.run_text(run))
        if keep:
            runs.write_run(run, keep)
        if writes_page:
            report.write_page(run)
    except ValueError as problem:
        raise click.ClickException(str(problem)) from None
    if old is not None:
        sys.exit(1 if _report_slower(old, run) else 0)


def _chosen(names: tuple[str, ...]) -> list[str]:
    groups = {group: [row.name for row in rows] for group, (_, rows) in GROUPS.items()}
    unknown = [name for name in names if name not in ALL_ROWS and name not in groups]
    if unknown:
        raise click.ClickException(f"There is no row {', '.join(unknown)}; --list prints all rows.")
    requested = {row for name in names for row in groups.get(name, [name])}
    return [name for name in ALL_ROWS if not names or name in requested]


def _measured(names: list[str], size: Size) -> Run:
    outcomes = []
    described = measuring.describe_machine()
    with Bench(size) as running:
        for name in names:
            title, row = ALL_ROWS[name]
            outcomes.append(runs.measure_row(row, title, running))
            click.echo(report.row_text(outcomes[-1]))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Run(today, described, size.rounds, outcomes)


def _report_slower(old: Run, new: Run) -> bool:
    """Print the rows that got slower; return whether there are any."""
    sentences = report.slower(old, new)
    for sentence in sentences:
        click.echo(f"slower: {sentence}")
    if unknown := report.not_compared(old, new):
        click.echo(f"not in the older run: {', '.join(unknown)}")
    if not sentences:
        click.echo("Nothing got slower beyond noise.")
    return bool(sentences)


if __name__ == "__main__":
    bench(prog_name="scripts/bench/run")
