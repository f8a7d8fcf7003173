"""Background work for jobs: logs become objects, artifacts expire, old data is removed, and jobs whose runner
has disappeared end.

A runner's silence counts only while the service was able to listen. After an outage of the service or its
database, runners get the full time to report before a job that they may still be running is given to another.
"""

import datetime
from collections.abc import AsyncIterator

import attrs
import structlog

from api_server.ci.jobs import artifact_queries, log_queries, upkeep_queries
from api_server.ci.jobs.artifact_queries import Candidate
from api_server.ci.jobs.logs import logs_of, seal
from api_server.ci.pipelines import job_queries, transitions
from api_server.ci.pipelines.transitions import DELETE_OBJECTS, delete_job_data, delete_objects
from api_server.git import references
from api_server.git.errors import RepositoryMissingError
from api_server.git.repositories import REPOSITORIES, Repositories, Repository
from api_server.services import Services
from api_server.state import audit_trail, backups
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import Database, Transaction
from api_server.state.queue import enqueue
from api_server.zip_files import with_indices

log = structlog.get_logger(__name__)

#: Seconds between two checks.
LOOK_EVERY_SECONDS = 15
#: After a gap this long between checks, the service has not been listening.
LISTENING_GAP = datetime.timedelta(seconds=3 * LOOK_EVERY_SECONDS)
#: Runners end jobs at their timeout themselves; the service does so this much later.
TIMEOUT_GRACE = datetime.timedelta(seconds=60)
#: Maximum number of jobs that are taken back in one check.
_TAKEN_BACK_AT_A_TIME = 200


async def look_for_lost_jobs(database: Database, runner_timeout: float, hand_out_timeout: float) -> None:
    """Fail the jobs whose runner has been silent for `runner_timeout` seconds, or that run for too long.

    Take back the jobs that no runner has acknowledged within `hand_out_timeout` seconds. Write nothing while
    no runner has a job.
    """
    if not await upkeep_queries.any_running(database):
        return
    async with database.transaction() as transaction:
        listening_since = await upkeep_queries.record_check(transaction, LISTENING_GAP)

    def silent_since(allowed: datetime.timedelta) -> datetime.datetime | None:
        """Return the moment since which a silence is too long, or None if the service has not been listening
        for that long."""
        moment = transaction.now - allowed
        return moment if listening_since <= moment else None

    lost = await upkeep_queries.lost_jobs(
        database,
        silent_since=silent_since(datetime.timedelta(seconds=runner_timeout)),
        over_since=silent_since(TIMEOUT_GRACE),
    )
    for job in lost:
        async with database.transaction() as transaction:
            moved = await transitions.advance(transaction, job.id, "drop", failure_reason=job.reason)
        if moved is not None:
            log.info("a job's runner is gone", job_id=job.id, reason=job.reason)
    since = silent_since(datetime.timedelta(seconds=hand_out_timeout))
    if since is not None:
        await _take_back(database, since)


async def _take_back(database: Database, since: datetime.datetime) -> None:
    """Take each of these jobs back once; a job that is not acknowledged a second time fails."""
    for job_id in await upkeep_queries.unacknowledged_jobs(database, since, _TAKEN_BACK_AT_A_TIME):
        async with database.transaction() as transaction:
            await job_queries.lock_pipeline_of(transaction, job_id)
            job = await upkeep_queries.lock_unacknowledged(transaction, job_id, since)
            if job is None:
                continue
            await transitions.advance(
                transaction, job_id, job.event, failure_reason="stuck_or_timeout_failure"
            )
        log.warning("a job's runner never contacted the server", job_id=job_id, outcome=job.event)


#: Jobs whose data is removed in one transaction.
REMOVAL_BATCH = 100


@attrs.frozen
class RemovedBatch:
    """The size of a batch: the number of jobs and the total bytes."""

    jobs: int
    bytes: int


