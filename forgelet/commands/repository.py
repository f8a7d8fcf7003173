"""What operators do with repositories: check that they are whole and have what rows name, and pack them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from api_server.code.housekeeping import style_of
from api_server.git import object_checks
from api_server.git.errors import GitError, RepositoryError
from api_server.git.repositories import Repositories
from api_server.git.upkeep import pack
from api_server.state.backups import is_under_way
from common.mistakes import Mistake
from forgelet import output
from forgelet.commands import repository_queries as queries
from forgelet.frame import Group
from forgelet.instance import Instance

#: Seconds for one git, which may have to read gigabytes.
_SECONDS = 24 * 3600.0
_NOTHING = "nothing was pushed to it yet"


@click.group("repository", cls=Group)
def repository() -> None:
    """Repositories: whether they are whole, and packing them."""


@repository.command("check")
@click.argument("projects", nargs=-1)
@click.pass_obj
def check(instance: Instance, projects: Sequence[str]) -> None:
    """Reads the repositories of PROJECTS (ids or full paths), or all, as git-fsck(1) does, and looks for each commit
    that the database names. Ends with status 1 where something is wrong."""
    found = asyncio.run(_check(instance, projects))
    output.table(["project", "path", "problem"], found, empty="All that was looked at is whole.")
    if found:
        raise click.ClickException(f"{len(found):,} things are wrong")


@repository.command("pack")
@click.argument("projects", nargs=-1)
@click.pass_obj
def pack_command(instance: Instance, projects: Sequence[str]) -> None:
    """Packs the repositories of PROJECTS (ids or full paths), or all, now, as the server does by itself. Ends with
    status 1 where one could not be packed."""
    if is_under_way(_repositories(instance).root):
        raise Mistake("A backup is under way: pack when it has ended")
    found = asyncio.run(_pack(instance, projects))
    output.table(["project", "path", "result"], found)
    failed = [
        one for one in found if one["result"] not in ("packed", "somebody else is packing it", _NOTHING)
    ]
    if failed:
        raise click.ClickException(f"{len(failed):,} repositories could not be packed")


async def _check(instance: Instance, projects: Sequence[str]) -> list[dict[str, Any]]:
    problems = []
    async with instance.database(statement_timeout=600) as database:
        wanted = await _wanted(database, projects)
        with output.progress("Checking repositories", len(wanted)) as done:
            for one in wanted:
                folder = _repositories(instance).path(one.id)
                told = (
                    []
                    if _is_to_come(folder, one)
                    else await object_checks.repository_problems(folder, _SECONDS)
                )
                if folder.is_dir():
                    named = await queries.named_commits(database, one.id)
                    gone = await object_checks.missing_commits(folder, [row.sha for row in named])
                    told += [
                        f"the commit {row.sha} is missing, which {row.named_by} names"
                        for row in named
                        if row.sha in gone
                    ]
                problems += [{"project": one.id, "path": one.full_path, "problem": text} for text in told]
                done(1)
    return problems


async def _pack(instance: Instance, projects: Sequence[str]) -> list[dict[str, Any]]:
    results = []
    async with instance.database() as database:
        wanted = await _wanted(database, projects)
        with output.progress("Packing repositories", len(wanted)) as done:
            for one in wanted:
                folder = _repositories(instance).path(one.id)
                result = (
                    _NOTHING
                    if _is_to_come(folder, one)
                    else await _packed(folder, instance, database.now.timestamp())
                )
                results.append({"project": one.id, "path": one.full_path, "result": result})
                done(1)
    return results


def _is_to_come(folder: Path, project: queries.Named) -> bool:
    """Whether it has no repository yet, since nobody has pushed to it."""
    return project.empty_repo and not folder.is_dir()


async def _packed(folder: Any, instance: Instance, now: float) -> str:
    if not folder.is_dir():
        return "there is no repository"
    try:
        done = await pack(folder, style_of(instance.api_settings), now)
    except (GitError, RepositoryError) as problem:
        return str(problem)
    return "packed" if done else "somebody else is packing it"


async def _wanted(database: Any, projects: Sequence[str]) -> list[queries.Named]:
    """Those projects, or all. Raises `Mistake` where there is no such project."""
    if not projects:
        return await queries.all_projects(database)
    found = []
    for text in projects:
        one = await queries.project(database, text)
        if one is None:
            raise Mistake(f"There is no project {text}: name it by its id or its full path")
        found.append(one)
    return found


def _repositories(instance: Instance) -> Repositories:
    return Repositories(instance.api_settings.data_dir / "repositories")
