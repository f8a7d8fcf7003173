"""Attacks a service of its own, one way after the other, and tells what an innocent client felt of it."""

import sys

import click

from scripts.abuse.attacks import ATTACKS
from scripts.abuse.course import felt_in_quiet, made
from scripts.abuse.ground import prepared
from scripts.abuse.report import HEADING
from scripts.abuse.repositories import Sizes


@click.command()
@click.argument("attacks", nargs=-1)
@click.option("--seconds", default=15, show_default=True, help="How long each attack goes on.")
def abuse(attacks: tuple[str, ...], seconds: int) -> None:
    """Attacks a forgelet of its own on this machine. ATTACKS name some; without any, all are made, in five to ten
    minutes. Ends with status 1 where an aim was missed."""
    unknown = set(attacks) - set(ATTACKS)
    if unknown:
        raise click.UsageError(
            f"There is no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}."
        )
    with prepared(click.echo, Sizes()) as ground:
        quiet = felt_in_quiet(ground, seconds)
        before = ground.held()
        click.echo(
            f"\nQuiet: {quiet.percentile_99 * 1000:.0f} ms for 99 % of {len(quiet.seconds)} answers.\n\n{HEADING}"
        )
        missed = False
        for name in attacks or ATTACKS:
            outcome = made(name, ground, seconds, quiet, before)
            click.echo(outcome)
            missed = missed or bool(outcome.misses)
    if missed:
        sys.exit(1)


abuse(prog_name="scripts/abuse/run")
