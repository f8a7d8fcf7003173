"""The page of a project (its description, clone addresses, files and README), and `/-/releases`."""

import attrs
import orjson
from aiohttp import web

from api_server.code.reading import opened, reading_refs
from api_server.git import references, trees
from api_server.namespaces import project_queries
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import files as file_pages
from api_server.pages import page
from api_server.pages.files import ShownFile, TreePath
from api_server.pages.folders import MAX_ENTRIES, Folder, read_folder, read_readme
from api_server.pages.page import pager
from api_server.pages.routes import Pages, allows
from api_server.pages.sessions import NOBODY, Visitor
from api_server.pages.text import rendering
from api_server.releases import changes
from api_server.releases import queries as release_queries
from api_server.state.listing import Page
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, requested_page


@attrs.frozen
class Contents:
    """The contents of the repository that the page shows. `folder` is None if the default branch has no commit."""

    folder: Folder | None = None
    branches: int = 0
    at: TreePath | None = None
    readme_path: str = ""
    readme: ShownFile | None = None
    has_ci: bool = False


async def show_project(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    entity = await project_queries.show_project(
        context.services(request).database, project.id, visitor.user_id or NOBODY
    )
    fields = orjson.loads(entity)
    (description,) = await rendering.markdown(request, visitor, project, [fields["description"]])
    contents = await _contents(request, visitor, project) if project.reads_repository else None
    may_edit = contents is not None and contents.at is not None and allows(file_pages.EDIT, project, visitor)
    return page.answer(
        request,
        visitor,
        "projects/overview.html",
        project=project,
        entity=fields,
        description=description,
        contents=contents,
        may_edit=may_edit,
        lacks_ci=project.shows_pipelines and not (contents and contents.has_ci),
    )


async def _contents(request: web.Request, visitor: Visitor, project: Project) -> Contents:
    services = context.services(request)
    repository = await opened(services, project)
    branches = await reading_refs(request, references.branches, repository)
    head = references.branch(repository, project.default_branch)
    if head is None:
        return Contents(branches=len(branches))
    root = TreePath(repository, project.default_branch, head.commit, "")
    folder = await read_folder(request, project, root, Page(MAX_ENTRIES))
    readme_path, readme = await read_readme(request, visitor, project, root)
    has_ci = trees.find_entry(repository, head.commit, project.ci_file) is not None
    return Contents(folder, len(branches), root, readme_path, readme, has_ci)


pages = Pages()


@attrs.frozen(kw_only=True)
class ListReleases(Paginated):
    pass


@attrs.frozen(kw_only=True)
class ShowRelease:
    tag: str


@pages.get("/{project}/-/releases", access=project(feature="repository"))
async def list_releases(
    request: web.Request, visitor: Visitor, params: ListReleases, project: Project
) -> web.Response:
    """List the releases, the newest first."""
    services = context.services(request)
    part = requested_page(params, release_queries.LISTING, default_order="released_at")
    rows = await release_queries.list_releases(services.database, part, project.id, None, None)
    release_entities = await changes.release_entities(services, project, orjson.loads(rows.body))
    texts = await rendering.markdown(
        request, visitor, project, [release["description"] for release in release_entities]
    )
    return page.answer(
        request,
        visitor,
        "projects/releases.html",
        project=project,
        may_edit=allows(file_pages.EDIT, project, visitor),
        releases=list(zip(release_entities, texts, strict=True)),
        pages=pager(request, part, rows),
    )


@pages.get("/{project}/-/releases/{tag:.+}", access=project(feature="repository"))
async def show_release(
    request: web.Request, visitor: Visitor, params: ShowRelease, project: Project
) -> web.Response:
    services = context.services(request)
    row = await release_queries.show_release(services.database, project.id, params.tag)
    if row is None:
        raise not_found("Release")
    (release,) = await changes.release_entities(services, project, [row])
    (text,) = await rendering.markdown(request, visitor, project, [release["description"]])
    return page.answer(
        request,
        visitor,
        "projects/release.html",
        project=project,
        may_edit=allows(file_pages.EDIT, project, visitor),
        release=release,
        text=text,
    )
