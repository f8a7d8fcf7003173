"""The commands `forgelet edge status`, `list` and `purge`, for running edges."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiohttp
import click

from api_server.outbound.edges import EdgeApi, EdgeRefuses, project_key
from api_server.pages.admin.operating import failure_reason
from common.config_errors import ConfigError
from forgelet import frame
from forgelet.commands import queries
from forgelet.frame import Command
from forgelet.instance import Instance

ResultT = TypeVar("ResultT")
#: Seconds for one request. A large purge takes a while.
_SECONDS = 10.0
#: Responses that are fetched at a time.
_PAGE = 500


@click.command("status", cls=Command)
@click.pass_obj
def status_command(instance: Instance) -> None:
    """Show the state of each edge.

    This is what it has served and stored, and whether it reaches its origin with the right token. If an edge does not
    answer, the command exits with status 1.
    """
    rows = _of_each(instance, _status)
    columns = ["edge", "version", "hit_ratio", "responses", "bytes", "origin", "storage_token", "problem"]
    frame.table(columns, rows)
    _end(rows)


@click.command("list", cls=Command)
@click.option("--prefix", default="", help="Only paths that begin with this: /group/project/.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum for each edge."
)
@click.pass_obj
def list_command(instance: Instance, prefix: str, limit: int) -> None:
    """List what each edge has stored.

    Each object is shown with its age and how often it was used. If an edge does not answer, the command exits with
    status 1.
    """

    async def stored(api: EdgeApi) -> list[dict[str, Any]]:
        responses: list[dict[str, Any]] = []
        after: str | None = None
        while len(responses) < limit:
            page, after = await api.stored(prefix, after, min(_PAGE, limit - len(responses)))
            responses += page
            if after is None:
                break
        return responses

    answers = _of_each(instance, stored)
    rows = [{"edge": edge["edge"], **row} for edge in answers for row in edge.get("result", [])]
    frame.table(["edge", "url", "kind", "bytes", "age", "hits", "tier", "private", "fresh_until"], rows)
    for edge in answers:
        if edge.get("problem"):
            frame.note(f"{edge['edge']}: {edge['problem']}")
    _end(answers)


@click.command("purge", cls=Command)
@click.option(
    "--project", "projects", multiple=True, metavar="P", help="Objects of this project: id or full path."
)
@click.option("--prefix", "prefixes", multiple=True, help="Objects at paths that begin with this.")
@click.option("--everything", is_flag=True, help="All objects.")
@click.pass_obj
def purge_command(
    instance: Instance, projects: Sequence[str], prefixes: Sequence[str], *, everything: bool
) -> None:
    """Remove stored objects from all edges at once. Changes in the service reach edges without this command.

    If an edge cannot be reached or refuses, the command exits with status 1.
    """
    if everything == bool(projects or prefixes):
        raise ConfigError("Say what to purge: --project and --prefix, or --everything alone")
    faults = [prefix for prefix in prefixes if not prefix.startswith("/")]
    if faults:
        raise ConfigError(f"--prefix {faults[0]} has to begin with a slash")
    _apis_of(instance, None)
    keys = asyncio.run(_keys(instance, projects)) if projects else []
    document = {"prefixes": ["/"]} if everything else {"keys": keys, "prefixes": list(prefixes)}

    async def purge(api: EdgeApi) -> int:
        return await api.purge(document)

    rows = [{"purged": row.pop("result", None), **row} for row in _of_each(instance, purge)]
    frame.table(["edge", "purged", "problem"], rows)
    _end(rows)


async def _keys(instance: Instance, projects: Sequence[str]) -> list[str]:
    keys = []
    async with instance.database() as database:
        for reference in projects:
            project = await queries.project(database, reference)
            if project is None:
                raise ConfigError(f"There is no project {reference}: name it by its id or its full path")
            keys.append(project_key(project.id))
    return keys


async def _status(api: EdgeApi) -> dict[str, Any]:
    return await api.status()


def _of_each(instance: Instance, ask: Callable[[EdgeApi], Awaitable[Any]]) -> list[dict[str, Any]]:
    """Ask all edges at the same time. Return `edge`, `problem` and `result` (or the columns of a status) for each."""

    async def ask_edge(api: EdgeApi) -> dict[str, Any]:
        try:
            result = await ask(api)
        except (EdgeRefuses, aiohttp.ClientError, OSError, ValueError) as problem:
            return {"edge": api.url, "problem": failure_reason(problem)}
        return {
            "edge": api.url,
            "problem": None,
            **(_columns(result) if ask is _status else {"result": result}),
        }

    async def everybody() -> list[dict[str, Any]]:
        async with aiohttp.ClientSession() as session:
            return list(await asyncio.gather(*map(ask_edge, _apis_of(instance, session))))

    return asyncio.run(everybody())


def _apis_of(instance: Instance, session: Any) -> list[EdgeApi]:
    if not instance.edge_urls or not instance.purge_token:
        raise ConfigError("The service knows no edges: set edge_urls and edge_purge_token")
    return [EdgeApi(url, instance.purge_token, session, _SECONDS) for url in instance.edge_urls]


def _columns(status: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of the table for an edge's status, and `status` with the whole status for programs."""
    requests, stored, origin = status.get("requests", {}), status.get("stored", {}), status.get("origin", {})
    total = sum(requests.values())
    reachable = {True: "reachable", False: "not reachable"}.get(origin.get("reachable"), "not known")
    return {
        "version": status.get("version"),
        "hit_ratio": f"{requests.get('hit', 0) / total:.0%}" if total else None,
        "responses": sum(tier.get("responses", 0) for tier in stored.values()),
        "bytes": sum(tier.get("bytes", 0) for tier in stored.values()),
        "origin": reachable,
        "storage_token": origin.get("token"),
        "problem": origin.get("problem") or status.get("purges", {}).get("problem"),
        "status": status,
    }


def _end(rows: Sequence[dict[str, Any]]) -> None:
    if any(row.get("problem") for row in rows):
        raise click.exceptions.Exit(1)