async def remove_before(
    database: Database, moment: datetime.datetime, *, dry_run: bool
) -> AsyncIterator[RemovedBatch]:
    """Yield batches of the jobs that finished before `moment`; each batch has been removed when it is
    yielded.

    Each batch is one transaction, so the removal can be stopped at any time, and another run continues with
    the rest.
    """
    after = 0
    while ids := await upkeep_queries.old_jobs(database, after=after, before=moment, limit=REMOVAL_BATCH):
        after = ids[-1]
        size = await upkeep_queries.size_of_data(database, ids)
        if not dry_run:
            async with database.transaction() as transaction:
                await delete_job_data(transaction, *ids)
                await audit_trail.record(
                    transaction,
                    "job_data_removed",
                    SYSTEM,
                    INSTANCE.target(None, "logs and artifacts"),
                    before=moment.isoformat(),
                    jobs=len(ids),
                )
        yield RemovedBatch(len(ids), size)


DELETE_PROJECT_ARTIFACTS = "delete_project_artifacts"
#: Artifacts that are checked in one transaction.
DELETION_BATCH = 500


async def request_artifact_deletion(transaction: Transaction, project_id: int) -> None:
    """Queue the deletion, unless one is queued already."""
    lock = f"{DELETE_PROJECT_ARTIFACTS} {project_id}"
    await enqueue(transaction, DELETE_PROJECT_ARTIFACTS, queueing_lock=lock, project_id=project_id)


async def delete_all_but_the_newest(
    database: Database, repositories: Repositories, project_id: int, *, batch: int = DELETION_BATCH
) -> None:
    """Delete, batch by batch, the current artifacts of the project, except the newest of each ref.

    For a deleted ref, delete all of them. For other refs keep those of the last successful pipeline, of the
    last pipeline that ended, and of later ones.
    """
    try:
        repository = repositories.open(project_id)
    except RepositoryMissingError:
        return
    until, after = database.now, 0
    while candidates := await artifact_queries.candidates(
        database, project_id, after=after, until=until, limit=batch
    ):
        after = candidates[-1].id
        chosen = [
            candidate.id
            for candidate in candidates
            if not candidate.newest or not _ref_exists(repository, candidate)
        ]
        if chosen:
            async with database.transaction() as transaction:
                await delete_objects(transaction, await artifact_queries.delete_chosen(transaction, chosen))


def _ref_exists(repository: Repository, candidate: Candidate) -> bool:
    if candidate.ref.startswith("refs/"):  # the ref of a merge request
        return candidate.ref in repository.references
    find = references.tag if candidate.tag else references.branch
    return find(repository, candidate.ref) is not None


_EXPIRED_AT_A_TIME = 200


def setup(services: Services) -> None:
    queue = services.queue

    async def seal_log(job_id: int) -> None:
        await seal(logs_of(services), job_id)

    async def seal_forgotten_logs() -> None:
        for job_id in await log_queries.unsealed(services.database):
            await seal(logs_of(services), job_id)

    async def delete_bytes(keys: list[str]) -> None:
        backups.not_during(services[REPOSITORIES].root)
        await services.objects.delete(with_indices(keys))

    async def expire() -> None:
        await expire_artifacts(services.database)

    async def look_after_runners() -> None:
        settings = services.settings
        await look_for_lost_jobs(services.database, settings.runner_timeout, settings.hand_out_timeout)

    async def delete_artifacts(project_id: int) -> None:
        await delete_all_but_the_newest(services.database, services[REPOSITORIES], project_id)

    queue.add(DELETE_PROJECT_ARTIFACTS, delete_artifacts, attempts=8)
    queue.add(transitions.SEAL_LOG, seal_log, attempts=8)
    queue.add(DELETE_OBJECTS, delete_bytes, attempts=10)
    queue.add_periodic("seal_forgotten_logs", "*/10 * * * *", seal_forgotten_logs)
    queue.add_periodic("expire_artifacts", "*/5 * * * *", expire)
    queue.add_periodic("look_after_runners", f"* * * * * */{LOOK_EVERY_SECONDS}", look_after_runners)


async def expire_artifacts(database: Database) -> None:
    """Remove all artifacts that have expired."""
    while True:
        async with database.transaction() as transaction:
            keys = await artifact_queries.delete_expired(transaction, _EXPIRED_AT_A_TIME)
            await delete_objects(transaction, keys)
        if len(keys) < _EXPIRED_AT_A_TIME:
            return
