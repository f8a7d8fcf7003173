"""The background work of the audit trail: there is always a partition for the months to come, and a head that was kept
not long ago."""

import datetime

import structlog
from aiohttp import web

from api_server.audit import heads, queries
from api_server.state.errors import LockNotAvailable
from api_server.state.objects import OBJECTS
from api_server.state.queue import QUEUE
from api_server.web.context import CLOCK, DATABASE, SETTINGS

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

    every = datetime.timedelta(minutes=app[SETTINGS].audit_head_minutes)
    next_head = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    async def keep_head() -> None:
        nonlocal next_head
        if every and app[CLOCK]() >= next_head:
            await heads.keep(app[DATABASE], app[OBJECTS])
            next_head = app[CLOCK]() + every

    app.on_startup.append(make_at_start)
    app[QUEUE].add_periodic("keep_audit_head", "* * * * *", keep_head)
    app[QUEUE].add_periodic("make_audit_partitions", "17 3 * * *", make_partitions)
