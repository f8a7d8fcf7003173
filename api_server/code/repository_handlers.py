"""`/projects/:id/repository/branches`, `/tags` and `/files` (supporting resources)."""

from collections.abc import Sequence
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.code import committing, entities, file_answers, repository_queries
from api_server.code.committing import Encoding, FileChange, OneAction
from api_server.code.entities import BranchOrder, TagOrder, branch_named, tag_named
from api_server.code.file_answers import file_at
from api_server.code.protection import protection_of, protections_of, tag_protections_of
from api_server.code.reading import (
    merged_branches,
    on_page,
    opened,
    page_response,
    reading_refs,
    streaming,
    url_of,
)
from api_server.git.references import Tag
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web.answers import json_value, no_content
from api_server.web.auth import Actor, Anonymous
from api_server.web.pagination import Paginated
from api_server.web.params import Description, Name
from api_server.web.routes import Role, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class ListRefs(Paginated):
    id: str
    search: str | None = None


@attrs.frozen(kw_only=True)
class ListBranches(ListRefs):
    sort: BranchOrder = "name_asc"


@attrs.frozen(kw_only=True)
class ListTags(ListRefs):
    order_by: TagOrder = "updated"
    sort: Literal["asc", "desc"] = "desc"


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
    message: Description | None = None


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
    commit_message: Description = attrs.field(metadata={"present": True})
    start_branch: str | None = None
    author_name: Name | None = None
    author_email: Name | None = None
    last_commit_id: str | None = None


@attrs.frozen(kw_only=True)
class WriteFile(ChangeFile):
    content: str
    encoding: Encoding = "text"
    execute_filemode: bool | None = None


@routes.get(
    "/projects/{id}/repository/branches",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="200 [Branch]",
)
async def list_branches(
    request: web.Request,
    services: Services,
    actor: Actor | Anonymous,
    params: ListBranches,
    project: Project,
) -> web.Response:
    """List branches, by name unless `sort` says otherwise."""
    repository = await opened(services, project)
    matching = await reading_refs(request, entities.find_branches, repository, params.search, params.sort)
    page_branches, url = on_page(params, matching), url_of(services, project)
    merged = await merged_branches(services, actor, repository, project, page_branches)
    protected = await protections_of(services.database, project.id, [branch.name for branch in page_branches])
    entries = await entities.branch_list(repository, page_branches, project, url, protected, merged)
    return await page_response(request, params, entries, len(matching))


@routes.get(
    "/projects/{id}/repository/branches/{name}", access=project(feature="repository"), answers="200 Branch"
)
async def show_branch(
    services: Services, actor: Actor | Anonymous, params: OneRef, project: Project
) -> web.Response:
    return json_value(await _branch(services, actor, project, params.name))


@routes.post(
    "/projects/{id}/repository/branches",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="201 Branch",
)
async def create_branch(
    services: Services, actor: Actor, params: CreateBranch, project: Project
) -> web.Response:
    await committing.create_branch(services, actor, project, params.branch, params.ref)
    return json_value(await _branch(services, actor, project, params.branch), status=201)


@routes.delete(
    "/projects/{id}/repository/branches/{name}",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="204",
)
async def delete_branch(services: Services, actor: Actor, params: OneRef, project: Project) -> web.Response:
    await committing.delete_branch(services, actor, project, params.name)
    return no_content()


@routes.get(
    "/projects/{id}/repository/tags",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="200 [Tag]",
)
async def list_tags(
    request: web.Request, services: Services, params: ListTags, project: Project
) -> web.Response:
    """List tags, the newest first unless `order_by` and `sort` say otherwise."""
    repository = await opened(services, project)
    order, descending = params.order_by, params.sort == "desc"
    matching = await reading_refs(
        request, entities.find_tags, repository, params.search, order, descending=descending
    )
    entries = await _tags(services, project, repository, on_page(params, matching))
    return await page_response(request, params, entries, len(matching))


@routes.get("/projects/{id}/repository/tags/{name}", access=project(feature="repository"), answers="200 Tag")
async def show_tag(services: Services, params: OneRef, project: Project) -> web.Response:
    return json_value(await _tag(services, project, params.name))


