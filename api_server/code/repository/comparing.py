"""`/repository/commits/:sha/diff`, `/repository/compare`, and the same of merge requests: what differs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.code.repository import entities
from api_server.code.repository.access import readable_repository
from api_server.git import commits, references
from api_server.git.commits import commits_between, merge_base
from api_server.git.diffs import FileDiff, differences
from api_server.git.repositories import Repository
from api_server.namespaces.projects.access import Project, project
from api_server.state.listing import Listed
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, offset_page, paginated
from api_server.web.params import parse
from api_server.web.routes import Routes

routes = Routes()

#: A comparison shows no more commits and files.
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


@routes.get("/projects/{id}/repository/commits/{sha}/diff", access=project())
async def show_diff(request: web.Request) -> web.Response:
    """Of a commit against its first parent."""
    wanted = await parse(request, ShowDiff)
    _, repository = await readable_repository(request, wanted.id)
    sha = _commit_id(repository, wanted.sha)
    parents = commits.commit_data(repository, sha)["parent_ids"]
    return await listed_differences(request, wanted, repository, parents[0] if parents else None, sha)


@routes.get("/projects/{id}/repository/compare", access=project())
async def compare(request: web.Request) -> web.Response:
    """What `to` has that `from` has not: since they parted, or (`straight`) between the two as they are."""
    wanted = await parse(request, Compare)
    found, repository = await readable_repository(request, wanted.id)
    old, new = _commit_id(repository, wanted.from_), _commit_id(repository, wanted.to)
    base = old if wanted.straight else await merge_base(repository, old, new)
    files, _ = await asyncio.to_thread(differences, repository, base, new, limit=MOST_COMPARED)
    shas = await commits_between(repository, old, new, MOST_COMPARED)
    shown = [entities.commit(repository, sha, _url(request, found)) for sha in reversed(shas)]
    return json_value(
        {
            "commit": shown[-1] if shown else None,
            "commits": shown,
            "diffs": [_diff(file) for file in files],
            "compare_timeout": False,
            "compare_same_ref": old == new,
            "web_url": f"{_url(request, found)}/-/compare/{old}...{new}",
        }
    )


async def listed_differences(
    request: web.Request, wanted: Paginated, repository: Repository, old: str | None, new: str
) -> web.Response:
    """The page of the files that differ between two commits."""
    page = offset_page(wanted)
    files, total = await asyncio.to_thread(
        differences, repository, old, new, skip=page.offset, limit=page.size
    )
    return await _listed(request, wanted, [_diff(file) for file in files], total)


async def listed_commits(
    request: web.Request, wanted: Paginated, found: Project, repository: Repository, shas: Sequence[str]
) -> web.Response:
    """The page of these commits."""
    page = offset_page(wanted)
    on_page = shas[page.offset : page.offset + page.size]
    shown = [entities.commit(repository, sha, _url(request, found)) for sha in on_page]
    return await _listed(request, wanted, shown, len(shas))


async def _listed(
    request: web.Request, wanted: Paginated, shown: Sequence[dict[str, Any]], total: int
) -> web.Response:
    page = offset_page(wanted)
    more = page.offset + page.size < total
    return await paginated(request, page, Listed(orjson.dumps(shown).decode(), more, None, total))


def _diff(file: FileDiff) -> dict[str, Any]:
    return {
        "diff": file.text,
        "collapsed": False,
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


def _commit_id(repository: Repository, name: str) -> str:
    resolved = references.resolve(repository, name)
    if resolved is None:
        raise not_found("Commit")
    return resolved.commit


def _url(request: web.Request, found: Project) -> str:
    return f"{context.settings(request).base_url}/{found.full_path}"
