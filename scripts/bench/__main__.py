"""Runs the measurements of this folder: all modules here with a function `measure`, or those named."""

import importlib
import pkgutil

import click

import scripts.bench
from scripts.bench.rows import SkippedError


@click.command()
@click.argument("modules", nargs=-1)
def bench(modules: tuple[str, ...]) -> None:
    """Measures speed against known programs. MODULES name measurements; without any, all are run."""
    found = [
        module.name for module in pkgutil.iter_modules(scripts.bench.__path__) if module.name != "__main__"
    ]
    unknown = set(modules) - set(found)
    if unknown:
        raise click.ClickException(f"There is no measurement {', '.join(sorted(unknown))}.")
    for name in modules or found:
        measure = getattr(importlib.import_module(f"scripts.bench.{name}"), "measure", None)
        if measure is not None:
            try:
                for row in measure():
                    click.echo(row)
            except SkippedError as reason:
                click.echo(f"{name}: skipped, {reason}")


bench(prog_name="scripts/bench/run")
