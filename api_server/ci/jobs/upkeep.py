"""Background work of jobs: logs become objects, artifacts expire, jobs whose runner is gone go on without it."""

from aiohttp import web

from api_server.ci.jobs import lost
from api_server.ci.jobs.artifacts import project_artifacts
from api_server.ci.jobs.artifacts import queries as artifacts
from api_server.ci.jobs.logs import queries as logs
from api_server.ci.jobs.logs.sealing import seal
from api_server.ci.jobs.logs.storage import logs_of
from api_server.ci.pipelines import transitions
from api_server.ci.pipelines.job_data import DELETE_OBJECTS, delete_objects
from api_server.git.repositories import REPOSITORIES
from api_server.state import backups
from api_server.state.database import Database
from api_server.state.objects import OBJECTS
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE, SETTINGS
from api_server.zip_files import with_indices

_EXPIRED_AT_A_TIME = 200


def setup(app: web.Application) -> None:
    queue = app[QUEUE]

    async def seal_log(job_id: int) -> None:
        await seal(logs_of(app), job_id)

    async def seal_forgotten_logs() -> None:
        for job_id in await logs.unsealed(app[DATABASE]):
            await seal(logs_of(app), job_id)

    async def delete_bytes(keys: list[str]) -> None:
        backups.not_during(app[REPOSITORIES].root)
        await app[OBJECTS].delete(with_indices(keys))

    async def expire() -> None:
        await expire_artifacts(app[DATABASE])

    async def look_after_runners() -> None:
        settings = app[SETTINGS]
        await lost.look(app[DATABASE], settings.runner_timeout, settings.hand_out_timeout)

    async def delete_artifacts(project_id: int) -> None:
        await project_artifacts.delete_all_but_the_newest(app[DATABASE], app[REPOSITORIES], project_id)

    queue.add(project_artifacts.DELETE_PROJECT_ARTIFACTS, delete_artifacts, attempts=8)
    queue.add(transitions.SEAL_LOG, seal_log, attempts=8)
    queue.add(DELETE_OBJECTS, delete_bytes, attempts=10)
    queue.add_periodic("seal_forgotten_logs", "*/10 * * * *", seal_forgotten_logs)
    queue.add_periodic("expire_artifacts", "*/5 * * * *", expire)
    queue.add_periodic("look_after_runners", f"* * * * * */{lost.EVERY_SECONDS}", look_after_runners)


async def expire_artifacts(database: Database) -> None:
    """Removes all artifacts whose time is over."""
    while True:
        async with database.transaction() as transaction:
            keys = await artifacts.delete_expired(transaction, _EXPIRED_AT_A_TIME)
            await delete_objects(transaction, keys)
        if len(keys) < _EXPIRED_AT_A_TIME:
            return
