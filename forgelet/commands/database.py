"""Commands for the database: migrate it to this version's schema, and manage the tasks in its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import click
import psycopg2

from api_server.operations import tasks
from api_server.operations.queries import Status
from api_server.operations.tasks import TaskRefused
from api_server.state.database import Database
from api_server.state.migrate import migrate as bring_up_to_date
from api_server.state.migrate import planned
from common.config_errors import ConfigError, first_line
from forgelet import frame
from forgelet.frame import Command, Group, answer, note
from forgelet.instance import Instance


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Only list pending migrations; exit status 1 if there are any.")
@click.option("--grant-to", metavar="ROLE", help="Role that will serve; it gets exactly the rights for that.")
@click.pass_context
def migrate(context: click.Context, grant_to: str | None, *, check: bool) -> None:
    """Migrate the database to this version's schema.

    Run it as the owner of the database if the role that serves owns nothing. The command prints each migration. A
    failed migration leaves the earlier ones in place, and the next run continues there. Servers migrate in the same
    way when they start.
    """
    instance = context.find_object(Instance)
    assert instance is not None
    url = instance.ready_database_url
    steps = planned(url)
    if check:
        text = "\n".join(["To do:", *(f"  {step}" for step in steps)]) if steps else "There is nothing to do."
        answer({"to_do": steps}, text)
        context.exit(1 if steps else 0)
    for step in steps:
        note(f"{step} ...")
    try:
        bring_up_to_date(url, grant_to)
    except psycopg2.errors.UndefinedObject as problem:  # there is no such role
        raise ConfigError(first_line(problem)) from None
    outcome = f"{len(steps)} steps are done." if steps else "The database already has this version's schema."
    grant = f" {grant_to} has the rights to serve." if grant_to else ""
    answer({"done": steps, "granted_to": grant_to}, f"{outcome}{grant}")


_PAGE = 500
_STATUSES: tuple[Status, ...] = ("failed", "doing", "todo")


@click.group(cls=Group)
def task() -> None:
    """List, retry and cancel background tasks."""


@task.command("list")
@click.option("--failing", is_flag=True, help="Only tasks that failed permanently.")
@click.option("--name", help="Only tasks with this name.")
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of tasks of each status.",
)
@click.pass_obj
def list_command(instance: Instance, name: str | None, limit: int, *, failing: bool) -> None:
    """List background tasks, the failed ones first."""
    statuses = _STATUSES[:1] if failing else _STATUSES

    async def run() -> list[dict[str, Any]]:
        async with instance.database() as database:
            lists = [await _read_tasks(database, status, name, limit) for status in statuses]
            return [attrs.asdict(row) for tasks_of_status in lists for row in tasks_of_status]

    columns = ["id", "name", "status", "attempts", "due_at", "failed_at", "reason", "arguments"]
    frame.table(columns, asyncio.run(run()))


async def _read_tasks(database: Database, status: Status, name: str | None, limit: int) -> list[Any]:
    found_tasks: list[Any] = []
    while len(found_tasks) < limit:
        size = min(_PAGE, limit - len(found_tasks))
        beyond = found_tasks[-1].id if found_tasks else None
        page = await tasks.list_tasks(database, status, name=name, beyond=beyond, limit=size)
        found_tasks += page
        if len(page) < size:
            break
    return found_tasks


@task.command("retry")
@click.argument("ids", nargs=-1, type=click.IntRange(1), metavar="[ID]...")
@click.option("--failed", is_flag=True, help="All tasks that failed permanently, instead of single ones.")
@click.option("--name", help="Of these, only tasks with this name.")
@click.pass_obj
def retry(instance: Instance, ids: Sequence[int], name: str | None, *, failed: bool) -> None:
    """Run the tasks with these IDs at once.

    They may have failed or wait for their next try. Their attempts are counted from the beginning.
    """
    _act(instance, ids, tasks.retry, "is tried again", name=name, failed=failed)


@task.command("cancel")
@click.argument("ids", nargs=-1, type=click.IntRange(1), metavar="[ID]...")
@click.option("--failed", is_flag=True, help="All tasks that failed permanently, instead of single ones.")
@click.option("--name", help="Of these, only tasks with this name.")
@click.pass_obj
def cancel(instance: Instance, ids: Sequence[int], name: str | None, *, failed: bool) -> None:
    """Remove the waiting or failed tasks with these IDs.

    Their work is not done.
    """
    _act(instance, ids, tasks.cancel, "removed", name=name, failed=failed)


def _act(
    instance: Instance,
    ids: Sequence[int],
    do: Callable[[Database, int], Awaitable[str]],
    result: str,
    *,
    name: str | None,
    failed: bool,
) -> None:
    if bool(ids) == failed or (name and not failed):
        raise click.UsageError(
            "Give the IDs of tasks, or --failed for all failed ones (of one name with --name)."
        )

    async def run() -> list[dict[str, Any]]:
        rows = []
        async with instance.database() as database:
            failed_tasks = await _read_tasks(database, "failed", name, 10**9) if failed else []
            for task_id in ids or [failed_task.id for failed_task in failed_tasks]:
                try:
                    rows.append({"id": task_id, "name": await do(database, task_id), "result": result})
                except TaskRefused as refused:
                    rows.append({"id": task_id, "name": None, "result": None, "problem": str(refused)})
        return rows

    rows = asyncio.run(run())
    frame.table(["id", "name", "result", "problem"], rows)
    if any("problem" in row for row in rows):
        raise click.exceptions.Exit(1)
