"""`forgelet`: the commands of all parts, joined; what an operator does beside the running servers."""

from collections.abc import Callable
from typing import Any

import click
import psycopg2

from api_server.audit.commands import audit
from api_server.ci.jobs.commands import jobs
from api_server.settings import Settings
from api_server.state.migrate import migrate, unsuitable_database
from api_server.state.sweep_command import sweep_command
from common.mistakes import Group, Mistake, first_line
from common.settings import Sources


class _Commands(Group):
    def invoke(self, ctx: click.Context) -> Any:
        with unsuitable_database():
            try:
                return super().invoke(ctx)
            except BrokenPipeError:  # whoever reads has had enough
                raise
            except OSError as problem:
                raise Mistake(": ".join(filter(None, (problem.strerror, problem.filename)))) from None


@click.group(cls=_Commands)
@click.pass_context
def forgelet(context: click.Context) -> None:
    """Commands for operators of forgelet.

    They take the server's own settings: the environment (FORGELET_API_DATABASE_URL, FORGELET_API_DATA_DIR, ...) or the
    TOML file that FORGELET_SETTINGS names.
    """
    context.obj = _settings


def _settings() -> Settings:
    return Sources(settings_class=Settings, section="api_server", env_prefix="FORGELET_API_").settings()


@forgelet.command("migrate")
@click.option(
    "--grant-to", metavar="ROLE", help="Role that is to serve; it gets what that takes, and no more."
)
@click.pass_obj
def migrate_command(load: Callable[[], Settings], grant_to: str | None) -> None:
    """Brings the database to this version's schema, as its owner, so that a role that owns nothing can serve."""
    try:
        migrate(load().database_url, grant_to)
    except psycopg2.errors.UndefinedObject as problem:  # there is no such role
        raise Mistake(first_line(problem)) from None


forgelet.add_command(audit)
forgelet.add_command(jobs)
forgelet.add_command(sweep_command)
