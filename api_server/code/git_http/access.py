"""Who may fetch from and push to the project that a git client names."""

from aiohttp import web

from api_server.code.git_http import push_rules
from api_server.code.git_http.credentials import READ_SCOPES, WRITE_SCOPES, challenge, git_caller
from api_server.namespaces.access import visible_project
from api_server.namespaces.resources import Project
from api_server.web.auth import Anonymous, Caller


async def readable_project(request: web.Request) -> tuple[Project, Caller | Anonymous]:
    """The project at the request's `path` and who may fetch from it.

    What strangers cannot see asks for credentials (401), then is 404. Raises 403 for guests of a private project and
    for tokens that may not read.
    """
    who = await git_caller(request)
    path = request.match_info["path"]
    project = None
    if "\0" not in path:  # which PostgreSQL would refuse
        project = await visible_project(
            request, path, user_id=who.user_id, admin=who.admin, job_project_id=who.job_project_id
        )
    return check_may_read(project, who), who


def check_may_read(project: Project | None, who: Caller | Anonymous) -> Project:
    """The project, where that caller may fetch from it; None is what she cannot see. Raises 401, 403 and 404."""
    if project is None or not project.opens(project.repository_access_level):
        if isinstance(who, Anonymous):
            raise challenge()
        raise gone()
    if not project.reads_repository:
        raise web.HTTPForbidden(text="You are not allowed to download code from this project.\n")
    if isinstance(who, Caller) and who.job_id is None and not who.scopes & READ_SCOPES:
        raise web.HTTPForbidden(text="The token needs the scope read_repository, write_repository or api.\n")
    return project


def gone() -> web.HTTPNotFound:
    """What there is not, or not for this caller."""
    return web.HTTPNotFound(
        text="The project you were looking for could not be found or you don't have permission to view it.\n"
    )


async def writable_project(request: web.Request) -> tuple[Project, Caller]:
    """The project at the request's `path` and the user who may push to it. Raises 401, 403 and 404."""
    project, who = await readable_project(request)
    return project, check_may_push(project, who)


def check_may_push(project: Project, who: Caller | Anonymous) -> Caller:
    """The user who pushes. Raises 401 and 403 where somebody who may read may not."""
    if isinstance(who, Anonymous):
        raise challenge()
    if not who.scopes & WRITE_SCOPES:
        raise web.HTTPForbidden(text="The token needs the scope write_repository or api.\n")
    if problem := push_rules.refusal(project):
        raise web.HTTPForbidden(text=f"{problem}\n")
    return who
