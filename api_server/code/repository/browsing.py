"""`/projects/:id/repository/commits` and `/tree`: reading what a repository holds, and commits of several files."""

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository import committing, entities
from api_server.code.repository.access import opened, url_of
from api_server.code.repository.committing import Change, Encoding
from api_server.code.repository.finding import commit_named, folder_named
from api_server.code.repository.pages import position_of, token_at
from api_server.code.repository.queries import last_pipeline
from api_server.git import commits, references, trees
from api_server.git.commits import History
from api_server.git.new_commits import FileAction
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.state.listing import MOST_COUNTED, Listed
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.errors import ApiError, not_found
from api_server.web.pagination import (
    Paginated,
    bounded_offset_page,
    offset_page,
    paginated,
    paginated_by_token,
)
from api_server.web.params import Description, Name
from api_server.web.routes import Role, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class ListCommits(Paginated):
    id: str
    ref_name: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    path: str | None = None
    author: str | None = None
    all: bool = False
    with_stats: bool = False
    first_parent: bool = False
    order: Literal["default", "topo"] = "default"


@attrs.frozen(kw_only=True)
class OneCommit:
    id: str
    sha: str
    stats: bool = True


@attrs.frozen(kw_only=True)
class ListTree(Paginated):
    id: str
    path: str = ""
    ref: str | None = None
    recursive: bool = False
    page_token: str | None = None


@attrs.frozen(kw_only=True)
class Action:
    """What is to happen to one file."""

    action: Literal["create", "delete", "move", "update", "chmod"]
    file_path: str = attrs.field(metadata={"present": True})
    previous_path: str | None = None
    content: str | None = None
    encoding: Encoding = "text"
    execute_filemode: bool | None = None
    last_commit_id: str | None = None

    def for_git(self) -> FileAction:
        """A `chmod` is a move to where the file is; a `move` keeps the bytes unless there are new ones."""
        if self.action == "chmod":
            return FileAction(
                "move", self.file_path, None, self.file_path, self.execute_filemode, self.last_commit_id
            )
        content = None if self.content is None else committing.decoded(self.content, self.encoding)
        if self.action in ("create", "update"):
            content = content or b""
        return FileAction(
            self.action,
            self.file_path,
            content,
            self.previous_path,
            self.execute_filemode,
            self.last_commit_id,
        )


@attrs.frozen(kw_only=True)
class CreateCommit:
    id: str
    branch: str = attrs.field(metadata={"present": True})
    commit_message: Description = attrs.field(metadata={"present": True})
    actions: list[Action]
    start_branch: str | None = None
    author_name: Name | None = None
    author_email: Name | None = None
    stats: bool = True


@routes.post(
    "/projects/{id}/repository/commits",
    access=project(Role.DEVELOPER, opens="repository"),
)
async def create_commit(request: web.Request, wanted: CreateCommit, found: Project) -> web.Response:
    """All actions as one commit, or none of them."""
    values = attrs.asdict(wanted, filter=lambda field, _: field.name not in ("id", "actions", "stats"))
    actions = [action.for_git() for action in wanted.actions]
    sha = await committing.commit_files(request, found, Change(**values), actions)
    repository = await opened(request, found)
    stats = None
    with suppress(ApiError):  # the commit is made, however long its lines take to count
        stats = await _stats(request, repository, sha) if wanted.stats else None
    return json_value(await _detailed(request, found, repository, sha, stats), status=201)


@routes.get("/projects/{id}/repository/commits", access=project(opens="repository"))
async def list_commits(request: web.Request, wanted: ListCommits, found: Project) -> web.Response:
    """Of a branch, tag, commit or range (by default of the default branch), newest first; not counted, as GitLab's are
    not."""
    repository, page = await opened(request, found), offset_page(wanted)
    history = _history(repository, wanted, found.default_branch)
    shas: list[str] = []
    stats: dict[str, dict[str, int]] = {}
    async with reading(request):
        if history is not None:
            shas = await commits.history(repository, history, skip=page.offset, limit=page.size + 1)
        if wanted.with_stats:
            stats = await commits.line_counts(repository, shas[: page.size])
    url, more = url_of(request, found), len(shas) > page.size
    shown = await entities.commit_list(repository, shas[: page.size], url, stats)
    return await paginated(request, page, Listed(orjson.dumps(shown).decode(), more, None, None))


