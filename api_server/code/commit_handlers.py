"""`/projects/:id/repository/commits`, `/tree`, `/compare` and `/merge_base` (supporting resources)."""

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.code import committing, entities
from api_server.code.committing import Change, Encoding
from api_server.code.entities import commit_named, folder_named
from api_server.code.reading import (
    ListDifferences,
    all_commits,
    all_differences,
    differences_response,
    on_page,
    opened,
    page_response,
    position_of,
    reading,
    token_at,
    url_of,
)
from api_server.code.repository_queries import last_pipeline
from api_server.git import commits, references, trees
from api_server.git.commits import History, commits_between, merge_base
from api_server.git.new_commits import FileAction
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.listing import MAX_COUNTED, ListPage
from api_server.web.answers import json_value
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import ApiError, invalid, not_found
from api_server.web.pagination import (
    Paginated,
    bounded_offset_page,
    offset_page,
    paginated,
    paginated_by_token,
)
from api_server.web.params import AtMostBytes, CommaList, Description, Name
from api_server.web.routes import Role, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class ListCommits(Paginated):
    id: str
    ref_name: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    path: Annotated[str, AtMostBytes(4096)] | None = None
    author: Name | None = None
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
    """A change of one file, as the caller describes it."""

    action: Literal["create", "delete", "move", "update", "chmod"]
    file_path: str = attrs.field(metadata={"present": True})
    previous_path: str | None = None
    content: str | None = None
    encoding: Encoding = "text"
    execute_filemode: bool | None = None
    last_commit_id: str | None = None

    def for_git(self) -> FileAction:
        """Return the action for git. A `chmod` is a move to the same path; a `move` without content keeps the
        content."""
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
    access=project(Role.DEVELOPER, feature="repository"),
    answers="201 CommitDetail",
)
async def create_commit(
    services: Services, actor: Actor, params: CreateCommit, project: Project
) -> web.Response:
    """Create a commit of all actions, or of none if one of them fails."""
    values = attrs.asdict(params, filter=lambda field, _: field.name not in ("id", "actions", "stats"))
    actions = [action.for_git() for action in params.actions]
    sha = await committing.commit_files(services, actor, project, Change(**values), actions)
    repository = await opened(services, project)
    stats = None
    with suppress(ApiError):  # the commit exists even if its lines take too long to count
        stats = await _stats(services, actor, repository, sha) if params.stats else None
    return json_value(await _detailed(services, project, repository, sha, stats), status=201)


@routes.get("/projects/{id}/repository/commits", access=project(feature="repository"), answers="200 [Commit]")
async def list_commits(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: ListCommits, project: Project
) -> web.Response:
    """List the commits of a branch, tag, commit or range (by default of the default branch), newest first. They are
    not counted, as in GitLab."""
    repository, page = await opened(services, project), offset_page(params)
    history = _history(repository, params, project.default_branch)
    shas: list[str] = []
    stats: dict[str, dict[str, int]] = {}
    async with reading(services, actor):
        if history is not None:
            shas = await commits.history(repository, history, skip=page.offset, limit=page.size + 1)
        if params.with_stats:
            stats = await commits.line_counts(repository, shas[: page.size])
    url, more = url_of(services, project), len(shas) > page.size
    commit_entities = await entities.commit_list(repository, shas[: page.size], url, stats)
    return await paginated(request, page, ListPage(orjson.dumps(commit_entities).decode(), more, None, None))


def _history(repository: Repository, params: ListCommits, default_branch: str) -> History | None:
    """Return the query for the requested commits, or None if it is for a default branch that does not exist yet. Raise
    404 for other unknown names."""
    start = references.resolve_history(repository, params.ref_name or default_branch)
    if start is None and not params.all:
        if params.ref_name:
            raise not_found("Reference")
        return None
    return History(
        start=None if params.all else start,
        path=(params.path or "").strip("/") or None,
        since=params.since,
        until=params.until,
        author=params.author,
        first_parent=params.first_parent,
        topological=params.order == "topo",
    )


@routes.get(
    "/projects/{id}/repository/commits/{sha}",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="200 CommitDetail",
)
async def show_commit(
    services: Services, actor: Actor | Anonymous, params: OneCommit, project: Project
) -> web.Response:
    """Show a commit, given by SHA or by the name of a branch or tag."""
    repository = await opened(services, project)
    sha = commit_named(repository, params.sha)
    stats = await _stats(services, actor, repository, sha) if params.stats else None
    return json_value(await _detailed(services, project, repository, sha, stats))


