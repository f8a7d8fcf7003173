"""Commands for mirrors and for deliveries to external status checks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from api_server.mirrors import running
from api_server.pages.admin import queries as list_queries
from api_server.state.audit_trail import Entity, record
from api_server.state.database import Database, Transaction
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, Page
from api_server.status_checks import delivery_queries
from api_server.status_checks import queries as service_queries
from forgelet import frame
from forgelet.commands import queries
from forgelet.commands.acting import author
from forgelet.commands.queries import read_rows
from forgelet.frame import Group, limit_option
from forgelet.instance import Instance


@click.group(cls=Group)
def mirror() -> None:
    """List the push mirrors of all projects, and run them."""


@mirror.command("list")
@click.option("--failing", is_flag=True, help="Only mirrors whose last run failed.")
@limit_option
@click.pass_obj
def list_mirrors(instance: Instance, limit: int, *, failing: bool) -> None:
    """List mirrors, newest first.

    Each is shown with its state and the reason of the last failure.
    """

    async def read(database: Database, page: Page) -> ListPage:
        return await list_queries.list_mirrors(database, page, "failing" if failing else None)

    rows = read_rows(instance, limit, read)
    columns = ["id", "project", "url", "status", "last_successful_update_at", "next_try_at", "last_error"]
    frame.table(columns, rows, empty="None fails." if failing else "There are none.")


@mirror.command("sync")
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(1), metavar="ID...")
@click.pass_obj
def sync(instance: Instance, ids: Sequence[int]) -> None:
    """Run the mirrors with these IDs at once.

    Their last run does not matter. A server with background work must be running.
    """
    rows = _act(instance, ids, _run_mirror, "runs soon")
    frame.table(["id", "result", "problem"], rows)
    _end(rows)


@click.group(cls=Group)
def delivery() -> None:
    """List deliveries to external status checks, and retry them."""


@delivery.command("list")
@click.option(
    "--failing", is_flag=True, help="Only deliveries that were given up, or whose last attempt failed."
)
@limit_option
@click.pass_obj
def list_deliveries(instance: Instance, limit: int, *, failing: bool) -> None:
    """List deliveries, newest first.

    Each is shown with its check and the reason of the last failure.
    """
    states: list[list_queries.DeliveryState | None] = ["failed", "queued"] if failing else [None]
    rows: list[dict[str, Any]] = []
    for state in states:

        async def read(
            database: Database, page: Page, state: list_queries.DeliveryState | None = state
        ) -> ListPage:
            return await list_queries.list_deliveries(database, page, state)

        rows += read_rows(instance, limit - len(rows), read, _has_been_tried if failing else None)
    for row in rows:
        latest = row["latest"] or {}
        row["problem"] = row["pause_reason"] or latest.get("error") or _status_of(latest)
    columns = "id project check merge_request_iid status attempts next_attempt_at problem"
    frame.table(columns.split(), rows, empty="None fails." if failing else "There are none.")


@delivery.command("retry")
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(1), metavar="ID...")
@click.pass_obj
def retry(instance: Instance, ids: Sequence[int]) -> None:
    """Send the deliveries with these IDs again.

    The messages are the same, and also go to a paused check.
    """
    rows = _act(instance, ids, _redeliver, "is sent again")
    frame.table(["id", "result", "problem"], rows)
    _end(rows)


def _has_been_tried(row: dict[str, Any]) -> bool:
    return bool(row["attempts"])


def _status_of(latest: dict[str, Any]) -> str | None:
    status = latest.get("status")
    return f"it answered {status}" if status and not 200 <= status < 300 else None


async def _run_mirror(transaction: Transaction, mirror_id: int) -> None:
    mirror = await queries.enabled_mirror(transaction, mirror_id)
    await running.run_at_once(transaction, mirror.id)


async def _redeliver(transaction: Transaction, delivery_id: int) -> None:
    """Send a delivery again as the API does, with the same audit event."""
    ids = await list_queries.check_of_delivery(transaction, delivery_id)
    check = await service_queries.hold(transaction, ids.project_id, ids.check_id)
    await delivery_queries.redeliver(transaction, check.id, delivery_id)
    project = await queries.project(transaction, str(ids.project_id))
    if project is None:
        raise NotFound
    await record(
        transaction,
        "status_check_delivery_redelivered",
        author(),
        Entity("Project", project.id, project.full_path).target(check.id, check.name),
        delivery_id=delivery_id,
    )


def _act(
    instance: Instance, ids: Sequence[int], do: Callable[[Transaction, int], Awaitable[None]], result: str
) -> list[dict[str, Any]]:
    """Call `do` with each id. Return `{"id", "result", "problem"}` for each."""

    async def run() -> list[dict[str, Any]]:
        rows = []
        async with instance.database() as database:
            for item_id in ids:
                row: dict[str, Any] = {"id": item_id, "result": result, "problem": None}
                try:
                    async with database.transaction() as transaction:
                        await do(transaction, item_id)
                except NotFound:
                    row |= {"result": None, "problem": "nothing has this ID, or it is disabled"}
                rows.append(row)
        return rows

    return asyncio.run(run())


def _end(rows: Sequence[dict[str, Any]]) -> None:
    if any(row["problem"] for row in rows):
        raise click.exceptions.Exit(1)
