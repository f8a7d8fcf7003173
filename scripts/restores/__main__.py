"""Backs up a forgelet of its own under load and at rest, wipes it, restores it, and tells what is not as it was."""

import asyncio
import sys

import click

from scripts.restores import course


@click.command()
@click.option(
    "--seconds", default=30.0, show_default=True, help="How long everybody works before the backup."
)
def main(seconds: float) -> None:
    """Ends with status 1 where anything is missing, or answered otherwise than before."""
    wrong = asyncio.run(course.run(click.echo, seconds))
    for one in wrong[:100]:
        click.echo(f"WRONG: {one}")
    click.echo(f"{len(wrong)} things are wrong." if wrong else "Everything is as it was.")
    sys.exit(bool(wrong))


main(prog_name="scripts/restores/run")
