"""`python -m api_server.commands`: what an operator does beside the running server, with the server's settings."""

from collections.abc import Callable

import click
import psycopg2
import typed_settings

from api_server.audit.commands import audit
from api_server.ci.jobs.commands import jobs
from api_server.settings import Settings
from api_server.state.migrate import UnsuitableDatabase, migrate
from api_server.state.sweep_command import sweep_command
from common import logs
from common.settings import loaders, problem_with


@click.group()
@click.pass_context
def commands(context: click.Context) -> None:
    """Commands for operators of the API server.

    They take the server's own settings: the environment (FORGELET_API_DATABASE_URL, FORGELET_API_DATA_DIR, ...) or the
    TOML file that FORGELET_SETTINGS names.
    """
    context.obj = _settings


def _settings() -> Settings:
    try:
        settings = typed_settings.load_settings(Settings, loaders("api_server", "FORGELET_API_"))
    except typed_settings.exceptions.InvalidSettingsError as problem:
        reasons = "; ".join(str(reason) for reason in problem.exceptions)
        raise click.ClickException(f"the settings cannot be used: {logs.redact(reasons)}") from None
    if unusable := problem_with(settings):
        raise click.ClickException(f"the settings cannot be used: {unusable}")
    return settings


@commands.command("migrate")
@click.option(
    "--grant-to", metavar="ROLE", help="Role that is to serve; it gets what that takes, and no more."
)
@click.pass_obj
def migrate_command(load: Callable[[], Settings], grant_to: str | None) -> None:
    """Brings the database to this version's schema, as its owner, so that a role that owns nothing can serve."""
    try:
        migrate(load().database_url, grant_to)
    except UnsuitableDatabase as problem:
        raise click.ClickException(str(problem)) from None
    except psycopg2.errors.UndefinedObject as problem:  # there is no such role
        raise click.ClickException(str(problem).strip().partition("\n")[0]) from None


commands.add_command(audit)
commands.add_command(jobs)
commands.add_command(sweep_command)


def main() -> None:
    """Ends with one sentence where the database cannot be used."""
    try:
        commands(prog_name="python -m api_server.commands")
    except psycopg2.OperationalError as problem:
        raise SystemExit(
            f"PostgreSQL cannot be used, check FORGELET_API_DATABASE_URL: {logs.redact(str(problem).strip())}"
        ) from None


if __name__ == "__main__":
    main()