def _history(repository: Repository, wanted: ListCommits, default_branch: str) -> History | None:
    """Which commits are wanted; None of a default branch that is not there yet. Raises 404 for other names."""
    start = references.resolve_history(repository, wanted.ref_name or default_branch)
    if start is None and not wanted.all:
        if wanted.ref_name:
            raise not_found("Reference")
        return None
    return History(
        start=None if wanted.all else start,
        path=(wanted.path or "").strip("/") or None,
        since=wanted.since,
        until=wanted.until,
        author=wanted.author,
        first_parent=wanted.first_parent,
        topological=wanted.order == "topo",
    )


@routes.get(
    "/projects/{id}/repository/commits/{sha}", access=project(opens="repository"), takes_job_token=True
)
async def show_commit(request: web.Request, wanted: OneCommit, found: Project) -> web.Response:
    """By SHA, or by the name of a branch or tag."""
    repository = await opened(request, found)
    sha = commit_named(repository, wanted.sha)
    stats = await _stats(request, repository, sha) if wanted.stats else None
    return json_value(await _detailed(request, found, repository, sha, stats))


@routes.get("/projects/{id}/repository/tree", access=project(opens="repository"))
async def list_tree(request: web.Request, wanted: ListTree, found: Project) -> web.Response:
    """What is in a folder of a branch, tag or commit: folders first, then by name; with keyset pagination by path."""
    ref, folder = wanted.ref or found.default_branch, wanted.path.strip("/")
    opened_folder = folder_named(await opened(request, found), ref, folder, recursive=wanted.recursive)
    by_path = wanted.pagination == "keyset"
    async with reading(request):
        return await (_tree_by_path if by_path else _tree_by_page)(request, wanted, opened_folder)


async def _tree_by_page(request: web.Request, wanted: ListTree, folder: trees.Folder) -> web.Response:
    page = bounded_offset_page(wanted)
    nodes, more, total = await folder.page(page.offset, page.size, MOST_COUNTED)
    return await paginated(request, page, Listed(_json(nodes), more, None, total))


async def _tree_by_path(request: web.Request, wanted: ListTree, folder: trees.Folder) -> web.Response:
    size = offset_page(wanted).size
    nodes, more = await folder.after(position_of(wanted.page_token), size)
    following = token_at(nodes[-1].key) if more else None
    return await paginated_by_token(request, size, _json(nodes), following)


def _json(nodes: Sequence[trees.Node]) -> str:
    return orjson.dumps([_node(node) for node in nodes]).decode()


def _node(node: trees.Node) -> dict[str, Any]:
    name = node.path.rpartition("/")[2]
    return {"id": node.id, "name": name, "type": node.kind, "path": node.path, "mode": node.mode}


async def _stats(request: web.Request, repository: Repository, sha: str) -> dict[str, int]:
    async with reading(request):
        return (await commits.line_counts(repository, [sha]))[sha]


async def _detailed(
    request: web.Request, found: Project, repository: Repository, sha: str, stats: dict[str, int] | None
) -> dict[str, Any]:
    """A commit with its line counts, where they are given, and its newest pipeline, where the caller may see it."""
    shown = entities.commit(repository, sha, url_of(request, found), stats)
    pipeline = None
    if found.shows_pipelines:
        pipeline = await last_pipeline(context.database(request), found.id, sha)
    last = None if pipeline is None else orjson.loads(pipeline)
    status = None if last is None else last["status"]
    return shown | {"status": status, "project_id": found.id, "last_pipeline": last}