@routes.get(
    "/projects/{id}/repository/tree", access=project(feature="repository"), answers="200 [TreeObject]"
)
async def list_tree(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: ListTree, project: Project
) -> web.Response:
    """List a folder of a branch, tag or commit: folders first, then by name; with keyset pagination, by path."""
    ref, folder = params.ref or project.default_branch, params.path.strip("/")
    opened_folder = folder_named(await opened(services, project), ref, folder, recursive=params.recursive)
    by_path = params.pagination == "keyset"
    async with reading(services, actor):
        return await (_tree_by_path if by_path else _tree_by_page)(request, params, opened_folder)


async def _tree_by_page(request: web.Request, params: ListTree, folder: trees.Folder) -> web.Response:
    page = bounded_offset_page(params)
    nodes, more, total = await folder.page(page.offset, page.size, MAX_COUNTED)
    return await paginated(request, page, ListPage(_json(nodes), more, None, total))


async def _tree_by_path(request: web.Request, params: ListTree, folder: trees.Folder) -> web.Response:
    size = offset_page(params).size
    nodes, more = await folder.after(position_of(params.page_token), size)
    following = token_at(nodes[-1].key) if more else None
    return await paginated_by_token(request, size, _json(nodes), following)


def _json(nodes: Sequence[trees.Node]) -> str:
    return orjson.dumps([_node(node) for node in nodes]).decode()


def _node(node: trees.Node) -> dict[str, Any]:
    name = node.path.rpartition("/")[2]
    return {"id": node.id, "name": name, "type": node.kind, "path": node.path, "mode": node.mode}


async def _stats(
    services: Services, actor: Actor | Anonymous, repository: Repository, sha: str
) -> dict[str, int]:
    async with reading(services, actor):
        return (await commits.line_counts(repository, [sha]))[sha]


async def _detailed(
    services: Services, project: Project, repository: Repository, sha: str, stats: dict[str, int] | None
) -> dict[str, Any]:
    """Return a commit with its line counts, if they are known, and its newest pipeline, if the caller may see it."""
    entity = entities.commit(repository, sha, url_of(services, project), stats)
    pipeline = None
    if project.shows_pipelines:
        pipeline = await last_pipeline(services.database, project.id, sha)
    last = None if pipeline is None else orjson.loads(pipeline)
    status = None if last is None else last["status"]
    return entity | {"status": status, "project_id": project.id, "last_pipeline": last}


#: Maximum number of commits that a comparison shows.
MAX_COMPARED = 1000


@attrs.frozen(kw_only=True)
class ShowDiff(ListDifferences):
    id: str
    sha: str


@attrs.frozen(kw_only=True)
class Compare:
    id: str
    from_: str = attrs.field(metadata={"name": "from", "present": True})
    to: str = attrs.field(metadata={"present": True})
    straight: bool = False
    unidiff: bool = False


@routes.get(
    "/projects/{id}/repository/commits/{sha}/diff", access=project(feature="repository"), answers="200 [Diff]"
)
async def show_diff(
    request: web.Request, services: Services, params: ShowDiff, project: Project
) -> web.Response:
    """List the files that differ between a commit and its first parent."""
    repository = await opened(services, project)
    sha = commit_named(repository, params.sha)
    parents = commits.commit_data(repository, sha)["parent_ids"]
    return await differences_response(request, params, repository, parents[0] if parents else None, sha)


@routes.get("/projects/{id}/repository/compare", access=project(feature="repository"), answers="200 Compare")
async def compare(
    services: Services, actor: Actor | Anonymous, params: Compare, project: Project
) -> web.Response:
    """Compare `from` and `to`: show the commits that only `to` has, and the files that differ since their merge base
    or (`straight`) between the two."""
    repository = await opened(services, project)
    old, new = commit_named(repository, params.from_), commit_named(repository, params.to)
    async with reading(services, actor):
        base = old if params.straight else await merge_base(repository, old, new)
        files, _ = await all_differences(services, repository, base, new, unidiff=params.unidiff)
        shas = await commits_between(repository, old, new, MAX_COMPARED)
    commit_entities = await all_commits(services, project, repository, list(reversed(shas)))
    return json_value(
        {
            "commit": commit_entities[-1] if commit_entities else None,
            "commits": commit_entities,
            "diffs": files,
            "compare_timeout": False,
            "compare_same_ref": old == new,
            "web_url": f"{url_of(services, project)}/-/compare/{old}...{new}",
        }
    )


_NAMESPACES = {"branch": [BRANCHES], "tag": [TAGS], "all": [BRANCHES, TAGS]}
#: Maximum number of refs of which a common ancestor is searched.
MAX_REFS = 100


@attrs.frozen(kw_only=True)
class ListRefsOfCommit(Paginated):
    id: str
    sha: str
    type: Literal["branch", "tag", "all"] = "all"


