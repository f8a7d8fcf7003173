"""`/projects/:id/repository/branches`, `/tags` and `/files` (supporting resources)."""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import orjson
from aiohttp import web

from api_server.code.branches.protection import protection_of, protections_of
from api_server.code.repository import committing, entities
from api_server.code.repository.access import opened, readable_repository, require_readable
from api_server.code.repository.committing import Encoding, FileChange
from api_server.git import files, references
from api_server.git.files import Entry
from api_server.git.repositories import Repository
from api_server.namespaces.projects.access import Project, find_project, project
from api_server.state.listing import Listed
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_value, no_content
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, offset_page, paginated
from api_server.web.params import parse
from api_server.web.routes import Routes

routes = Routes()
ItemT = TypeVar("ItemT")


@attrs.frozen(kw_only=True)
class ListRefs(Paginated):
    id: str
    search: str | None = None


@attrs.frozen(kw_only=True)
class OneRef:
    id: str
    name: str


@attrs.frozen(kw_only=True)
class CreateBranch:
    id: str
    branch: str = attrs.field(metadata={"present": True})
    ref: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class CreateTag:
    id: str
    tag_name: str = attrs.field(metadata={"present": True})
    ref: str = attrs.field(metadata={"present": True})
    message: str | None = None


@attrs.frozen(kw_only=True)
class OneFile:
    id: str
    path: str
    ref: str = "HEAD"


@attrs.frozen(kw_only=True)
class ChangeFile:
    id: str
    path: str
    branch: str = attrs.field(metadata={"present": True})
    commit_message: str = attrs.field(metadata={"present": True})
    start_branch: str | None = None
    author_name: str | None = None
    author_email: str | None = None
    last_commit_id: str | None = None


@attrs.frozen(kw_only=True)
class WriteFile(ChangeFile):
    content: str
    encoding: Encoding = "text"


@routes.get("/projects/{id}/repository/branches", access=project())
async def list_branches(request: web.Request) -> web.Response:
    """By name."""
    wanted = await parse(request, ListRefs)
    found, repository = await readable_repository(request, wanted.id)
    branches = await asyncio.to_thread(references.branches, repository)
    named = [branch for branch in branches if (wanted.search or "").lower() in branch.name.lower()]
    protected = await protections_of(
        context.database(request), found.id, [b.name for b in _slice(wanted, named)]
    )
    url = _url(request, found)
    return await _listed(
        request,
        wanted,
        named,
        lambda branch: entities.branch(repository, branch, found, url, protected[branch.name]),
    )


@routes.get("/projects/{id}/repository/branches/{name}", access=project())
async def show_branch(request: web.Request) -> web.Response:
    wanted = await parse(request, OneRef)
    found = await find_project(request, wanted.id)
    require_readable(found)
    return json_value(await _branch(request, found, wanted.name))


@routes.post("/projects/{id}/repository/branches", access=project(Role.DEVELOPER))
async def create_branch(request: web.Request) -> web.Response:
    wanted = await parse(request, CreateBranch)
    found = await find_project(request, wanted.id)
    await committing.create_branch(request, found, wanted.branch, wanted.ref)
    return json_value(await _branch(request, found, wanted.branch), status=201)


@routes.delete("/projects/{id}/repository/branches/{name}", access=project(Role.DEVELOPER))
async def delete_branch(request: web.Request) -> web.Response:
    wanted = await parse(request, OneRef)
    found = await find_project(request, wanted.id)
    await committing.delete_branch(request, found, wanted.name)
    return no_content()


@routes.get("/projects/{id}/repository/tags", access=project())
async def list_tags(request: web.Request) -> web.Response:
    """By name, backwards."""
    wanted = await parse(request, ListRefs)
    found, repository = await readable_repository(request, wanted.id)
    tags = await asyncio.to_thread(references.tags, repository)
    named = [tag for tag in reversed(tags) if (wanted.search or "").lower() in tag.name.lower()]
    url = _url(request, found)
    return await _listed(request, wanted, named, lambda tag: entities.tag(repository, tag, url))


@routes.get("/projects/{id}/repository/tags/{name}", access=project())
async def show_tag(request: web.Request) -> web.Response:
    wanted = await parse(request, OneRef)
    found = await find_project(request, wanted.id)
    require_readable(found)
    return json_value(await _tag(request, found, wanted.name))


@routes.post("/projects/{id}/repository/tags", access=project(Role.DEVELOPER))
async def create_tag(request: web.Request) -> web.Response:
    """An annotated one where there is a message."""
    wanted = await parse(request, CreateTag)
    found = await find_project(request, wanted.id)
    await committing.create_tag(request, found, wanted.tag_name, wanted.ref, wanted.message)
    return json_value(await _tag(request, found, wanted.tag_name), status=201)


