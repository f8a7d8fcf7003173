"""Planning configurations in threads, and bringing what they include of other projects and of the web."""

import asyncio
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import attrs

from api_server.ci.config import context
from api_server.ci.config.context import Context
from api_server.ci.config.errors import ConfigError, FilesWanted
from api_server.ci.pipelines import repository
from api_server.ci.pipelines.creation_queries import Subject
from api_server.ci.pipelines.limits import Limits
from api_server.ci.pipelines.remote_files import ALL_SECONDS, RemoteFiles
from api_server.expressions import TooCostly, allowed
from api_server.git import references
from api_server.git.errors import RepositoryMissingError
from api_server.git.repositories import Repositories
from api_server.namespaces.projects import queries as projects
from api_server.state.database import Database
from api_server.state.errors import Unavailable
from common.concurrency import TooBusy
from common.loop_watch import large_work

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(
    limits: Limits,
    remote: RemoteFiles,
    planning: Callable[Concatenate[str, Context, P], T],
    text: str,
    planned: Context,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Runs what plans a file, which may take a second; some at a time, since they share Python and the threads. It is
    begun again whenever it turns out to want files of the web, so that no thread waits for them. Raises `ConfigError`
    where that, or its expressions, take too long."""
    loop = asyncio.get_running_loop()
    allowance = limits.expressions(planned.project_id)
    begun = loop.time()
    while True:
        try:
            async with limits.planning.place(planned.project_id):
                with allowed(allowance), large_work():
                    return await asyncio.to_thread(planning, text, planned, *args, **kwargs)
        except TooBusy as problem:
            raise Unavailable("the planning of pipelines") from problem
        except TooCostly as problem:
            raise ConfigError(str(problem)) from None
        except FilesWanted as wanted:
            fetched = await remote.fetch(wanted.urls, planned.project_id)
        if loop.time() - begun > ALL_SECONDS:
            raise ConfigError("Resolving config took longer than expected")
        planned = attrs.evolve(planned, remote={**planned.remote, **fetched})


def other_projects(
    database: Database, repositories: Repositories, subject: Subject
) -> Callable[[str, str | None, bool], context.Repository]:
    """For threads: `Context.project` for a pipeline of this subject's user."""
    loop = asyncio.get_running_loop()
    found: dict[tuple[str, str | None, bool], context.Repository] = {}

    async def find(path: str, ref: str | None, public: bool) -> context.Repository:
        project = await projects.find_project(
            database,
            project_id=None,
            path=path,
            user_id=None if public or not subject.active else subject.user_id,
            admin=subject.active and subject.admin and not public,
            job_project_id=None,
        )
        if project is None or not project.reads_repository:
            return context.no_project(path, ref, public)
        try:
            opened = repositories.open(project.id)
            resolved = references.resolve(opened, ref or "HEAD")
        except RepositoryMissingError:
            resolved = None
        if resolved is None:
            raise ConfigError(f"Project `{path}` reference `{ref or 'HEAD'}` does not exist!")
        return repository.for_planning(opened, resolved.commit, project.full_path)

    def project(path: str, ref: str | None, public: bool) -> context.Repository:
        key = (path, ref, public)
        if key not in found:
            found[key] = asyncio.run_coroutine_threadsafe(find(*key), loop).result()
        return found[key]

    return project
