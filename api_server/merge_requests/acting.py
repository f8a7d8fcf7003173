"""In whose name merge requests are made, changed, merged and rebased, and on what grounds: a request's caller, or,
without a request, whoever has asked for it."""

import functools

import attrs
from aiohttp import web

from api_server.code.branches.protection import Protection, protection_of
from api_server.code.repository.committing import acting_person
from api_server.git.commits import Person
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import queries
from api_server.namespaces.project_queries import find_project
from api_server.namespaces.resources import Project
from api_server.state.database import Database
from api_server.web.context import DATABASE, App
from api_server.web.grounds import GROUNDS, Ground, Grounds
from api_server.web.routes import Role, caller


@attrs.frozen(kw_only=True)
class Actor:
    """A user in a project. What she is judged on holds when the first transaction of `database` begins, or that raises
    `ChangedMeanwhile`."""

    app: App
    project: Project
    user_id: int
    person: Person
    grounds: Grounds

    @property
    def database(self) -> Database:
        return self.app[DATABASE].opening_with(self.grounds.hold)

    @property
    def repository(self) -> Repository:
        return self.app[REPOSITORIES].open(self.project.id)

    async def protection(self, branch: str) -> Protection:
        """What protects the branch, which she is judged on."""
        found = await protection_of(self.database, self.project.id, branch)
        read = functools.partial(protection_of, project_id=self.project.id, name=branch)
        self.grounds.add(Ground((f"project:{self.project.id}",), found, read))
        return found


def acting(request: web.Request, project: Project) -> Actor:
    """The caller of a request that writes."""
    return Actor(
        app=request.config_dict,
        project=project,
        user_id=caller(request).user_id,
        person=acting_person(request),
        grounds=request[GROUNDS],
    )


async def acting_later(app: App, project_id: int, user_id: int | None) -> Actor | None:
    """The user with the rights that she has now; None where she could not ask for it any more, or the project is not
    there, or archived."""
    database, grounds = app[DATABASE], Grounds()
    user = None if user_id is None else await queries.find_active_user(database, user_id)
    if user is None:
        return None
    who = f"user:{user.id}"
    grounds.add(Ground((who,), user, functools.partial(queries.find_active_user, user_id=user.id)))
    read = functools.partial(
        find_project, project_id=project_id, path=None, user_id=user.id, admin=user.admin, job_project_id=None
    )
    project = await read(database)
    if project is None or project.archived or project.role < Role.DEVELOPER or not project.reads_repository:
        return None
    groups = (f"group:{namespace_id}" for namespace_id in project.lineage)
    grounds.add(Ground((who, *groups, f"project:{project_id}"), project, read))
    person = Person(user.name, user.email, int(database.now.timestamp()))
    return Actor(app=app, project=project, user_id=user.id, person=person, grounds=grounds)
