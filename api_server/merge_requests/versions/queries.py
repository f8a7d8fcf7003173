"""Statements about versions of merge requests."""

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query

ENTITIES = read_sql("api_server.merge_requests.versions")

VERSIONS = Listing(
    ENTITIES["version"],
    """
    SELECT merge_request_versions.* FROM merge_request_versions
    WHERE merge_request_versions.merge_request_id = %(merge_request_id)s
    """,
)


async def list_versions(database: Executor, page: Page, merge_request_id: int) -> Listed:
    return await VERSIONS.read(database, page, merge_request_id=merge_request_id)


@attrs.frozen
class Version:
    """`base_sha` is None for two histories without a common ancestor."""

    id: int
    base_sha: str | None
    head_sha: str


FIND = Query(
    """
    SELECT merge_request_versions.id, merge_request_versions.base_sha, merge_request_versions.head_sha
    FROM merge_request_versions
    WHERE merge_request_versions.merge_request_id = %(merge_request_id)s
        AND merge_request_versions.id = %(version_id)s
    """,
    Version,
)


async def find(database: Executor, merge_request_id: int, version_id: int) -> Version:
    """Raises NotFound."""
    return await database.one(FIND, merge_request_id=merge_request_id, version_id=version_id)


SHOW = one(
    ENTITIES["version"],
    "SELECT merge_request_versions.* FROM merge_request_versions WHERE merge_request_versions.id = %(id)s",
)


async def show(database: Executor, version_id: int) -> str:
    return await database.entity(SHOW, id=version_id)


RECORD = """
    INSERT INTO merge_request_versions (merge_request_id, head_sha, start_sha, base_sha, created_at)
    SELECT merge_requests.id, merge_requests.head_sha, merge_requests.start_sha, merge_requests.base_sha, %(now)s
    FROM merge_requests WHERE merge_requests.id = %(id)s AND NOT EXISTS (
        SELECT FROM (
            SELECT newest.* FROM merge_request_versions newest WHERE newest.merge_request_id = merge_requests.id
            ORDER BY newest.id DESC LIMIT 1) newest
        WHERE (newest.head_sha, newest.start_sha, newest.base_sha)
            IS NOT DISTINCT FROM (merge_requests.head_sha, merge_requests.start_sha, merge_requests.base_sha))
"""


async def record(transaction: Transaction, merge_request_id: int) -> None:
    """What the merge request is about now, unless the newest version says so."""
    await transaction.run(RECORD, id=merge_request_id)
