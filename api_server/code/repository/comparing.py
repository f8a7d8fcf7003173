"""`/repository/commits/:sha/diff`, `/repository/compare`, and the same of merge requests: what differs."""

from collections.abc import Sequence
from typing import Any

import attrs
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository import entities
from api_server.code.repository.access import opened, url_of
from api_server.code.repository.finding import commit_named
from api_server.code.repository.pages import listed, on_page
from api_server.git import commits
from api_server.git.commits import commits_between, merge_base
from api_server.git.diffs import DiffLimits, FileDiff, differences
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.pagination import Paginated, offset_page
from api_server.web.routes import Routes

routes = Routes()

#: A comparison shows no more commits.
MOST_COMPARED = 1000


@attrs.frozen(kw_only=True)
class ShowDiff(Paginated):
    id: str
    sha: str


@attrs.frozen(kw_only=True)
class Compare:
    id: str
    from_: str = attrs.field(metadata={"name": "from", "present": True})
    to: str = attrs.field(metadata={"present": True})
    straight: bool = False


@routes.get(
    "/projects/{id}/repository/commits/{sha}/diff",
    access=project(opens="repository"),
)
async def show_diff(request: web.Request, wanted: ShowDiff, found: Project) -> web.Response:
    """Of a commit against its first parent."""
    repository = await opened(request, found)
    sha = commit_named(repository, wanted.sha)
    parents = commits.commit_data(repository, sha)["parent_ids"]
    return await listed_differences(request, wanted, repository, parents[0] if parents else None, sha)


@routes.get("/projects/{id}/repository/compare", access=project(opens="repository"))
async def compare(request: web.Request, wanted: Compare, found: Project) -> web.Response:
    """What `to` has that `from` has not: since they parted, or (`straight`) between the two as they are."""
    repository = await opened(request, found)
    old, new = commit_named(repository, wanted.from_), commit_named(repository, wanted.to)
    async with reading(request):
        base = old if wanted.straight else await merge_base(repository, old, new)
        files, _ = await all_differences(request, repository, base, new)
        shas = await commits_between(repository, old, new, MOST_COMPARED)
    shown = await all_commits(request, found, repository, list(reversed(shas)))
    return json_value(
        {
            "commit": shown[-1] if shown else None,
            "commits": shown,
            "diffs": files,
            "compare_timeout": False,
            "compare_same_ref": old == new,
            "web_url": f"{url_of(request, found)}/-/compare/{old}...{new}",
        }
    )


async def all_commits(
    request: web.Request, found: Project, repository: Repository, shas: Sequence[str]
) -> list[dict[str, Any]]:
    """These commits."""
    return await entities.commit_list(repository, shas, url_of(request, found))


async def listed_differences(
    request: web.Request, wanted: Paginated, repository: Repository, old: str | None, new: str
) -> web.Response:
    """The page of the files that differ between two commits."""
    page = offset_page(wanted)
    async with reading(request):
        files, total = await differences(
            repository, old, new, _limits(request), skip=page.offset, limit=page.size
        )
    return await listed(request, wanted, [_diff(file) for file in files], total)


async def all_differences(
    request: web.Request, repository: Repository, old: str | None, new: str
) -> tuple[list[dict[str, Any]], bool]:
    """The files that differ between two commits, and whether there is more than is shown at once; for within
    `reading`."""
    limits = _limits(request)
    files, total = await differences(repository, old, new, limits, limit=limits.diff_max_files)
    overflows = total >= limits.diff_max_files or any(file.collapsed for file in files)
    return [_diff(file) for file in files], overflows


async def number_of_differences(
    request: web.Request, repository: Repository, old: str | None, new: str
) -> str:
    """Of the files that differ, as GitLab writes it: with a plus where there are more than are listed."""
    limits = _limits(request)
    _, total = await differences(
        repository, old, new, attrs.evolve(limits, diff_max_files=limits.diff_max_files + 1), limit=0
    )
    return f"{limits.diff_max_files}+" if total > limits.diff_max_files else str(total)


async def listed_commits(
    request: web.Request, wanted: Paginated, found: Project, repository: Repository, shas: Sequence[str]
) -> web.Response:
    """The page of these commits."""
    shown = await entities.commit_list(repository, on_page(wanted, shas), url_of(request, found))
    return await listed(request, wanted, shown, len(shas))


def _limits(request: web.Request) -> DiffLimits:
    settings = context.settings(request)
    return DiffLimits(
        diff_max_files=settings.diff_max_files,
        diff_max_lines=settings.diff_max_lines,
        diff_max_patch_bytes=settings.diff_max_patch_bytes,
    )


def _diff(file: FileDiff) -> dict[str, Any]:
    return {
        "diff": file.text,
        "collapsed": file.collapsed,
        "too_large": file.too_large,
        "new_path": file.new_path,
        "old_path": file.old_path,
        "a_mode": file.old_mode,
        "b_mode": file.new_mode,
        "new_file": file.added,
        "renamed_file": file.renamed,
        "deleted_file": file.removed,
        "generated_file": None,
    }