@attrs.frozen(kw_only=True)
class CommitSha:
    id: str
    sha: str


@attrs.frozen(kw_only=True)
class FindMergeBase:
    id: str
    refs: CommaList[str]


@routes.get(
    "/projects/{id}/repository/commits/{sha}/refs",
    access=project(feature="repository"),
    answers="200 [BasicRef]",
)
async def list_refs_of_commit(
    request: web.Request,
    services: Services,
    actor: Actor | Anonymous,
    params: ListRefsOfCommit,
    project: Project,
) -> web.Response:
    """List the branches and then the tags from which a commit can be reached, each sorted by name."""
    repository = await opened(services, project)
    sha = commit_named(repository, params.sha)
    async with reading(services, actor):
        refs = await commits.refs_containing(repository, sha, *_NAMESPACES[params.type])
    ref_entities = [_ref(name) for name in on_page(params, refs)]
    return await page_response(request, params, ref_entities, len(refs))


@routes.get(
    "/projects/{id}/repository/commits/{sha}/signature",
    access=project(feature="repository"),
    answers="200 CommitSignature",
)
async def show_signature(services: Services, params: CommitSha, project: Project) -> web.Response:
    """Show the kind of a commit's signature. Its key is always unknown, because users have no signing keys here."""
    repository = await opened(services, project)
    signed_with = commits.signature_type(repository, commit_named(repository, params.sha))
    if signed_with is None:
        raise not_found("Signature")
    return json_value(
        {"signature_type": signed_with, "verification_status": "unknown_key", "commit_source": "gitaly"}
    )


def _ref(name: str) -> dict[str, str]:
    kind = "branch" if name.startswith(BRANCHES) else "tag"
    return {"type": kind, "name": name.split("/", 2)[2]}


@routes.get(
    "/projects/{id}/repository/merge_base", access=project(feature="repository"), answers="200 Commit"
)
async def find_merge_base(
    services: Services, actor: Actor | Anonymous, params: FindMergeBase, project: Project
) -> web.Response:
    """Show the best common ancestor of two or more branches, tags or commits."""
    repository = await opened(services, project)
    shas = _resolved(repository, params.refs)
    async with reading(services, actor):
        sha = await commits.merge_base(repository, *shas)
    if sha is None:
        raise not_found("Merge Base")
    return json_value(entities.commit(repository, sha, url_of(services, project)))


def _resolved(repository: Repository, refs: Sequence[str]) -> list[str]:
    """Return the commits of these refs. Raise 400 in GitLab's words."""
    if len(refs) < 2:
        raise invalid("Provide at least 2 refs")
    if len(refs) > MAX_REFS:
        raise invalid(f"Provide at most {MAX_REFS} refs")
    resolved = [references.resolve(repository, ref) for ref in refs]
    if unknown := [ref for ref, target in zip(refs, resolved, strict=True) if target is None]:
        raise invalid(f"Could not find {'ref' if len(unknown) == 1 else 'refs'}: {', '.join(unknown)}")
    return [target.commit for target in resolved if target is not None]


_COMMIT = "/projects/{id}/repository/commits/{sha}"


@attrs.frozen(kw_only=True)
class Revert:
    id: str
    sha: str
    branch: str = attrs.field(metadata={"present": True})
    dry_run: bool = False


@attrs.frozen(kw_only=True)
class CherryPick(Revert):
    message: Description | None = None


@routes.post(
    f"{_COMMIT}/cherry_pick",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="201 Commit, 200 DryRun",
)
async def cherry_pick(services: Services, actor: Actor, params: CherryPick, project: Project) -> web.Response:
    sha = await committing.pick(
        services,
        actor,
        project,
        committing.CHERRY_PICK,
        params.sha,
        params.branch,
        message=params.message,
        dry_run=params.dry_run,
    )
    return await _answer(services, project, sha)


@routes.post(
    f"{_COMMIT}/revert",
    access=project(Role.DEVELOPER, feature="repository"),
    answers="201 Commit, 200 DryRun",
)
async def revert(services: Services, actor: Actor, params: Revert, project: Project) -> web.Response:
    sha = await committing.pick(
        services,
        actor,
        project,
        committing.REVERT,
        params.sha,
        params.branch,
        dry_run=params.dry_run,
    )
    return await _answer(services, project, sha)


async def _answer(services: Services, project: Project, sha: str | None) -> web.Response:
    if sha is None:
        return json_value({"dry_run": "success"})
    repository = await opened(services, project)
    return json_value(entities.commit(repository, sha, url_of(services, project)), status=201)
