"""Fills one database after the other, measures the same on each, and tells how much it grew."""

import json
import shutil
import tempfile
from pathlib import Path

import attrs
import click

from scripts.bench.growing import operations
from scripts.bench.harness import measuring

#: What a job and an event take, with their pipeline and chain, all indexes, and what is written meanwhile.
BYTES_A_ROW = 3_000
LEFT = 10 << 30  # bytes, for everybody else


@click.command()
@click.option(
    "--rows", type=click.IntRange(1000), default=10_000_000, show_default=True, help="Jobs, and events."
)
@click.option(
    "--beside",
    type=click.IntRange(1000),
    default=200_000,
    show_default=True,
    help="And first so many, for the ratio.",
)
@click.option("--projects", type=click.IntRange(4), default=10_000, show_default=True)
@click.option("--json", "keep", type=click.Path(path_type=Path), help="Writes all figures to this file.")
@click.option(
    "--plans", type=click.Path(path_type=Path), help="Writes the plans of the larger one to this file."
)
def growth(rows: int, beside: int, projects: int, keep: Path | None, plans: Path | None) -> None:
    """What lists, hand-outs, removals, migrations and vacuum take over many jobs and audit events, and how much more
    than over fewer."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < rows * BYTES_A_ROW + LEFT:
        raise click.ClickException(
            f"{free >> 30} GiB are free, and {rows:,} rows want {rows * BYTES_A_ROW + LEFT >> 30}."
        )
    sizes = sorted({min(beside, rows), rows})
    found = [operations.measured(size, projects, told=_tell) for size in sizes]
    click.echo(operations.text(found))
    if keep:
        kept = {
            "machine": measuring.described(),
            "sizes": [attrs.asdict(one, filter=_figures) for one in found],
        }
        keep.write_text(json.dumps(kept, indent=1) + "\n")
    if plans:
        plans.write_text("\n".join(f"=== {name}\n{text}" for name, text in found[-1].plans.items()))


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _figures(attribute: "attrs.Attribute[object]", _: object) -> bool:
    return attribute.name != "plans"


if __name__ == "__main__":
    growth(prog_name="scripts/bench/growth")
