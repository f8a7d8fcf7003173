"""The background work of the audit trail: there is always a partition for the months to come, and a head that was kept
not long ago."""

import datetime

import attrs
import structlog
from aiohttp import web

from api_server.audit import heads, queries
from api_server.state.errors import LockNotAvailable
from api_server.state.objects import OBJECTS
from api_server.state.queue import QUEUE
from api_server.web.context import CLOCK, DATABASE, SETTINGS

log = structlog.get_logger(__name__)

MONTHS_AHEAD = 3


@attrs.define
class HeadKept:
    """When this process has last kept a head of the trail."""

    at: datetime.datetime | None = None

    def forget(self) -> None:
        self.at = None


HEAD_KEPT = web.AppKey("head_kept", HeadKept)


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
    kept = app[HEAD_KEPT] = HeadKept()

    async def keep_head() -> None:
        if every and (kept.at is None or app[CLOCK]() >= kept.at + every):
            await heads.keep(app[DATABASE], app[OBJECTS])
            kept.at = app[CLOCK]()

    app.on_startup.append(make_at_start)
    app[QUEUE].add_periodic("keep_audit_head", "* * * * *", keep_head)
    app[QUEUE].add_periodic("make_audit_partitions", "17 3 * * *", make_partitions)
