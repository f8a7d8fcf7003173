"""Brings the database to this version's schema."""

import click
import psycopg2

from api_server.state.migrate import migrate as bring_up_to_date
from api_server.state.migrate import planned
from common.mistakes import Mistake, first_line
from forgelet.frame import Command
from forgelet.instance import Instance
from forgelet.output import answer, note


@click.command(cls=Command)
@click.option(
    "--check", is_flag=True, help="Only say what there is to do; exit status 1 if there is something."
)
@click.option(
    "--grant-to", metavar="ROLE", help="Role that is to serve; it gets what that takes, and no more."
)
@click.pass_context
def migrate(context: click.Context, grant_to: str | None, *, check: bool) -> None:
    """Brings the database to this version's schema, as its owner, so that a role that owns nothing can serve.

    Says what it does. Where nothing is to do it changes nothing; what fails leaves the migrations before it in place,
    and the next run goes on from there. Servers do the same when they start.
    """
    instance = context.find_object(Instance)
    assert instance is not None
    url = instance.ready_database_url
    steps = planned(url)
    if check:
        text = "\n".join(["To do:", *(f"  {step}" for step in steps)]) if steps else "Nothing is to do."
        answer({"to_do": steps}, text)
        context.exit(1 if steps else 0)
    for step in steps:
        note(f"{step} ...")
    try:
        bring_up_to_date(url, grant_to)
    except psycopg2.errors.UndefinedObject as problem:  # there is no such role
        raise Mistake(first_line(problem)) from None
    done = f"{len(steps)} steps are done." if steps else "The database is of this version already."
    granted = f" {grant_to} has the rights to serve." if grant_to else ""
    answer({"done": steps, "granted_to": grant_to}, f"{done}{granted}")
