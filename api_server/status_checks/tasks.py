"""What status checks do by themselves: follow merge requests, send deliveries, time out, forget."""

import datetime
import random
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from api_server.code.branches.changes import END_OF_PROTECTION_LISTENERS
from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS
from api_server.outbound.client import OUTGOING_SESSION
from api_server.state.queue import QUEUE
from api_server.status_checks import delivery_queries, results, services
from api_server.status_checks.dispatcher import Dispatcher
from api_server.web.context import DATABASE, SETTINGS, VAULT
from common.lifecycle import BACKGROUND, SHUTDOWN

DISPATCHER = web.AppKey("dispatcher", Dispatcher)
#: Numbers from [0, 1) for the jitter of retries; tests choose them.
RANDOM: web.AppKey[Callable[[], float]] = web.AppKey("random", Callable[[], float])  # type: ignore[arg-type]

#: Deliveries and their attempts are kept this long.
KEPT_FOR = datetime.timedelta(days=90)


def setup(app: web.Application) -> None:
    app[RANDOM] = random.random
    app[MERGE_REQUEST_LISTENERS].append(delivery_queries.queue_event)
    app[END_OF_PROTECTION_LISTENERS].append(services.follow_end_of_protection)

    async def forget_deliveries() -> None:
        async with app[DATABASE].transaction() as transaction:
            await delivery_queries.forget(transaction, transaction.now - KEPT_FOR)

    async def time_out_status_checks() -> None:
        if seconds := app[SETTINGS].status_check_timeout:
            async with app[DATABASE].transaction() as transaction:
                await results.time_out(transaction, seconds)

    app[QUEUE].add_periodic("forget_deliveries", "23 3 * * *", forget_deliveries)
    app[QUEUE].add_periodic(
        "time_out_status_checks",
        "* * * * *",
        time_out_status_checks,
        begun_here=app[SETTINGS].status_check_timeout > 0,
    )


async def deliveries(app: web.Application) -> AsyncIterator[None]:
    """Sends what is queued while the application runs, in processes that do background work."""
    dispatcher = Dispatcher(app[DATABASE], app[OUTGOING_SESSION], app[VAULT], app[RANDOM])
    app[DISPATCHER] = dispatcher
    if not app[SETTINGS].work:
        yield
        return
    async with dispatcher.working(app[BACKGROUND], app[SHUTDOWN]):
        yield
