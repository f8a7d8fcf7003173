"""Runs the tests of a public GitLab client against a forgelet of its own, and compares with what was written down."""

import sys
import tempfile
from pathlib import Path

import click

from common.mistakes import Command, Mistake
from forgelet.testing import starting
from scripts.clients import expected, report
from scripts.clients.suites import SUITES


@click.command(cls=Command)
@click.argument("suite", type=click.Choice(sorted(SUITES)))
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
def clients(suite: str, checkout: Path) -> None:
    """Runs the tests of SUITE in CHECKOUT, a checkout of that client with what its tests need installed in it.

    \b
    python-gitlab  its functional tests; installed, with requirements-docker.txt, into .venv of the checkout
    gitbeaker      its end-to-end tests with Node; `pnpm install` and `pnpm build` done in the checkout
    perl           the live tests of GitLab::API::v4; Perl with what its cpanfile names

    Ends with status 1 where the outcome is not what scripts/clients/expected/SUITE.toml says.
    """
    tests = SUITES[suite]
    tests.check(checkout)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="forgelet-clients-") as folder,
            starting.running("--no-edge") as forgelet,
        ):
            outcomes = tests.run(checkout, forgelet, Path(folder))
    except starting.CannotStart as problem:
        raise Mistake(str(problem)) from None
    written = expected.read(suite)
    click.echo(report.table(outcomes))
    changes = report.changes(outcomes, written)
    for change in changes:
        click.echo(change)
    click.echo(f"{len(changes)} changes." if changes else "As written down.")
    sys.exit(bool(changes))


clients(prog_name="scripts/clients/run")
