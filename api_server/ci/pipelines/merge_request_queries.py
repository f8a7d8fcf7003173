"""Statements about merge requests, as far as their pipelines need them."""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen(kw_only=True)
class MergeRequest:
    """A merge request that pipelines are made for, as it is by now; `base_sha` is where its branches part."""

    id: int
    iid: int
    project_id: int
    project_path: str
    title: str
    description: str
    draft: bool
    labels: list[str]
    source_branch: str
    source_protected: bool
    target_branch: str
    target_protected: bool
    state: str
    mergeability: str
    head_sha: str
    base_sha: str | None


FIND_MERGE_REQUEST = Query(
    """
    SELECT m.id, m.iid, m.project_id, projects.full_path AS project_path, m.title, m.description,
        is_draft(m.title) AS draft, m.labels,
        m.source_branch, is_protected_branch(m.project_id, m.source_branch) AS source_protected,
        m.target_branch, is_protected_branch(m.project_id, m.target_branch) AS target_protected,
        m.state, m.mergeability, m.head_sha, m.base_sha
    FROM merge_requests m JOIN projects ON projects.id = m.project_id
    WHERE m.id = %(id)s
    """,
    MergeRequest,
)


async def find_merge_request(database: Executor, merge_request_id: int | None) -> MergeRequest | None:
    """None without an id, and where it has gone."""
    return await database.row(FIND_MERGE_REQUEST, id=merge_request_id)
