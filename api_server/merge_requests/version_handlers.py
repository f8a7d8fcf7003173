"""Versions of merge requests, and the merge requests that a commit belongs to (supporting resources)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import attrs
import orjson
from aiohttp import web
from cachetools import LRUCache

from api_server.code.entities import commit_named
from api_server.code.reading import all_commits, all_differences, number_of_differences, opened, reading
from api_server.git.commits import commits_between, descendants, refs_containing
from api_server.git.diffs import patch_id
from api_server.git.errors import NotFoundError
from api_server.git.ref_names import MERGE_REQUESTS
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import list_queries, queries
from api_server.merge_requests.changes import MERGE_REQUEST_LISTENERS, MergeRequestEvent
from api_server.merge_requests.handlers import MAX_COMMITS, ONE
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.state.database import Transaction
from api_server.web.answers import json_value
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import ApiError
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.routes import Routes
from common.concurrency import TooBusy


def setup(services: Services) -> None:
    """Record a version whenever a merge request is created, or gets other commits or another target."""

    async def listener(transaction: Transaction, event: MergeRequestEvent) -> None:
        if event.action in ("open", "reopen") or event.old_head or "target_branch" in event.changes:
            await queries.record_version(transaction, event.merge_request_id)

    services[MERGE_REQUEST_LISTENERS].append(listener)
    services[SIZES] = LRUCache(maxsize=10_000)


#: Seconds that a list waits for git.
_SECONDS = 3
#: By the two commits of a version; the difference between them never changes.
SIZES = Key[LRUCache[tuple[str | None, str], dict[str, str | None]]]("version_sizes")


async def add_sizes(
    services: Services, actor: Actor | Anonymous, project_id: int, versions: Sequence[dict[str, Any]]
) -> None:
    """Add sizes to these entities; they are null if there was not enough time."""
    cache = services[SIZES]
    pairs = {(version["base_commit_sha"], version["head_commit_sha"]) for version in versions}
    if missing := pairs - cache.keys():
        repository = services[REPOSITORIES].open(project_id)
        with suppress(ApiError, TooBusy, TimeoutError):
            async with asyncio.timeout(_SECONDS), reading(services, actor):
                for base, head in missing:
                    with suppress(NotFoundError):  # a version from before the repository was replaced
                        number = await number_of_differences(services, repository, base, head)
                        cache[base, head] = {
                            "real_size": number,
                            "patch_id_sha": await patch_id(repository, base, head),
                        }
    for version in versions:
        version.update(cache.get((version["base_commit_sha"], version["head_commit_sha"]), {}))


routes = Routes()

VERSIONS = f"{ONE}/versions"


@attrs.frozen(kw_only=True)
class ListVersions(Paginated):
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class OneVersion:
    id: str
    merge_request_iid: int
    version_id: int
    unidiff: bool = False


@routes.get(VERSIONS, access=project(feature="repository"), answers="200 [MergeRequestDiff]")
async def list_versions(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: ListVersions, project: Project
) -> web.Response:
    """List the versions of a merge request, newest first."""
    database = services.database
    page = requested_page(params, queries.VERSIONS)
    merge_request = await queries.find(database, project.id, params.merge_request_iid)
    rows = await queries.list_versions(database, page, merge_request.id)
    versions = orjson.loads(rows.body)
    await add_sizes(services, actor, project.id, versions)
    return await paginated(request, page, attrs.evolve(rows, body=orjson.dumps(versions).decode()))


@routes.get(
    f"{VERSIONS}/{{version_id}}", access=project(feature="repository"), answers="200 MergeRequestDiffFull"
)
async def show_version(
    services: Services, actor: Actor | Anonymous, params: OneVersion, project: Project
) -> web.Response:
    """Show a version with its commits, newest first, and its differences."""
    database = services.database
    merge_request = await queries.find(database, project.id, params.merge_request_iid)
    version = await queries.find_version(database, merge_request.id, params.version_id)
    repository = services[REPOSITORIES].open(project.id)
    async with reading(services, actor):
        shas = await commits_between(repository, version.base_sha, version.head_sha, MAX_COMMITS)
        files, _ = await all_differences(
            services, repository, version.base_sha, version.head_sha, unidiff=params.unidiff
        )
    commits = await all_commits(services, project, repository, shas)
    entity = orjson.loads(await queries.show_version(database, version.id))
    await add_sizes(services, actor, project.id, [entity])
    return json_value(entity | {"commits": commits, "diffs": files})


#: Maximum number of merge requests whose heads contain the commit that are examined; the oldest, since later
#: ones got the commit from their target.
MAX_CANDIDATES = 10_000


@attrs.frozen(kw_only=True)
class ListOfCommit(Paginated):
    id: str
    sha: str
    state: Literal["opened", "closed", "locked", "merged", "all"] = "all"


@routes.get(
    "/projects/{id}/repository/commits/{sha}/merge_requests",
    access=project(feature="repository"),
    answers="200 [MergeRequestBasic]",
)
async def list_of_commit(
    request: web.Request, services: Services, actor: Actor | Anonymous, params: ListOfCommit, project: Project
) -> web.Response:
    """List the merge requests that bring a commit, and the one that it has merged, newest first."""
    page = requested_page(params, list_queries.BY_IDS)
    repository = await opened(services, project)
    sha = commit_named(repository, params.sha)
    database, state = services.database, None if params.state == "all" else params.state
    ids = await _bringing(services, actor, project, repository, sha)
    ids += await list_queries.merged_by(database, project.id, sha)
    rows = await list_queries.list_by_ids(database, page, ids, state)
    return await paginated(request, page, rows)


async def _bringing(
    services: Services, actor: Actor | Anonymous, project: Project, repository: Repository, sha: str
) -> list[int]:
    """Return the ids of merge requests whose head contains the commit and whose base does not."""
    async with reading(services, actor):
        names = await refs_containing(repository, sha, f"{MERGE_REQUESTS}*/head")
        iids = sorted(int(name.split("/")[2]) for name in names)[:MAX_CANDIDATES]
        candidates = await list_queries.candidates(services.database, project.id, iids)
        bases = {candidate.base_sha for candidate in candidates if candidate.base_sha}
        later = await descendants(repository, sha, bases)
    return [candidate.id for candidate in candidates if candidate.base_sha not in later]
