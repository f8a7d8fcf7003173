"""The routes an operator needs on either process: `/-/liveness`, `/-/readiness` and `/-/metrics`."""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

#: A check returns nothing when its part works and raises otherwise.
Check = Callable[[], Awaitable[None]]


def routes(registry: CollectorRegistry, checks: Mapping[str, Check]) -> list[web.RouteDef]:
    """Liveness says that the process answers, readiness that each of `checks` passes (503 otherwise)."""

    async def liveness(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readiness(_request: web.Request) -> web.Response:
        results = {name: await _outcome(check) for name, check in checks.items()}
        failed = any(result["status"] == "failed" for result in results.values())
        return web.json_response(
            {"status": "failed" if failed else "ok", **results}, status=503 if failed else 200
        )

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [
        web.get("/-/liveness", liveness),
        web.get("/-/readiness", readiness),
        web.get("/-/metrics", metrics),
    ]


async def _outcome(check: Check) -> dict[str, str]:
    try:
        await check()
    except Exception as problem:
        return {"status": "failed", "message": type(problem).__name__}
    return {"status": "ok"}
