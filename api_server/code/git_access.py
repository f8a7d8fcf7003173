"""Access to git over HTTP: the caller, what the caller may fetch and push to, and which refs a push may move."""

from collections.abc import Sequence

from aiohttp import web

from api_server.code.protection import (
    NOT_TO_CREATE,
    Protection,
    TagProtection,
    protections_of,
    refusal_of_tag,
    tag_protections_of,
)
from api_server.git.received_push import RefUpdate, Verdict
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.namespaces.access import visible_project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.database import Executor, Transaction
from api_server.state.secrets import JOB_TOKEN
from api_server.web import auth
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import ApiError
from api_server.web.routes import Role

READ_SCOPES = frozenset({"api", "read_repository", "write_repository"})
WRITE_SCOPES = frozenset({"api", "write_repository"})


async def git_caller(request: web.Request, services: Services) -> Actor | Anonymous:
    """Return the user whose token was sent, or an anonymous caller if there are no credentials. Raise 401 for an
    invalid token, and 403 for `Sudo`."""
    auth.refuse_sudo_outside_of_api(request)
    try:
        password = auth.basic_password(request)
    except ValueError:
        raise challenge() from None
    if password is None:
        return Anonymous(address=request.remote)
    try:
        if password.startswith(JOB_TOKEN):
            return await auth.caller_of_job_token(request, services, password)
        return await auth.caller_of_personal_access_token(request, services, password)
    except ApiError as error:
        raise (blocked() if error.status == 403 else challenge()) from None


async def current_caller(transaction: Transaction, actor: Actor) -> Actor:
    """Return the caller with the rights that the transaction sees. Raise 401, 403."""
    try:
        return await auth.still_valid(transaction, actor)
    except ApiError as error:
        raise (blocked() if error.status == 403 else challenge()) from None


def challenge() -> web.HTTPUnauthorized:
    """Return 401, after which git asks its user for credentials or sends those that it has."""
    return web.HTTPUnauthorized(
        text="HTTP Basic: Access denied. The password must be a token with the scope read_repository, "
        "write_repository or api.\n",
        headers={"WWW-Authenticate": 'Basic realm="forgelet"'},
    )


def blocked() -> web.HTTPForbidden:
    return web.HTTPForbidden(text="Your account has been blocked.\n")


async def push_verdict(database: Executor, project: Project, updates: Sequence[RefUpdate]) -> Verdict:
    """Return which of the updates the caller may make."""
    moved = {update.ref: update.kind for update in updates}
    branches = [ref.removeprefix(BRANCHES) for ref in moved if ref.startswith(BRANCHES)]
    tags = [ref.removeprefix(TAGS) for ref in moved if ref.startswith(TAGS)]
    protections = await protections_of(database, project.id, branches)
    tag_protections = await tag_protections_of(database, project.id, tags)
    problems = {
        BRANCHES + name: _problem_with_branch(project, moved[BRANCHES + name], protections[name])
        for name in branches
    } | {
        TAGS + name: _problem_with_tag(project, name, moved[TAGS + name], tag_protections[name])
        for name in tags
    }
    return Verdict(
        refused={ref: problem for ref, problem in problems.items() if problem},
        fast_forward_only=frozenset(
            BRANCHES + name for name in branches if not protections[name].allow_force_push
        ),
    )


def _problem_with_branch(project: Project, kind: str, protection: Protection) -> str | None:
    """Return why the caller may not move the branch, or None."""
    if protection.protected and kind == "delete":
        return "You cannot delete a protected branch by a push; use the API."
    if protection.protected and not protection.may_push(project.role, admin=project.admin):
        return "You are not allowed to push code to protected branches on this project."
    return None


def _problem_with_tag(project: Project, tag: str, kind: str, protection: TagProtection) -> str | None:
    """Return why the caller may not move the tag, or None."""
    if kind == "create" and (problem := refusal_of_tag(project, tag)):
        return f"{problem}."
    if not protection.protected:
        return None
    if kind == "update":
        return "Protected tags cannot be updated."
    if kind == "delete":
        return "You cannot delete a protected tag by a push; use the API."
    may_create = protection.may_create(project.role, admin=project.admin)
    return None if may_create else NOT_TO_CREATE


def refusal_of_pushes(project: Project) -> str | None:
    """Return why the caller may not push to this project at all, or None."""
    if project.archived:
        return "The repository is archived: nothing can be pushed to it."
    if project.role < Role.DEVELOPER:
        return "You are not allowed to push code to this project."
    return None


async def readable_project(request: web.Request, services: Services) -> tuple[Project, Actor | Anonymous]:
    """Return the project at the request's `path`, and the caller, who may fetch from it.

    A project that the caller cannot see is 401 without credentials, and otherwise 404. Raise 403 for guests of a
    private project and for tokens that may not read.
    """
    actor = await git_caller(request, services)
    path = request.match_info["path"]
    project = None
    if "\0" not in path:  # PostgreSQL would refuse it
        project = await visible_project(
            services,
            path,
            user_id=actor.user_id,
            admin=actor.admin,
            job_project_id=actor.job_project_id,
        )
    return check_may_read(project, actor), actor


def check_may_read(project: Project | None, actor: Actor | Anonymous) -> Project:
    """Return the project if the caller may fetch from it. `project` is None if the caller cannot see it. Raise 401,
    403 and 404."""
    if project is None or not project.opens(project.repository_access_level):
        if isinstance(actor, Anonymous):
            raise challenge()
        raise project_not_found()
    if not project.reads_repository:
        raise web.HTTPForbidden(text="You are not allowed to download code from this project.\n")
    if isinstance(actor, Actor) and actor.job_id is None and not actor.scopes & READ_SCOPES:
        raise web.HTTPForbidden(text="The token needs the scope read_repository, write_repository or api.\n")
    return project


def project_not_found() -> web.HTTPNotFound:
    """Return 404 for a project that does not exist or that the caller cannot see."""
    return web.HTTPNotFound(
        text="The project you were looking for could not be found or you don't have permission to view it.\n"
    )


async def writable_project(request: web.Request, services: Services) -> tuple[Project, Actor]:
    """Return the project at the request's `path`, and the user, who may push to it. Raise 401, 403 and 404."""
    project, actor = await readable_project(request, services)
    return project, check_may_push(project, actor)


def check_may_push(project: Project, actor: Actor | Anonymous) -> Actor:
    """Return the user who pushes. Raise 401 and 403 if a caller who may read may not push."""
    if isinstance(actor, Anonymous):
        raise challenge()
    if not actor.scopes & WRITE_SCOPES:
        raise web.HTTPForbidden(text="The token needs the scope write_repository or api.\n")
    if problem := refusal_of_pushes(project):
        raise web.HTTPForbidden(text=f"{problem}\n")
    return actor
