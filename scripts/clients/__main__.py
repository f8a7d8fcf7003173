"""Run the tests of a public GitLab client, or a program of ours that uses one, against a forgelet of its own, and
compare the outcome with the recorded one."""

import sys
import tempfile
from pathlib import Path

import click

from common.config_errors import Command, ConfigError
from forgelet.testing import starting
from scripts.clients import outcomes as report
from scripts.clients.suites import SUITES


@click.command(cls=Command)
@click.argument("suite", type=click.Choice(sorted(SUITES)))
@click.argument(
    "folder", default=".", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
)
def clients(suite: str, folder: Path) -> None:
    """Run the tests of SUITE against a forgelet of its own. FOLDER is a checkout of that client in which the
    requirements of its tests are installed.

    \b
    python-gitlab  its functional tests; installed, with requirements-docker.txt, into .venv of the checkout
    gitbeaker      its end-to-end tests with Node; `pnpm install` and `pnpm build` done in the checkout
    perl           the live tests of GitLab::API::v4; Perl with the modules of its cpanfile

    Other suites are programs of ours that make the calls of a client, which is installed in FOLDER or on the machine.

    \b
    ruby-gitlab, go-gitlab, git-lfs                        from Debian's packages; without FOLDER
    dulwich, ansible (with python-gitlab)                  in a virtual environment
    isomorphic-git, semantic-release,
    mcp-gitlab, mcp-server-gitlab                          in a folder of npm

    The exit status is 1 if the outcome differs from scripts/clients/expected/SUITE.toml.
    """
    tests = SUITES[suite]
    tests.check(folder)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="forgelet-clients-") as reports,
            starting.running("--no-edge", *tests.written.options) as forgelet,
        ):
            outcomes = tests.run(folder, forgelet, Path(reports))
    except starting.CannotStart as problem:
        raise ConfigError(str(problem)) from None
    click.echo(report.table(outcomes))
    changes = report.changes(outcomes, tests.written)
    for change in changes:
        click.echo(change)
    click.echo(f"{len(changes)} changes." if changes else "As expected.")
    sys.exit(bool(changes))


clients(prog_name="scripts/clients/run")
