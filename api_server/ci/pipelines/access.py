"""Rights to see and change the pipelines and jobs of a project (decision D1), and to give variables to
them."""

import datetime
from collections.abc import Iterable, Sequence

from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import queries, repository
from api_server.ci.pipelines.creation_queries import Subject
from api_server.ci.pipelines.queries import Pipeline
from api_server.ci.variables.variables import Values, problems
from api_server.code.protection import protection_for, protection_of, tag_protection_for, tag_protection_of
from api_server.git.errors import AmbiguousNameError
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.database import Executor
from api_server.web.auth import Actor
from api_server.web.errors import bad_request, forbidden, invalid
from api_server.web.routes import Role


async def find_pipeline(services: Services, project: Project, pipeline_id: int) -> Pipeline:
    """Return the pipeline. Raise 404 if it does not belong to the project."""
    return await queries.find_pipeline(services.database, project.id, pipeline_id)


async def may_run_on(
    database: Executor, project_id: int, ref: str, *, tag: bool, role: int, admin: bool
) -> bool:
    """Return whether somebody with that role in the project may run something on a branch or tag.

    On a protected branch, those who may push to it or merge into it may; on a protected tag, those who may
    create it. `ref` is a short name.
    """
    if tag:
        return (await tag_protection_of(database, project_id, ref)).may_create(role, admin=admin)
    return (await protection_of(database, project_id, ref)).may_update(role, admin=admin)


async def may_change(services: Services, project: Project, ref: str, *, tag: bool) -> bool:
    """Return whether the caller may run, cancel and erase on this ref, by the rule of `may_run_on`, but never
    in archived projects."""
    if project.archived:
        return False
    if tag:
        tag_protection = await tag_protection_for(services, project.id, ref)
        return tag_protection.may_create(project.role, admin=project.admin)
    protection = await protection_for(services, project.id, ref)
    return protection.may_update(project.role, admin=project.admin)


async def check_may_change(services: Services, project: Project, ref: str, *, tag: bool) -> None:
    """Raise 403 unless `may_change`."""
    if not await may_change(services, project, ref, tag=tag):
        raise forbidden()


async def check_may_read_variables(
    services: Services, actor: Actor, project: Project, pipeline: Pipeline
) -> None:
    """Raise 403 unless the caller may read the variables given to a pipeline.

    Maintainers may, and the user who started the pipeline while she may run something on its ref.
    """
    if project.role >= Role.MAINTAINER:
        return
    if pipeline.user_id != actor.user_id:
        raise forbidden()
    await check_may_change(services, project, pipeline.ref, tag=pipeline.tag)


def short_ref(services: Services, project: Project, name: str) -> tuple[str, bool]:
    """Return the short name under which pipelines run on `name`, and whether it is a tag.

    A name that the repository does not have is taken for a branch. Raise 400 if the name is that of a branch
    and of a tag.
    """
    try:
        resolved = repository.resolve_ref(services[REPOSITORIES], project.id, name)
    except AmbiguousNameError as problem:
        raise bad_request(f"Ref is ambiguous. {problem}") from None
    return (name, False) if resolved is None else (resolved.name, resolved.kind == "tag")


def archived_before(services: Services) -> datetime.datetime | None:
    """Return the moment before which jobs are archived, or None if jobs are never archived."""
    seconds = services.settings.archive_builds_older_than
    return services.now - datetime.timedelta(seconds=seconds) if seconds else None


def check_not_archived(services: Services, created_at: datetime.datetime) -> None:
    """Raise 403 if something was created too long ago to be changed."""
    limit = archived_before(services)
    if limit is not None and created_at < limit:
        raise forbidden()


#: A variable that the service adds itself: the request that fired a trigger.
PAYLOAD = "TRIGGER_PAYLOAD"
REFUSAL = "Insufficient permissions to set pipeline variables"
_TRIGGERED = frozenset({"trigger", "pipeline"})
_JUDGED_BEFORE = frozenset({"parent_pipeline", "schedule"})


def check_may_give(project: Project, variables: Sequence[object]) -> None:
    """Raise 403 if the caller may not give variables to a job or a schedule of the project.

    Call it before the variables are stored.
    """
    if variables and not project.takes_variables:
        raise forbidden()


def check_keys(keys: Iterable[str]) -> None:
    """Raise 400 for the first key that cannot be the name of a shell variable."""
    for key in keys:
        if errors := problems(Values(key=key, value="")):
            raise invalid(errors)


def check_may_begin_with(subject: Subject, source: str, variables: Sequence[Variable]) -> None:
    """Raise CiConfigError if a new pipeline may not get these variables, or if a key is not a valid name of a
    shell variable.

    Child pipelines get the variables of their own project's file, which everybody may run, and schedules
    those that were given when it was allowed: these are not checked again.
    """
    if source in _JUDGED_BEFORE:
        return
    own_variables = (
        variables
        if source not in _TRIGGERED
        else [variable for variable in variables if variable.key != PAYLOAD]
    )
    if own_variables and not subject.takes_variables:
        raise CiConfigError(REFUSAL)
    for variable in variables:
        for name, texts in problems(Values(key=variable.key, value="")).items():
            raise CiConfigError(*(f"Variables {name} {text}" for text in texts))
