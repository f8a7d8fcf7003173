"""Automatic upkeep of repositories: every minute of those that have been written to since, every hour of all.

Everything that writes to a repository leaves a mark (`git/at_work.py`), so that the task of every minute examines only
few repositories. It removes what killed gits have left, and queues the packing of repositories that need it and are
not in use.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import structlog
from cachetools import TTLCache

from api_server.code import repository_queries
from api_server.git import upkeep
from api_server.git.at_work import note_writing
from api_server.git.errors import GitError, RepositoryError
from api_server.git.repositories import REPOSITORIES
from api_server.git.upkeep import RepositoryState, Style, Thresholds, pack
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state import backups
from api_server.state.queue import enqueue

log = structlog.get_logger(__name__)

PACK = "pack_repository"
#: Minimum age of leftovers. A transaction that creates a project takes much less time.
LEAST_AGE_SECONDS = 3600.0
#: Seconds for which a repository that could not be packed is left alone.
AFTER_FAILURE_SECONDS = 3600.0
_AT_ONCE = 10_000


#: The projects whose repositories could not be packed.
UNPACKED = Key[TTLCache[int, bool]]("unpacked")


def setup(services: Services) -> None:
    failed = services[UNPACKED] = TTLCache(maxsize=10_000, ttl=AFTER_FAILURE_SECONDS)

    async def look_after_repositories() -> None:
        await maintain_repositories(services)

    async def pack_repository(project_id: int) -> None:
        repository = services[REPOSITORIES].path(project_id)
        if project_id in failed or not repository.is_dir():
            return
        try:
            await pack(repository, style_of(services.settings), _now(services))
        except (GitError, RepositoryError) as problem:
            failed[project_id] = True
            log.warning("a repository could not be packed", project_id=project_id, problem=str(problem))

    async def remove_orphaned_repositories() -> None:
        await remove_orphans(services)

    services.queue.add_periodic("look_after_repositories", "* * * * *", look_after_repositories)
    services.queue.add(PACK, pack_repository)
    services.queue.add_periodic("remove_orphaned_repositories", "17 * * * *", remove_orphaned_repositories)


async def maintain_repositories(services: Services, *, packs: bool = True) -> None:
    """Examine the repositories that have been written to. If one cannot be examined, the others are examined all the
    same."""
    settings = services.settings
    limits, now = thresholds(services), _now(services)
    for repository in await asyncio.to_thread(upkeep.written, services[REPOSITORIES].root):
        try:
            state = await asyncio.to_thread(upkeep.maintain, repository, limits, now)
        except (OSError, RepositoryError) as problem:
            log.warning(
                "a repository could not be maintained", repository=repository.name, problem=str(problem)
            )
            continue
        if not state.wants_packing:
            continue
        if packs and settings.housekeeping and _is_time(state, now, settings.housekeeping_max_delay):
            await _queue(services, repository)
        elif settings.housekeeping and state.is_quiet:
            note_writing(repository)  # so that the next run finds it


def _is_time(state: RepositoryState, now: float, max_seconds: float) -> bool:
    return state.is_quiet or now - state.since > max_seconds


def _now(services: Services) -> float:
    return services.clock().timestamp()


async def _queue(services: Services, repository: Path) -> None:
    """Queue the packing of a repository. Of all repositories, one is packed at a time, by any of the processes."""
    project_id = int(repository.stem)
    try:
        async with services.database.transaction() as transaction:
            await enqueue(
                transaction, PACK, lock=PACK, queueing_lock=f"{PACK} {project_id}", project_id=project_id
            )
    except BaseException:
        note_writing(repository)
        raise


def thresholds(services: Services) -> Thresholds:
    settings = services.settings
    return Thresholds(
        loose_objects=settings.housekeeping_loose_objects,
        loose_bytes=settings.housekeeping_loose_bytes,
        packs=settings.housekeeping_packs,
        loose_refs=settings.housekeeping_loose_refs,
    )


def style_of(settings: Settings) -> Style:
    """Return how repositories are packed."""
    return Style(
        large=settings.housekeeping_large,
        whole=settings.housekeeping_whole_bytes,
        days=settings.housekeeping_whole_days,
        time_limit=settings.housekeeping_time_limit,
    )


async def remove_orphans(services: Services) -> None:
    """Remove repositories whose project was never committed or no longer exists, and other unfinished folders. Nothing
    that is younger than an hour is removed."""
    root = services[REPOSITORIES].root
    old = _now(services) - LEAST_AGE_SECONDS
    for folder in await asyncio.to_thread(lambda: list(_unfinished(root, old))):
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    ids = await asyncio.to_thread(lambda: sorted(_ids(root)))
    for start in range(0, len(ids), _AT_ONCE):
        orphans = await repository_queries.without_project(services.database, ids[start : start + _AT_ONCE])
        if orphans and backups.is_under_way(root):
            # The backup may still contain these projects. The next run finds the repositories again.
            return
        for project_id in orphans:
            if await asyncio.to_thread(_is_older, services[REPOSITORIES].path(project_id), old):
                log.warning("removed a repository without a project", project_id=project_id)
                await services[REPOSITORIES].delete(project_id)


def _unfinished(root: Path, old: float) -> Iterator[Path]:
    return (folder for folder in (root / "unfinished").glob("*") if _is_older(folder, old))


def _ids(root: Path) -> Iterator[int]:
    return (int(path.stem) for path in root.glob("[0-9a-f][0-9a-f]/*.git") if path.stem.isdecimal())


def _is_older(folder: Path, old: float) -> bool:
    """Return whether the folder and everything directly in it have not changed since `old`."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.glob("*"))) < old
    except FileNotFoundError:
        return False
