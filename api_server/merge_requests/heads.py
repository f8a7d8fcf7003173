"""What git says about the two branches of a merge request."""

from typing import Any, Literal

import attrs
import orjson

from api_server.git.commits import commit_data, merge_base
from api_server.git.new_commits import merge_conflicts
from api_server.git.references import branch
from api_server.git.repositories import Repository
from api_server.git.trees import can_be_merged

Mergeability = Literal["mergeable", "conflict", "no_commits"]


class MissingBranchError(Exception):
    """The text names the branch that does not exist."""


@attrs.frozen(kw_only=True)
class Heads:
    """Where the branches stand (full SHAs) and whether git could merge them. `base_sha` is None for two histories
    without a common ancestor; `last_commit` is the source's, as deliveries show it."""

    head_sha: str
    start_sha: str
    base_sha: str | None
    last_commit: dict[str, Any]
    mergeability: Mergeability

    @property
    def columns(self) -> dict[str, Any]:
        """As the row of a merge request has them."""
        return attrs.asdict(self) | {
            "last_commit": orjson.dumps(self.last_commit).decode(),
            "fast_forward": self.base_sha == self.start_sha,
        }


async def read_heads(repository: Repository, source_branch: str, target_branch: str) -> Heads:
    """Raises `MissingBranchError`."""
    source, target = branch(repository, source_branch), branch(repository, target_branch)
    if source is None:
        raise MissingBranchError(f'Source branch "{source_branch}" does not exist')
    if target is None:
        raise MissingBranchError(f'Target branch "{target_branch}" does not exist')
    base_sha = await merge_base(repository, target.commit, source.commit)
    return Heads(
        head_sha=source.commit,
        start_sha=target.commit,
        base_sha=base_sha,
        last_commit=_last_commit(repository, source.commit),
        mergeability=await mergeability(repository, source.commit, target.commit, base_sha),
    )


async def mergeability(
    repository: Repository, head_sha: str, target_sha: str, base_sha: str | None
) -> Mergeability:
    """Whether the commit `head_sha` could be merged into `target_sha`, of which `base_sha` is the merge base. What has
    more files than are merged here has to be merged by hand, as what conflicts."""
    if base_sha == head_sha:
        return "no_commits"
    if not await can_be_merged(repository, head_sha, target_sha, base_sha):
        return "conflict"
    return "conflict" if await merge_conflicts(repository, head_sha, target_sha) else "mergeable"


def _last_commit(repository: Repository, sha: str) -> dict[str, Any]:
    commit = commit_data(repository, sha)
    return {
        "id": commit["id"],
        "message": commit["message"],
        "title": commit["title"],
        "timestamp": commit["committed_date"],
        "author": {"name": commit["author_name"], "email": commit["author_email"]},
    }
