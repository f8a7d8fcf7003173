"""`/repository/commits/:sha/merge_requests`: which merge requests a commit belongs to."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository.access import opened
from api_server.code.repository.finding import commit_named
from api_server.git.commits import descendants, refs_containing
from api_server.git.ref_names import MERGE_REQUESTS
from api_server.git.repositories import Repository
from api_server.merge_requests import commit_queries
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.routes import Routes

routes = Routes()

#: So many merge requests are looked at whose heads have the commit; the oldest, since those of later ones have it from
#: their target.
MOST_CANDIDATES = 10_000


@attrs.frozen(kw_only=True)
class ListOfCommit(Paginated):
    id: str
    sha: str
    state: Literal["opened", "closed", "locked", "merged", "all"] = "all"


@routes.get("/projects/{id}/repository/commits/{sha}/merge_requests", access=project(opens="repository"))
async def list_of_commit(request: web.Request, wanted: ListOfCommit, found: Project) -> web.Response:
    """Those that bring it, and the one that it has merged, the newest first."""
    page = wanted_page(wanted, commit_queries.LISTING)
    repository = await opened(request, found)
    sha = commit_named(repository, wanted.sha)
    database, state = context.database(request), None if wanted.state == "all" else wanted.state
    ids = await _bringing(request, found, repository, sha)
    ids += await commit_queries.merged_by(database, found.id, sha)
    listed = await commit_queries.list_by_ids(database, page, ids, state)
    return await paginated(request, page, listed)


async def _bringing(request: web.Request, found: Project, repository: Repository, sha: str) -> list[int]:
    """Ids of merge requests whose head has the commit, and whose base has not."""
    async with reading(request):
        names = await refs_containing(repository, sha, f"{MERGE_REQUESTS}*/head")
        iids = sorted(int(name.split("/")[2]) for name in names)[:MOST_CANDIDATES]
        candidates = await commit_queries.candidates(context.database(request), found.id, iids)
        bases = {one.base_sha for one in candidates if one.base_sha}
        later = await descendants(repository, sha, bases)
    return [one.id for one in candidates if one.base_sha not in later]
