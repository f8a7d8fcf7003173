"""The background work of the audit trail: there is always a partition for the months to come."""

import structlog
from aiohttp import web

from api_server.audit import queries
from api_server.state.errors import LockNotAvailable
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE

log = structlog.get_logger(__name__)

MONTHS_AHEAD = 3


def setup(app: web.Application) -> None:
    async def make_partitions() -> None:
        async with app[DATABASE].transaction() as transaction:
            if made := await queries.make_partitions(transaction, MONTHS_AHEAD):
                log.info("partitions of the audit trail made", partitions=made)

    async def make_at_start(_app: web.Application) -> None:
        try:
            await make_partitions()
        except LockNotAvailable:
            log.warning("partitions of the audit trail are made later, the table is in use")

    app.on_startup.append(make_at_start)
    app[QUEUE].add_periodic("make_audit_partitions", "17 3 * * *", make_partitions)
