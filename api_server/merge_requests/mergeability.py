"""Whether a merge request can be merged: asked of git where a branch has moved since that was last known."""

from contextlib import suppress

from api_server.git.commits import commits_between, merge_base
from api_server.git.errors import StorageUnavailableError
from api_server.git.references import branch
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import head_queries
from api_server.merge_requests.heads import mergeability
from api_server.merge_requests.queries import MergeRequest
from api_server.web.context import DATABASE, App

#: Counting stops here.
MOST_DIVERGED = 1000


async def check_mergeability(app: App, found: MergeRequest) -> None:
    """Asks git, where that has not been done since a branch moved. Raises `StorageUnavailableError`."""
    if found.state != "opened" or found.mergeability != "unchecked":
        return
    repository = app[REPOSITORIES].open(found.project_id)
    source, target = branch(repository, found.source_branch), branch(repository, found.target_branch)
    if source is None or target is None:
        answer, fast_forward = "no_commits", False
    else:
        base_sha = await merge_base(repository, target.commit, found.head_sha)
        answer = await mergeability(repository, found.head_sha, target.commit, base_sha)
        fast_forward = base_sha == target.commit
    # Not one of a request's own: nothing is decided by it.
    async with app[DATABASE].transaction() as transaction:
        await head_queries.set_mergeability(transaction, found, answer, fast_forward=fast_forward)


async def check_shown(app: App, found: MergeRequest) -> None:
    """`check_mergeability` for who only looks: it stays unchecked on a full disk."""
    with suppress(StorageUnavailableError):
        await check_mergeability(app, found)


async def diverged_commits(repository: Repository, found: MergeRequest) -> int:
    """How many commits the target has that the source has not; 0 without a target."""
    target = branch(repository, found.target_branch)
    if target is None:
        return 0
    return len(await commits_between(repository, found.head_sha, target.commit, MOST_DIVERGED))
