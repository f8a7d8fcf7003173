"""Making a pipeline for somebody who is not there: with the rights that she has by now, whenever it was asked for."""

import attrs

from api_server.ci.pipelines import creation_queries
from api_server.ci.pipelines.access import may_run_on
from api_server.ci.pipelines.creation import Maker
from api_server.ci.pipelines.wanted import NotMade, Wanted
from api_server.namespaces.projects import queries as projects
from api_server.namespaces.projects.project import Project
from api_server.state.database import Executor, Transaction
from api_server.web.grounds import share
from api_server.web.routes import Role

INSUFFICIENT = "Insufficient permissions to create a new pipeline"


class NotAllowed(NotMade):
    """The user may not run pipelines there."""

    def __init__(self, *errors: str) -> None:
        super().__init__(*errors, reason="insufficient_bridge_permissions")


async def make(maker: Maker, wanted: Wanted) -> int:
    """As `maker.make`. Whoever takes away what it is judged on waits until the pipeline is there. Raises `NotMade`, and
    as such `NotAllowed`."""
    project = await judge(maker.database, wanted)
    groups = (f"group:{namespace_id}" for namespace_id in project.lineage)
    names = {f"user:{wanted.user_id}", f"project:{project.id}", *groups}

    async def hold(transaction: Transaction) -> None:
        await share(transaction, names)
        await judge(transaction, wanted)

    return await attrs.evolve(maker, database=maker.database.opening_with(hold)).make(wanted)


async def judge(executor: Executor, wanted: Wanted) -> Project:
    """The project as the user meets it. Raises `NotAllowed` where she may not run `wanted`, and as `check_open`."""
    project = await _project(executor, wanted)
    if project is None:
        raise NotAllowed(INSUFFICIENT)
    check_open(project)
    ref, tag = wanted.short_ref, wanted.tag
    if not await may_run_on(executor, project.id, ref, tag=tag, role=project.role, admin=project.admin):
        raise not_allowed_on(ref)
    return project


def check_open(project: Project) -> None:
    """Raises `NotAllowed` where the user may run no pipeline at all, `NotMade` where nobody may."""
    if project.role < Role.DEVELOPER:
        raise NotAllowed(INSUFFICIENT)
    if project.archived or project.builds_access_level == "disabled":
        raise NotMade("Pipelines are disabled!")


def not_allowed_on(ref: str) -> NotAllowed:
    """For a branch or tag on which the user may run none."""
    return NotAllowed(f"You do not have sufficient permission to run a pipeline on '{ref}'.")


async def _project(executor: Executor, wanted: Wanted) -> Project | None:
    """None where the user has gone, is blocked, or does not see it."""
    user = await creation_queries.active_user(executor, wanted.user_id)
    if user is None:
        return None
    return await projects.find_project(
        executor,
        project_id=wanted.project_id,
        path=None,
        user_id=wanted.user_id,
        admin=user.admin,
        job_project_id=None,
    )
