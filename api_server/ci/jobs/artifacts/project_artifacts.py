"""Removing a project's artifacts but those of the newest pipelines of its branches and tags, in the background."""

from api_server.ci.jobs.artifacts import queries
from api_server.ci.jobs.artifacts.queries import Candidate
from api_server.ci.pipelines.transitions import delete_objects
from api_server.git import references
from api_server.git.errors import RepositoryMissingError
from api_server.git.repositories import Repositories, Repository
from api_server.state.database import Database, Transaction
from api_server.state.queue import enqueue

DELETE_PROJECT_ARTIFACTS = "delete_project_artifacts"
#: Artifacts that are looked at in one transaction.
BATCH = 500


async def request_deletion(transaction: Transaction, project_id: int) -> None:
    """Queues the work; what waits already will do."""
    lock = f"{DELETE_PROJECT_ARTIFACTS} {project_id}"
    await enqueue(transaction, DELETE_PROJECT_ARTIFACTS, queueing_lock=lock, project_id=project_id)


async def delete_all_but_the_newest(
    database: Database, repositories: Repositories, project_id: int, *, batch: int = BATCH
) -> None:
    """Batch after batch of what is there now. Of a ref that is gone everything goes; of the others stays what the last
    pipeline that succeeded has left, and what is of the last one that ended or came later."""
    try:
        repository = repositories.open(project_id)
    except RepositoryMissingError:
        return
    until, after = database.now, 0
    while found := await queries.candidates(database, project_id, after=after, until=until, most=batch):
        after = found[-1].id
        chosen = [one.id for one in found if not one.newest or not _is_there(repository, one)]
        if chosen:
            async with database.transaction() as transaction:
                await delete_objects(transaction, await queries.delete_chosen(transaction, chosen))


def _is_there(repository: Repository, candidate: Candidate) -> bool:
    if candidate.ref.startswith("refs/"):  # of a merge request
        return candidate.ref in repository.references
    find = references.tag if candidate.tag else references.branch
    return find(repository, candidate.ref) is not None
