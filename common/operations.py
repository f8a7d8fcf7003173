"""The routes for operators on either process: `/-/liveness`, `/-/readiness` and `/-/metrics`.

Liveness is no secret, and the edge asks the service for it. The other two say more and cost more: they are only for
clients in `operations_networks`, and only on `operations_port` if there is one.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from common import workers
from common.client_address import PRIVATE_NETWORKS, client_of, is_in, networks
from common.client_settings import ClientSettings
from common.lifecycle import SHUTDOWN, Check, Degraded, Failed
from common.loop_watch import LONGEST, LOOP_WATCH, LoopWatch, longest_step
from common.workers import Figures, supervisor_line

LIVENESS = "/-/liveness"
#: The routes that are requested again and again.
ROUTES = (LIVENESS, "/-/readiness", "/-/metrics")
#: Seconds after which a check has failed.
CHECK_SECONDS = 5.0
#: Seconds for which readiness waits for other workers.
OTHERS_SECONDS = 0.5
#: Statuses of a check, from best to worst.
_WORSE = ("ok", "degraded", "failed")
#: A function that returns the process's metrics for its supervisor. It is called in a thread.
METRICS: web.AppKey[Callable[[], Figures]] = web.AppKey("counted", Callable[[], Figures])  # type: ignore[arg-type]
_ROUTES = web.AppKey("operations_routes", tuple[web.RouteDef, ...])
#: Fields that proxies add. If the sender of one is not a trusted proxy, the request may come from anybody.
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")


def setup(
    app: web.Application,
    settings: ClientSettings,
    registry: CollectorRegistry,
    checks: Mapping[str, Check],
    *,
    shares_port: bool = False,
    read_metrics: Callable[[], Awaitable[None]] | None = None,
    summed: Collection[str] = (),
) -> None:
    """Add the routes to the application.

    Readiness shows the result of each of `checks`, and as `status` the worst of them. "failed" is 503, and so is
    "stopping" once the application is shutting down. Metrics are those of this process or of all workers of one
    supervisor, with counters and the gauges in `summed` added up. They are not served if the process `shares_port`
    without a supervisor: requests would reach one of the processes by chance. `read_metrics` is awaited before.
    """

    async def readiness(_request: web.Request) -> web.Response:
        if app[SHUTDOWN].has_begun:
            return web.json_response({"status": "stopping"}, status=503)
        all_checks: dict[str, Check] = {**checks, "event_loop": functools.partial(_longest_step, app)}
        outcomes = await asyncio.gather(*map(_outcome, all_checks.values()))
        results = dict(zip(all_checks, outcomes, strict=True))
        status = max((result["status"] for result in results.values()), key=_WORSE.index, default="ok")
        return web.json_response({"status": status, **results}, status=503 if status == "failed" else 200)

    async def metrics(_request: web.Request) -> web.Response:
        if read_metrics is not None:
            await read_metrics()
        try:
            text = await _metrics(registry, all_summed)
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="The supervisor does not answer.\n") from None
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    watch = app[LOOP_WATCH] = LoopWatch(registry)
    all_summed = workers.SUMMED.union(summed)
    app[METRICS] = lambda: workers.addable_figures(registry.collect(), all_summed) | watch.longest()
    ready = web.get("/-/readiness", _for_operators(settings, readiness))
    metrics_route = web.get("/-/metrics", _for_operators(settings, metrics))
    app[_ROUTES] = (ready, metrics_route)
    app.add_routes([web.get(LIVENESS, _liveness)])
    if not settings.operations_port:
        app.add_routes([ready] if shares_port else [ready, metrics_route])


async def _longest_step(app: web.Application) -> str | None:
    """Return the longest step of all workers' event loops in the last hour in one sentence."""
    figures, supervisor = [app[LOOP_WATCH].longest()], supervisor_line()
    if supervisor is not None:
        with contextlib.suppress(TimeoutError):  # one of the workers may be blocked right now
            async with asyncio.timeout(OTHERS_SECONDS):
                figures += await supervisor.others(await asyncio.to_thread(app[METRICS]))
    return longest_step(figures)


async def _metrics(registry: CollectorRegistry, summed: Collection[str]) -> bytes:
    """Return the metrics of this process, or of all workers. Raise `TimeoutError`."""
    supervisor = supervisor_line()
    if supervisor is None:
        return await asyncio.to_thread(generate_latest, registry)
    families = await asyncio.to_thread(lambda: list(registry.collect()))
    addable = workers.addable_figures(families, summed)
    others = await supervisor.others(addable)
    sums = workers.sum_figures([addable, *others])
    sums.pop(LONGEST, None)
    return await asyncio.to_thread(generate_latest, _Added(families, sums))


class _Added(Collector):
    """A collector of metrics in which some are replaced by sums."""

    def __init__(self, families: list[Metric], sums: Figures) -> None:
        self._families, self._sums = families, sums

    def collect(self) -> Iterable[Metric]:
        yield from (family for family in self._families if family.name not in self._sums)
        for name, (kind, documentation, samples) in self._sums.items():
            family = Metric(name, documentation, kind)
            for sample, labels, value in samples:
                family.add_sample(sample, labels, value)
            yield family


def application(app: web.Application) -> web.Application:
    """Return the application for `operations_port`: these routes of `app`."""
    app_of_operators = web.Application()
    app_of_operators.add_routes([web.get(LIVENESS, _liveness), *app[_ROUTES]])
    return app_of_operators


async def starting(request: web.BaseRequest) -> web.Response:
    """Answer everything while the process is starting."""
    if request.path == LIVENESS:
        answer = await _liveness(request)
    else:
        answer = web.json_response({"status": "starting"}, status=503, headers={"Retry-After": "5"})
    answer.force_close()  # another application reads the next request
    return answer


async def _liveness(_request: web.BaseRequest) -> web.Response:
    return web.json_response({"status": "ok"})


def _for_operators(settings: ClientSettings, handler: Handler) -> Handler:
    """Answer 404 to everybody who is no operator."""

    async def answer(request: web.Request) -> web.StreamResponse:
        proxies = networks(settings.trusted_proxies)
        allowed = networks(settings.operations_networks or PRIVATE_NETWORKS)
        speaks_for_others = any(name in request.headers for name in _FORWARDED)
        if speaks_for_others and not is_in(proxies, _peer(request)):
            raise web.HTTPNotFound
        if not is_in(allowed, client_of(proxies, request)):
            raise web.HTTPNotFound
        return await handler(request)

    return answer


def _peer(request: web.Request) -> str:
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


async def _outcome(check: Check) -> dict[str, str]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            message = await check()
    except Degraded as problem:
        return {"status": "degraded", "message": str(problem)}
    except Failed as problem:
        return {"status": "failed", "message": str(problem)}
    except Exception as problem:
        return {"status": "failed", "message": type(problem).__name__}
    return {"status": "ok"} if message is None else {"status": "ok", "message": message}