@routes.post(
    "/projects/{id}/repository/tags", access=project(Role.DEVELOPER, feature="repository"), answers="201 Tag"
)
async def create_tag(services: Services, actor: Actor, params: CreateTag, project: Project) -> web.Response:
    """Create a tag, annotated if there is a message."""
    await committing.create_tag(services, actor, project, params.tag_name, params.ref, params.message)
    return json_value(await _tag(services, project, params.tag_name), status=201)


@routes.delete(
    "/projects/{id}/repository/tags/{name}",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="204",
)
async def delete_tag(services: Services, actor: Actor, params: OneRef, project: Project) -> web.Response:
    await committing.delete_tag(services, actor, project, params.name)
    return no_content()


@routes.get(
    "/projects/{id}/repository/files/{path}", access=project(feature="repository"), answers="200 File"
)
async def show_file(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: OneFile, project: Project
) -> web.StreamResponse:
    """Show a file with its content in base64. HEAD returns its attributes in header fields, and reads no content."""
    repository = await opened(services, project)
    file = file_at(repository, params.ref, params.path)
    if request.method != "HEAD":
        file.require_size(services.settings.file_json_limit)
    file = await file.with_history(request, repository)
    return await file_answers.send_json(
        request,
        repository,
        file.entry,
        file.values,
        file.headers,
        streaming(services, actor),
    )


@routes.get(
    "/projects/{id}/repository/files/{path}/raw",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="200 bytes",
)
async def show_raw_file(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: OneFile, project: Project
) -> web.StreamResponse:
    repository = await opened(services, project)
    file = file_at(repository, params.ref, params.path)
    return await file_answers.send_raw(
        request, repository, file.entry, file.raw_headers, streaming(services, actor)
    )


@routes.post(
    "/projects/{id}/repository/files/{path}",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="201 ChangedFile",
)
async def create_file(services: Services, actor: Actor, params: WriteFile, project: Project) -> web.Response:
    return await _changed(services, actor, project, params, "create", status=201)


@routes.put(
    "/projects/{id}/repository/files/{path}",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="200 ChangedFile",
)
async def update_file(services: Services, actor: Actor, params: WriteFile, project: Project) -> web.Response:
    return await _changed(services, actor, project, params, "update")


@routes.delete(
    "/projects/{id}/repository/files/{path}",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="204",
)
async def delete_file(services: Services, actor: Actor, params: ChangeFile, project: Project) -> web.Response:
    await _changed(services, actor, project, params, "delete")
    return no_content()


async def _changed(
    services: Services,
    actor: Actor,
    project: Project,
    params: ChangeFile,
    action: OneAction,
    status: int = 200,
) -> web.Response:
    values = attrs.asdict(params, filter=lambda field, _: field.name != "id")
    await committing.commit_file(services, actor, project, FileChange(action=action, **values))
    return json_value({"file_path": params.path, "branch": params.branch}, status=status)


async def _branch(
    services: Services, actor: Actor | Anonymous, project: Project, name: str
) -> dict[str, Any]:
    repository = await opened(services, project)
    branch = branch_named(repository, name)
    merged = await merged_branches(services, actor, repository, project, [branch])
    protection = await protection_of(services.database, project.id, name)
    url = url_of(services, project)
    return entities.branch(repository, branch, project, url, protection, merged=name in merged)


async def _tag(services: Services, project: Project, name: str) -> dict[str, Any]:
    repository = await opened(services, project)
    (entity,) = await _tags(services, project, repository, [tag_named(repository, name)])
    return entity


async def _tags(
    services: Services, project: Project, repository: Repository, tags: Sequence[Tag]
) -> list[dict[str, Any]]:
    database, url, names = services.database, url_of(services, project), [tag.name for tag in tags]
    rules = await tag_protections_of(database, project.id, names)
    releases = await repository_queries.releases_of(database, project.id, names)
    return await entities.tag_list(repository, tags, url, rules, releases)
