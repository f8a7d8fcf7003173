"""Which static object the check of the external storage asks for: a named one, or one that is found."""

import asyncio
from urllib.parse import quote, unquote, urlsplit

from aiohttp import web

from api_server.git import references, trees
from api_server.git.commits import tree_of
from api_server.git.repositories import Repositories, repositories
from api_server.namespaces.access import visible_project
from api_server.outbound.edges import project_key
from api_server.pages.admin import storage_queries as queries
from api_server.pages.admin.acting import Refused
from api_server.pages.admin.storage_check import StaticObject
from api_server.state.secrets import STATIC_OBJECT_TOKEN
from api_server.static_objects import queries as static_objects
from api_server.web import context
from api_server.web.routes import caller
from common import static_paths

#: Projects and files of each that are looked at.
_PROJECTS, _FILES = 20, 50
_LARGEST = 2**20


async def find(request: web.Request) -> StaticObject:
    """A small file of a public project, else of one that the caller opens. Raises `Refused` where there is none."""
    database = context.database(request)
    for visibility in ("public", "internal", "private"):
        for holder in await queries.holders(database, visibility, _PROJECTS):
            name = await asyncio.to_thread(_a_file, repositories(request), holder.id, holder.default_branch)
            if name is not None:
                path = static_paths.parse(quote(f"/{holder.full_path}/-/raw/{holder.default_branch}/{name}"))
                token = None if visibility == "public" else await _token(request)
                return StaticObject(path.target, project_key(holder.id), token)
    raise Refused("There is no project with a file to ask for yet: push one, or name an object.")


async def named(request: web.Request, text: str) -> StaticObject:
    """The object at a path or URL of this service. Raises `Refused` for what names none."""
    try:
        path = urlsplit(text).path
        parsed = static_paths.parse(quote(unquote(path if path.startswith("/") else f"/{path}")))
    except ValueError as problem:
        raise Refused(f"{text} is no path of a raw file or an archive: {problem}") from None
    who = caller(request)
    project = await visible_project(
        request, parsed.project, user_id=who.user_id, admin=who.admin, job_project_id=None
    )
    if project is None:
        raise Refused(f"There is no project {parsed.project}.")
    token = None if project.shows_repository_to_everybody else await _token(request)
    return StaticObject(parsed.target, project_key(project.id), token)


async def _token(request: web.Request) -> str:
    """The caller's own, which opens what she may read."""
    user = await static_objects.user(context.database(request), caller(request).user_id)
    return context.vault(request).derived_token(STATIC_OBJECT_TOKEN, user.static_object_seed if user else b"")


def _a_file(found: Repositories, project_id: int, branch: str) -> str | None:
    """A small one in the topmost folder of the branch."""
    if not found.exists(project_id):
        return None
    repository = found.open(project_id)
    found_branch = references.branch(repository, branch)
    if found_branch is None:
        return None
    for each in list(tree_of(repository, found_branch.commit))[:_FILES]:
        entry = trees.find_entry(repository, found_branch.commit, each.name or "")
        if entry is not None and entry.kind == "file" and (entry.size or 0) <= _LARGEST:
            return entry.path
    return None
