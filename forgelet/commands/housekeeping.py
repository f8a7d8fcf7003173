"""Commands for stored data: repositories, stored objects, and the data of old jobs."""

import asyncio
import contextlib
import datetime
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from api_server.ci.jobs.upkeep import remove_before
from api_server.code.housekeeping import style_of
from api_server.git import object_checks
from api_server.git.errors import GitError, RepositoryError
from api_server.git.repositories import Repositories
from api_server.git.upkeep import pack
from api_server.state.backups import is_under_way
from api_server.state.errors import Unavailable
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.state.sweep import at_least, missing, sweep
from common.config_errors import ConfigError
from forgelet import frame
from forgelet.commands import queries
from forgelet.frame import Group, answer
from forgelet.instance import Instance

#: Seconds for one git process, which may have to read gigabytes.
_SECONDS = 24 * 3600.0
_EMPTY = "nothing was pushed to it yet"
_BUSY = "skipped: another process packs it, or a backup is running"


@click.group("repository", cls=Group)
def repository() -> None:
    """Check and pack repositories."""


@repository.command("check")
@click.argument("projects", nargs=-1)
@click.pass_obj
def check_repositories(instance: Instance, projects: Sequence[str]) -> None:
    """Check repositories for damage and missing commits.

    PROJECTS are IDs or full paths; without them, all repositories are checked. The command runs git-fsck(1), looks for
    each commit that the database names, and exits with status 1 if something is wrong.
    """
    problems = asyncio.run(_check(instance, projects))
    frame.table(["project", "path", "problem"], problems, empty="All checked repositories are intact.")
    if problems:
        raise click.ClickException(f"{len(problems):,} problems were found")


@repository.command("pack")
@click.argument("projects", nargs=-1)
@click.pass_obj
def pack_command(instance: Instance, projects: Sequence[str]) -> None:
    """Pack repositories now, as the server does automatically.

    PROJECTS are IDs or full paths; without them, all repositories are packed. The command exits with status 1 if one
    could not be packed.
    """
    if is_under_way(_repositories(instance).root):
        raise ConfigError("A backup is under way: pack when it has ended")
    results = asyncio.run(_pack(instance, projects))
    frame.table(["project", "path", "result"], results)
    failed = [row for row in results if row["result"] not in ("packed", _BUSY, _EMPTY)]
    if failed:
        raise click.ClickException(f"{len(failed):,} repositories could not be packed")


async def _check(instance: Instance, projects: Sequence[str]) -> list[dict[str, Any]]:
    problems = []
    async with instance.database(statement_timeout=600) as database:
        checked = await _chosen_projects(database, projects)
        with frame.progress("Checking repositories", len(checked)) as advance:
            for project in checked:
                folder = _repositories(instance).path(project.id)
                messages = (
                    []
                    if _is_to_come(folder, project)
                    else await object_checks.repository_problems(folder, _SECONDS)
                )
                if folder.is_dir():
                    commits = await queries.named_commits(database, project.id)
                    missing_shas = await object_checks.missing_commits(folder, [row.sha for row in commits])
                    messages += [
                        f"the commit {row.sha} is missing, which {row.named_by} names"
                        for row in commits
                        if row.sha in missing_shas
                    ]
                problems += [
                    {"project": project.id, "path": project.full_path, "problem": text} for text in messages
                ]
                advance(1)
    return problems


async def _pack(instance: Instance, projects: Sequence[str]) -> list[dict[str, Any]]:
    results = []
    async with instance.database() as database:
        packed_projects = await _chosen_projects(database, projects)
        with frame.progress("Packing repositories", len(packed_projects)) as advance:
            for project in packed_projects:
                folder = _repositories(instance).path(project.id)
                result = (
                    _EMPTY
                    if _is_to_come(folder, project)
                    else await _packed(folder, instance, database.now.timestamp())
                )
                results.append({"project": project.id, "path": project.full_path, "result": result})
                advance(1)
    return results


def _is_to_come(folder: Path, project: queries.NamedProject) -> bool:
    """Return whether the repository is missing because nobody has pushed to the project yet."""
    return project.empty_repo and not folder.is_dir()


async def _packed(folder: Any, instance: Instance, now: float) -> str:
    if not folder.is_dir():
        return "there is no repository"
    try:
        is_packed = await pack(folder, style_of(instance.api_settings), now)
    except (GitError, RepositoryError) as problem:
        return str(problem)
    return "packed" if is_packed else _BUSY


async def _chosen_projects(database: Any, projects: Sequence[str]) -> list[queries.NamedProject]:
    """Return the named projects, or all if none is named. Raise `ConfigError` if one does not exist."""
    if not projects:
        return await queries.all_projects(database)
    found_projects = []
    for text in projects:
        project = await queries.project(database, text)
        if project is None:
            raise ConfigError(f"There is no project {text}: name it by its id or its full path")
        found_projects.append(project)
    return found_projects


