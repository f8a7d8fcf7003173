"""Brings the database to this version's schema."""

import click
import psycopg2

from api_server.state.migrate import migrate as bring_up_to_date
from common.mistakes import Mistake, first_line
from forgelet.frame import Command
from forgelet.instance import Instance


@click.command(cls=Command)
@click.option(
    "--grant-to", metavar="ROLE", help="Role that is to serve; it gets what that takes, and no more."
)
@click.pass_obj
def migrate(instance: Instance, grant_to: str | None) -> None:
    """Brings the database to this version's schema, as its owner, so that a role that owns nothing can serve."""
    try:
        bring_up_to_date(instance.ready_database_url, grant_to)
    except psycopg2.errors.UndefinedObject as problem:  # there is no such role
        raise Mistake(first_line(problem)) from None
