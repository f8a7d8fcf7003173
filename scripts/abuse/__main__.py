"""Run attacks on a forgelet of their own, one after the other. Report how each affected a control client, or how the
cost of inputs grows with their size."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from scripts.abuse.attacks import ATTACKS
from scripts.abuse.environment import Sizes, running_environment
from scripts.abuse.inputs import INPUTS
from scripts.abuse.scenario import (
    ATTACK_TABLE,
    INPUT_TABLE,
    SLOWER,
    WAITS_ONCE,
    measure_growth,
    measure_quiet,
    run_attack,
)


@click.command()
@click.argument("attacks", nargs=-1)
@click.option("--seconds", default=15, show_default=True, help="How long each attack goes on.")
@click.option(
    "--growing", is_flag=True, help="Send each input in three sizes instead, and compare their costs."
)
def abuse(attacks: tuple[str, ...], seconds: int, *, growing: bool) -> None:
    """Attack a forgelet of its own on this machine. ATTACKS are the names of attacks; without any, all of them run,
    which takes a quarter of an hour. The exit status is 1 if an aim was missed."""
    choices: Mapping[str, object] = INPUTS if growing else ATTACKS
    if unknown := set(attacks) - set(choices):
        raise click.UsageError(
            f"There is no attack {', '.join(sorted(unknown))}; there are {', '.join(choices)}."
        )
    with running_environment(click.echo, Sizes(large=2**20) if growing else Sizes()) as environment:
        measure: Callable[[str], Any]
        if growing:
            click.echo(f"\n{INPUT_TABLE.heading}")
            measure = lambda name: asyncio.run(measure_growth(name, environment))  # noqa: E731
        else:
            quiet, before = measure_quiet(environment, seconds), environment.usage()
            click.echo(
                f"\nQuiet: {quiet.percentile_99 * 1000:.0f} ms for 99 % of {len(quiet.seconds)} answers. "
                f"Aim beside an attack: at most {quiet.most_beside_others * 1000:.0f} ms, which is {SLOWER} times "
                f"the larger of that and {WAITS_ONCE * 1000:.0f} ms."
            )
            click.echo(f"\n{ATTACK_TABLE.heading}")
            measure = lambda name: run_attack(name, environment, seconds, quiet, before)  # noqa: E731
        outcomes = []
        for name in attacks or choices:
            outcomes.append(measure(name))
            click.echo(outcomes[-1])
    longest = max(outcomes, key=lambda outcome: outcome.step)
    click.echo(f"\nLongest step of an event loop: {longest.step * 1000:.0f} ms in {longest.name}.")
    sys.exit(any(outcome.misses for outcome in outcomes))


abuse(prog_name="scripts/abuse/run")