def _repositories(instance: Instance) -> Repositories:
    return Repositories(instance.api_settings.data_dir / "repositories")


#: Seconds.
_STATEMENT_TIMEOUT = 600


@click.group("store", cls=Group)
def store() -> None:
    """Check and sweep stored logs, artifacts and LFS files."""


@store.command("sweep")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.pass_obj
def sweep_command(instance: Instance, *, dry_run: bool) -> None:
    """Remove stored objects without a row.

    Files of interrupted uploads are removed too. Objects younger than the setting orphan_age, or than an hour, are
    kept, so the server may run meanwhile. You may stop the command at any moment and start it again.
    """
    with _store_that_answers():
        removed = asyncio.run(_sweep(instance, dry_run=dry_run))
    count = sum("key" in row for row in removed)
    size = sum(row["bytes"] for row in removed)
    verb = "would be removed" if dry_run else "removed"
    lines = [
        f"{row['key']}: {row['bytes']:,} bytes, no row names it"
        if "key" in row
        else f"{row['file']}: an upload that was cut off"
        for row in removed
    ]
    lines.append(f"{verb}: {count:,} objects of {size:,} bytes, {len(removed) - count:,} unfinished uploads")
    frame.answer({"dry_run": dry_run, "removed": removed}, "\n".join(lines))


@store.command("check")
@click.pass_obj
def check_objects(instance: Instance) -> None:
    """Look for the stored object of every row.

    This takes one request each. If an object is missing, the command names it and exits with status 1.
    """
    with _store_that_answers():
        missing = asyncio.run(_missing(instance))
    frame.table(["kind", "key"], missing, empty="No object is missing.")
    if missing:
        raise click.ClickException(f"{len(missing):,} objects are missing")


async def _sweep(instance: Instance, *, dry_run: bool) -> list[dict[str, Any]]:
    settings, removed = instance.api_settings, []
    root = Repositories(settings.data_dir / "repositories").root
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        with frame.progress("Looking at stored objects") as advance:
            age = at_least(settings.orphan_age)
            async for swept in sweep(connected, _objects(instance), age, root, dry_run=dry_run):
                removed += [{"key": item.key, "bytes": item.size} for item in swept.objects]
                removed += [{"file": str(file), "bytes": 0} for file in swept.unfinished]
                advance(len(swept.objects) + len(swept.unfinished))
    return removed


async def _missing(instance: Instance) -> list[dict[str, Any]]:
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        return [{"kind": kind, "key": key} async for kind, key in missing(connected, _objects(instance))]


def _objects(instance: Instance) -> Objects:
    settings = instance.api_settings
    return open_objects(settings.object_store_url, settings.data_dir, timeout=settings.object_store_timeout)


@contextlib.contextmanager
def _store_that_answers() -> Iterator[None]:
    try:
        yield
    except Unavailable as problem:
        raise click.ClickException(": ".join(filter(None, (str(problem), problem.cause)))) from None


_DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])


@click.group(cls=Group)
def jobs() -> None:
    """Remove the logs and artifacts of old jobs."""


@jobs.command("remove-data")
@click.option("--before", type=_DAY, required=True, help="Jobs that finished before this day (UTC).")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove_data(instance: Instance, before: datetime.datetime, *, dry_run: bool, yes: bool) -> None:
    """Remove the logs and artifacts of old jobs.

    The jobs stay. The API forgets the data at once; the server's background work deletes their bytes. You may stop
    the command at any moment and start it again: it continues.
    """
    if not dry_run and not yes:
        click.confirm(
            f"Remove the logs and artifacts of all jobs that finished before {before:%Y-%m-%d}?",
            abort=True,
            err=True,
        )
    count, size = asyncio.run(_remove(instance, before.replace(tzinfo=datetime.UTC), dry_run=dry_run))
    verb = "would be removed" if dry_run else "removed"
    result = {"jobs": count, "bytes": size, "removed": not dry_run}
    answer(result, f"{verb}: {size:,} bytes of {count:,} jobs")


async def _remove(instance: Instance, moment: datetime.datetime, *, dry_run: bool) -> tuple[int, int]:
    count = size = 0
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        async for removed in remove_before(connected, moment, dry_run=dry_run):
            count += removed.jobs
            size += removed.bytes
            if sys.stderr.isatty():
                click.echo(f"\r{count:,} jobs, {size:,} bytes", nl=False, err=True)
    if count and sys.stderr.isatty():
        click.echo(err=True)
    return count, size
