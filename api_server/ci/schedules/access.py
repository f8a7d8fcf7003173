"""Who may do what with a pipeline schedule, and the branch or tag that it runs on."""

import functools

from aiohttp import web

from api_server.ci.pipelines import repository
from api_server.ci.pipelines.access import may_change
from api_server.ci.schedules import queries
from api_server.ci.schedules.queries import Schedule
from api_server.git.errors import AmbiguousNameError
from api_server.git.ref_names import BRANCHES, TAGS, short_name
from api_server.git.repositories import repositories
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import forbidden, invalid, not_found
from api_server.web.grounds import Ground, rely_on
from api_server.web.routes import caller


async def find_schedule(request: web.Request, project: Project, schedule_id: int) -> Schedule:
    """What the request writes is written while the schedule is as it was found. Raises 404 for one that is not the
    project's."""
    found = await queries.find(context.database(request), project.id, schedule_id)
    if found is None:
        raise not_found("Pipeline Schedule")
    read = functools.partial(queries.hold, project_id=project.id, schedule_id=schedule_id)
    rely_on(request, Ground((), found, read))
    return found


async def administered_schedule(request: web.Request, project: Project, schedule_id: int) -> Schedule:
    """For its owner and Maintainers. Raises 403 and 404."""
    found = await find_schedule(request, project, schedule_id)
    if not administers(request, project, found):
        raise forbidden()
    return found


async def owned_schedule(request: web.Request, project: Project, schedule_id: int) -> Schedule:
    """For its owner, with whose rights it runs: nobody else, administrators of the service aside, has it do something
    else. Raises 403 and 404."""
    found = await find_schedule(request, project, schedule_id)
    if not (project.admin or owns(request, found)):
        raise forbidden()
    return found


def administers(request: web.Request, project: Project, schedule: Schedule) -> bool:
    """Whether the caller may remove it, and see its variables."""
    return project.role >= Role.MAINTAINER or (owns(request, schedule) and project.role >= Role.DEVELOPER)


def full_ref(request: web.Request, project: Project, ref: str) -> str:
    """The full name of a branch or tag, which need not be there yet. Raises 400 for what names one of each."""
    try:
        found = repository.resolve_ref(repositories(request), project.id, ref)
    except AmbiguousNameError:
        raise invalid({"ref": ["is ambiguous"]}) from None
    if found is not None:
        return (TAGS if found.kind == "tag" else BRANCHES) + found.name
    return ref if short_name(ref) is not None else BRANCHES + ref


async def may_run(request: web.Request, project: Project, ref: str) -> bool:
    """Whether the caller may run pipelines on the branch or tag of that full name."""
    return await may_change(request, project, short_name(ref) or ref, tag=ref.startswith(TAGS))


async def check_may_save(request: web.Request, project: Project, ref: str, verb: str) -> None:
    """Raises 400 for who may not run pipelines there, as GitLab words it."""
    if not await may_run(request, project, ref):
        raise invalid({"base": [f"The current user is not authorized to {verb} the pipeline schedule"]})


async def check_may_play(request: web.Request, project: Project, ref: str) -> None:
    """Raises 403 likewise."""
    if not await may_run(request, project, ref):
        raise forbidden()


def owns(request: web.Request, schedule: Schedule) -> bool:
    """Whether it runs as the caller."""
    return schedule.owner_id == caller(request).user_id
