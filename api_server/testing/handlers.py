"""`/-/testing/requests` and `/-/testing/failures`: what was asked and answered, and what is to fail."""

from aiohttp import web

from api_server.testing.failures import FAILURES_TO_COME
from api_server.testing.journal import JOURNAL
from api_server.testing.ordering import ordered
from api_server.testing.selecting import no_filter, number_in_path, wanted_entries
from api_server.testing.steering import sent_object
from api_server.web.answers import json_value, no_content


async def list_requests(request: web.Request) -> web.Response:
    """The oldest first; `X-Dropped` says how many older ones have had to make room."""
    journal = request.app[JOURNAL]
    listed = [entry.shown() for entry in journal.matching(wanted_entries(request))]
    return json_value(listed, headers={"X-Dropped": str(journal.dropped)})


async def forget_requests(request: web.Request) -> web.Response:
    request.app[JOURNAL].forget(wanted_entries(request))
    return no_content()


async def order_failure(request: web.Request) -> web.Response:
    failure = request.app[FAILURES_TO_COME].order(ordered(await sent_object(request)))
    return json_value(failure.shown(), status=201)


async def list_failures(request: web.Request) -> web.Response:
    """The oldest first, also those that no request will meet any more: their `left` is 0."""
    return json_value([failure.shown() for failure in request.app[FAILURES_TO_COME].all()])


async def cancel_failures(request: web.Request) -> web.Response:
    no_filter(request)
    request.app[FAILURES_TO_COME].clear()
    return no_content()


async def cancel_failure(request: web.Request) -> web.Response:
    request.app[FAILURES_TO_COME].cancel(number_in_path(request, "failure_id"))
    return no_content()


ROUTES = [
    web.get("/-/testing/requests", list_requests, allow_head=False),
    web.delete("/-/testing/requests", forget_requests),
    web.post("/-/testing/failures", order_failure),
    web.get("/-/testing/failures", list_failures, allow_head=False),
    web.delete("/-/testing/failures", cancel_failures),
    web.delete("/-/testing/failures/{failure_id}", cancel_failure),
]
