"""`/-/commits/<ref>`, `/-/commit/<sha>` and `/-/compare/<ref>...<ref>`: the history, and the changes of commits."""

from collections.abc import Sequence
from typing import Any

import attrs
from aiohttp import web

from api_server.code import entities
from api_server.code.entities import commit_named
from api_server.code.reading import opened, reading, url_of
from api_server.git import commits, references
from api_server.git.commits import History
from api_server.git.diffs import DiffLimits, FileDiff, differences
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.files import read_tree_path
from api_server.pages.folders import pipeline_of
from api_server.pages.page import pager, url_path
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.state.listing import ListPage, Page
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, offset_page
from api_server.web.routes import caller_or_anonymous

#: Maximum number of lines in all diffs of a page together, and of bytes in the diff of one file.
MAX_LINES = 3000
MAX_BYTES = 128 * 1024

_KINDS = {"+": "added", "-": "removed", "@": "hunk", "\\": "hunk"}


@attrs.frozen
class Line:
    kind: str
    text: str


@attrs.frozen
class FileDifference:
    """A changed file. `note` says what happened to it as a whole, and the reason if `lines` is empty."""

    old_path: str
    new_path: str
    title: str
    note: str
    lines: Sequence[Line]


async def read_differences(
    request: web.Request, repository: Repository, old: str | None, new: str, page: Page
) -> tuple[Sequence[FileDifference], ListPage]:
    """Return the changed files of that page, and their total in a `ListPage`. Without `old`, all files count as added.
    Raise `TooBusy`, and 503 if it takes too long."""
    services = context.services(request)
    max_files = services.settings.diff_max_files
    limits = DiffLimits(diff_max_files=max_files, diff_max_lines=MAX_LINES, diff_max_patch_bytes=MAX_BYTES)
    async with reading(services, caller_or_anonymous(request)):
        files, total = await differences(repository, old, new, limits, skip=page.offset, limit=page.size)
    rows = ListPage("", page.offset + page.size < total, None, total)
    return [_file(diff) for diff in files], rows


def _file(diff: FileDiff) -> FileDifference:
    title = f"{diff.old_path} → {diff.new_path}" if diff.renamed else diff.new_path
    return FileDifference(diff.old_path, diff.new_path, title, _note(diff), _lines(diff.text))


def _note(diff: FileDiff) -> str:
    """Return what happened to the file as a whole, and the reason if its changes are not shown."""
    kinds = {"new": diff.added, "removed": diff.removed, "renamed": diff.renamed}
    labels = [label for label, applies in kinds.items() if applies]
    if diff.old_mode != diff.new_mode and not (diff.added or diff.removed):
        labels.append(f"mode {diff.old_mode} → {diff.new_mode}")
    if diff.too_large:
        labels.append("too large to display")
    elif diff.collapsed:
        labels.append("not shown: the diff is too large")
    elif not diff.text and not labels:
        labels.append("no changes to display")
    return ", ".join(labels)


def _lines(text: str) -> Sequence[Line]:
    return (
        [Line(_KINDS.get(line[:1], "same"), line) for line in text.removesuffix("\n").split("\n")]
        if text
        else []
    )


pages = Pages()

#: Maximum number of commits that a comparison lists.
MAX_COMPARED = 100


@attrs.frozen(kw_only=True)
class ListCommits(Paginated):
    rest: str
    per_page: int = 40


@attrs.frozen(kw_only=True)
class ShowCommit(Paginated):
    sha: str


@attrs.frozen(kw_only=True)
class Compare(Paginated):
    refs: str


@pages.get("/{project}/-/commits", access=project(feature="repository"))
async def list_default_commits(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    return page.see_other(
        request, visitor, f"/{project.full_path}/-/commits/{url_path(project.default_branch)}"
    )


@pages.get("/{project}/-/commits/{rest:.+}", access=project(feature="repository"))
async def list_commits(
    request: web.Request, visitor: Visitor, params: ListCommits, project: Project
) -> web.Response:
    """List the commits, the newest first. With a path, list only those that changed something there."""
    services = context.services(request)
    tree_path = await read_tree_path(request, project, params.rest)
    if tree_path is None:
        return page.answer(request, visitor, "projects/no_commits.html", project=project, tab="commits")
    part, url = offset_page(params), url_of(services, project)
    history = History(start=tree_path.commit, path=tree_path.path or None)
    async with reading(services, caller_or_anonymous(request)):
        shas = await commits.history(tree_path.repository, history, skip=part.offset, limit=part.size + 1)
    rows = ListPage("", len(shas) > part.size, None, None)
    return page.answer(
        request,
        visitor,
        "projects/commits.html",
        project=project,
        at=tree_path,
        commits=await entities.commit_list(tree_path.repository, shas[: part.size], url),
        pages=pager(request, part, rows),
    )


@pages.get("/{project}/-/commit/{sha}", access=project(feature="repository"))
async def show_commit(
    request: web.Request, visitor: Visitor, params: ShowCommit, project: Project
) -> web.Response:
    """Show a commit and its changes from its first parent."""
    services = context.services(request)
    repository = await opened(services, project)
    sha = commit_named(repository, params.sha)
    commit = entities.commit(repository, sha, url_of(services, project))
    parent = commit["parent_ids"][0] if commit["parent_ids"] else None
    part = offset_page(params)
    files, rows = await read_differences(request, repository, parent, sha, part)
    return page.answer(
        request,
        visitor,
        "projects/commit.html",
        project=project,
        commit=commit,
        pipeline=await pipeline_of(request, project, sha),
        files=files,
        total=rows.total,
        pages=pager(request, part, rows),
    )


@attrs.frozen
class Comparison:
    """The differences between two commits: at most `MAX_COMPARED` commits, and a page of the changed files."""

    commits: list[dict[str, Any]]
    more: bool
    files: Sequence[FileDifference]
    list_page: ListPage


async def read_comparison(
    request: web.Request, project: Project, first: str, second: str, part: Page, *, since_parting: bool = True
) -> Comparison:
    """Return the commits of `second` that `first` lacks, and the files that differ. The files of `second` are compared
    with those of the common ancestor if `since_parting`, otherwise of `first`. Raise 404 for unknown refs."""
    services = context.services(request)
    repository = await opened(services, project)
    old, new = commit_named(repository, first), commit_named(repository, second)
    async with reading(services, caller_or_anonymous(request)):
        base = await commits.merge_base(repository, old, new) if since_parting else old
        shas = await commits.commits_between(repository, old, new, MAX_COMPARED + 1)
    files, rows = await read_differences(request, repository, base, new, part)
    entries = await entities.commit_list(repository, shas[:MAX_COMPARED], url_of(services, project))
    return Comparison(entries, len(shas) > MAX_COMPARED, files, rows)


@pages.get("/{project}/-/compare/{refs:.+}", access=project(feature="repository"))
async def compare(request: web.Request, visitor: Visitor, params: Compare, project: Project) -> web.Response:
    """Compare two refs: `A...B` shows the changes of B since its common ancestor with A, `A..B` those from A to B."""
    ends = references.split_range(params.refs)
    if ends is None:
        raise not_found("Comparison")
    (first, dots, second), part = ends, offset_page(params)
    comparison = await read_comparison(request, project, first, second, part, since_parting=dots != "..")
    return page.answer(
        request,
        visitor,
        "projects/compare.html",
        project=project,
        first=first,
        second=second,
        commits=comparison.commits,
        more=comparison.more,
        files=comparison.files,
        total=comparison.list_page.total,
        pages=pager(request, part, comparison.list_page),
    )
