"""Jobs of other pipelines whose artifacts a job gets: of its parent and sibling pipelines, and of other
projects.

A job reads other projects with the rights of its token: those of the user for whom it runs, provided that the
other project admits jobs of this one. The rights are checked twice, when the job is handed out and when it
downloads.
"""

import re
from collections.abc import Mapping

from api_server.ci.config.plan import CrossDependency, PlannedJob
from api_server.ci.config.variables import expand
from api_server.ci.jobs.access import may_read_artifacts
from api_server.ci.pipelines.creation_queries import active_user
from api_server.ci.runners import job_queries
from api_server.ci.runners.job_queries import EarlierJob, RequestingJob, StartedJob
from api_server.namespaces import project_queries
from api_server.namespaces.resources import Project
from api_server.state.database import Database, Executor

_ID = re.compile(r"[0-9]{1,18}")


class MissingDependency(Exception):
    """A job that the file names has not succeeded there, does not exist, or may not be read."""


async def of_other_pipelines(
    database: Database, job: StartedJob, plan: PlannedJob, variables: Mapping[str, str]
) -> list[EarlierJob]:
    """Return the jobs of other pipelines that `plan` names, without duplicates; `variables` are the variables
    in its texts.

    Raise MissingDependency if one of them is not available; then the job fails, as in GitLab.
    """
    jobs: dict[int, EarlierJob] = {}
    for dependency in plan.cross_dependencies:
        find = _of_pipeline if dependency.project is None else _of_project
        earlier = await find(database, job, dependency, variables)
        if earlier is None:
            raise MissingDependency
        jobs[earlier.id] = earlier
    return list(jobs.values())


async def _of_project(
    database: Database, job: StartedJob, dependency: CrossDependency, variables: Mapping[str, str]
) -> EarlierJob | None:
    path, ref = expand(dependency.project or "", variables), expand(dependency.ref or "", variables)
    project = await _readable_project(database, user_id=job.user_id, job_project_id=job.project_id, path=path)
    if project is None:
        return None
    name = expand(dependency.job, variables)
    earlier = await job_queries.last_success(database, project.id, ref=ref, name=name)
    return earlier if earlier is not None and may_read_artifacts(project, earlier.access) else None


async def _of_pipeline(
    database: Database, job: StartedJob, dependency: CrossDependency, variables: Mapping[str, str]
) -> EarlierJob | None:
    """Return the job, or None, also if its pipeline is the asking job's own, for which `needs` without
    `pipeline` is meant."""
    text = expand(dependency.pipeline or "", variables)
    other_id = int(text) if _ID.fullmatch(text) else job.pipeline_id
    if other_id == job.pipeline_id:
        return None
    return await job_queries.success_of_relative(
        database, pipeline_id=job.pipeline_id, other_id=other_id, name=expand(dependency.job, variables)
    )


async def may_download(executor: Executor, requester: RequestingJob) -> bool:
    """Return whether the job may download the artifacts that it asks for.

    Jobs of the same pipeline, or of related pipelines (parents, children and siblings), always may.
    """
    if requester.asked_pipeline_id == requester.pipeline_id or await job_queries.are_related(
        executor, pipeline_id=requester.pipeline_id, other_id=requester.asked_pipeline_id
    ):
        return True
    project = await _readable_project(
        executor,
        user_id=requester.user_id,
        job_project_id=requester.project_id,
        project_id=requester.asked_project_id,
    )
    return project is not None and may_read_artifacts(project, requester.asked_access)


async def _readable_project(
    executor: Executor,
    *,
    user_id: int | None,
    job_project_id: int,
    project_id: int | None = None,
    path: str | None = None,
) -> Project | None:
    """Return the project with the rights of the job's token. Return None if its pipelines are not visible to
    the token, or if the job's user has been removed or blocked."""
    if await active_user(executor, user_id) is None:
        return None
    project = await project_queries.find_project(
        executor,
        project_id=project_id,
        path=path,
        user_id=user_id,
        admin=False,
        job_project_id=job_project_id,
    )
    return project if project is not None and project.shows_pipelines else None
