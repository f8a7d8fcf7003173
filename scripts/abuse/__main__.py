"""Attacks a service of its own, one way after the other. Tells what an innocent client felt of it, or how the cost of
inputs grows."""

import sys
from collections.abc import Mapping

import click

from scripts.abuse import scenario
from scripts.abuse.attacks import ATTACKS
from scripts.abuse.environment import running_environment
from scripts.abuse.inputs import INPUTS
from scripts.abuse.repositories import Sizes
from scripts.abuse.scenario import ATTACK_HEADING, measure_quiet, run_attack


@click.command()
@click.argument("attacks", nargs=-1)
@click.option("--seconds", default=15, show_default=True, help="How long each attack goes on.")
@click.option(
    "--growing",
    "compares",
    is_flag=True,
    help="Send each input in three sizes instead, and compare their costs.",
)
def abuse(attacks: tuple[str, ...], seconds: int, *, compares: bool) -> None:
    """Attacks a forgelet of its own on this machine. ATTACKS name some; without any, all are made, in a quarter of an
    hour. Ends with status 1 where an aim was missed."""
    known: Mapping[str, object] = INPUTS if compares else ATTACKS
    unknown = set(attacks) - set(known)
    if unknown:
        raise click.UsageError(
            f"There is no attack {', '.join(sorted(unknown))}; there are {', '.join(known)}."
        )
    missed = _grow(attacks) if compares else _attack(attacks, seconds)
    if missed:
        sys.exit(1)


def _grow(names: tuple[str, ...]) -> bool:
    """Whether an aim was missed."""
    growths = []
    with running_environment(click.echo, Sizes(large=2**20)) as ground:
        click.echo(f"\n{scenario.INPUT_HEADING}")
        for name in names or INPUTS:
            growth = scenario.measure_growth(name, ground)
            click.echo(growth)
            growths.append(growth)
    longest = max(growths, key=lambda growth: growth.step)
    click.echo(f"\nLongest step of an event loop: {longest.step * 1000:.0f} ms in {longest.name}.")
    return any(growth.misses for growth in growths)


def _attack(attacks: tuple[str, ...], seconds: int) -> bool:
    """Whether an aim was missed."""
    with running_environment(click.echo, Sizes()) as ground:
        quiet = measure_quiet(ground, seconds)
        before = ground.held()
        click.echo(
            f"\nQuiet: {quiet.percentile_99 * 1000:.0f} ms for 99 % of {len(quiet.seconds)} answers.\n"
        )
        click.echo(ATTACK_HEADING)
        outcomes = []
        for name in attacks or ATTACKS:
            outcomes.append(run_attack(name, ground, seconds, quiet, before))
            click.echo(outcomes[-1])
    longest = max(outcomes, key=lambda outcome: outcome.step)
    click.echo(f"\nLongest step of an event loop: {longest.step * 1000:.0f} ms in {longest.name}.")
    return any(outcome.misses for outcome in outcomes)


abuse(prog_name="scripts/abuse/run")
