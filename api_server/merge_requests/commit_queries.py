"""Statements about the merge requests that a commit belongs to."""

from collections.abc import Sequence

import attrs

from api_server.merge_requests.queries import ENTITIES
from api_server.state.database import Executor
from api_server.state.listing import Listed, Listing, Page
from api_server.state.statements import Query


@attrs.frozen
class Candidate:
    """A merge request whose head has the commit, and where it parted from its target."""

    id: int
    base_sha: str | None


CANDIDATES = Query(
    """
    SELECT id, base_sha FROM merge_requests
    WHERE project_id = %(project_id)s AND iid = ANY (%(iids)s::integer[])
    """,
    Candidate,
)


@attrs.frozen
class Merged:
    id: int


MERGED_BY = Query(
    "SELECT id FROM merge_requests WHERE project_id = %(project_id)s AND merge_commit_sha = %(sha)s", Merged
)


async def merged_by(database: Executor, project_id: int, sha: str) -> list[int]:
    """What was merged by this very commit."""
    return [row.id for row in await database.rows(MERGED_BY, project_id=project_id, sha=sha)]


async def candidates(database: Executor, project_id: int, iids: Sequence[int]) -> list[Candidate]:
    return await database.rows(CANDIDATES, project_id=project_id, iids=list(iids))


LISTING = Listing(
    ENTITIES["merge_request"],
    """
    SELECT merge_requests.* FROM merge_requests
    WHERE merge_requests.id = ANY (%(ids)s::bigint[])
        AND (%(state)s::text IS NULL OR merge_requests.state = %(state)s)
    """,
)


async def list_by_ids(database: Executor, page: Page, ids: Sequence[int], state: str | None) -> Listed:
    return await LISTING.read(database, page, ids=list(ids), state=state)
