"""The state of the two branches of a merge request in git."""

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
    """A branch does not exist; the text names it."""


@attrs.frozen(kw_only=True)
class Heads:
    """The heads of the branches (full SHAs) and whether git could merge them. `base_sha` is None for two
    histories without a common ancestor; `last_commit` is the source's, in the form of webhook deliveries."""

    head_sha: str
    start_sha: str
    base_sha: str | None
    last_commit: dict[str, Any]
    mergeability: Mergeability

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a merge request's row."""
        return attrs.asdict(self) | {
            "last_commit": orjson.dumps(self.last_commit).decode(),
            "fast_forward": self.base_sha == self.start_sha,
        }


async def read_heads(repository: Repository, source_branch: str, target_branch: str) -> Heads:
    """Read the heads of two branches. Raise `MissingBranchError`."""
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
    """Return whether the commit `head_sha` could be merged into `target_sha`; `base_sha` is their merge base.
    A merge request with too many files counts as a conflict: it has to be merged by hand."""
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