@routes.delete("/projects/{id}/repository/tags/{name}", access=project(Role.DEVELOPER))
async def delete_tag(request: web.Request) -> web.Response:
    wanted = await parse(request, OneRef)
    found = await find_project(request, wanted.id)
    await committing.delete_tag(request, found, wanted.name)
    return no_content()


@routes.get("/projects/{id}/repository/files/{path}", access=project())
async def show_file(request: web.Request) -> web.Response:
    """The file with its bytes in base64."""
    wanted = await parse(request, OneFile)
    _, repository = await readable_repository(request, wanted.id)
    commit, entry = _file(repository, wanted)
    data = await asyncio.to_thread(files.read, repository, entry)
    return json_value(
        {
            "file_name": entry.path.rpartition("/")[2],
            "file_path": entry.path,
            "size": entry.size,
            "encoding": "base64",
            "content_sha256": hashlib.sha256(data).hexdigest(),
            "ref": wanted.ref,
            "blob_id": entry.id,
            "commit_id": commit,
            "execute_filemode": entry.kind == "executable",
            "content": base64.b64encode(data).decode(),
        }
    )


@routes.get("/projects/{id}/repository/files/{path}/raw", access=project())
async def show_raw_file(request: web.Request) -> web.Response:
    wanted = await parse(request, OneFile)
    _, repository = await readable_repository(request, wanted.id)
    _, entry = _file(repository, wanted)
    data = await asyncio.to_thread(files.read, repository, entry)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return web.Response(body=data, content_type="application/octet-stream", headers=headers)


@routes.post("/projects/{id}/repository/files/{path}", access=project(Role.DEVELOPER))
async def create_file(request: web.Request) -> web.Response:
    wanted = await parse(request, WriteFile)
    return await _changed(request, wanted, "create", status=201)


@routes.put("/projects/{id}/repository/files/{path}", access=project(Role.DEVELOPER))
async def update_file(request: web.Request) -> web.Response:
    wanted = await parse(request, WriteFile)
    return await _changed(request, wanted, "update")


@routes.delete("/projects/{id}/repository/files/{path}", access=project(Role.DEVELOPER))
async def delete_file(request: web.Request) -> web.Response:
    wanted = await parse(request, ChangeFile)
    await _changed(request, wanted, "delete")
    return no_content()


async def _changed(request: web.Request, wanted: ChangeFile, action: Any, status: int = 200) -> web.Response:
    found = await find_project(request, wanted.id)
    values = attrs.asdict(wanted, filter=lambda field, _: field.name != "id")
    await committing.commit_file(request, found, FileChange(action=action, **values))
    return json_value({"file_path": wanted.path, "branch": wanted.branch}, status=status)


async def _branch(request: web.Request, found: Project, name: str) -> dict[str, Any]:
    repository = await opened(request, found)
    branch = references.branch(repository, name)
    if branch is None:
        raise not_found("Branch")
    protection = await protection_of(context.database(request), found.id, name)
    return entities.branch(repository, branch, found, _url(request, found), protection)


async def _tag(request: web.Request, found: Project, name: str) -> dict[str, Any]:
    repository = await opened(request, found)
    tag = references.tag(repository, name)
    if tag is None:
        raise not_found("Tag")
    return entities.tag(repository, tag, _url(request, found))


def _file(repository: Repository, wanted: OneFile) -> tuple[str, Entry]:
    resolved = references.resolve(repository, wanted.ref)
    if resolved is None:
        raise not_found("Commit")
    entry = files.find(repository, resolved.commit, wanted.path)
    if entry is None or not entry.is_blob:
        raise not_found("File")
    return resolved.commit, entry


def _url(request: web.Request, found: Project) -> str:
    return f"{context.settings(request).base_url}/{found.full_path}"


def _slice(wanted: ListRefs, items: Sequence[ItemT]) -> Sequence[ItemT]:
    page = offset_page(wanted)
    return items[page.offset : page.offset + page.size]


async def _listed(
    request: web.Request, wanted: ListRefs, items: Sequence[ItemT], entity: Callable[[ItemT], dict[str, Any]]
) -> web.Response:
    """What is listed from git is paged by offset only; keyset requests are answered so too, as GitLab does."""
    page = offset_page(wanted)
    shown = [entity(item) for item in _slice(wanted, items)]
    more = page.offset + page.size < len(items)
    return await paginated(request, page, Listed(orjson.dumps(shown).decode(), more, None, len(items)))
