"""Which other sites may read answers of the API: aiohttp-cors decides, where there is anything to decide."""

import aiohttp_cors
from aiohttp import hdrs, web


def setup(app: web.Application) -> None:
    """Every site may ask every route that has been registered."""
    options = aiohttp_cors.ResourceOptions(
        expose_headers="*", allow_headers="*", allow_methods="*", max_age=600
    )
    cors = aiohttp_cors.setup(app, defaults={"*": options})
    for resource in app.router.resources():
        cors.add(resource)
    # It looks up the route's options first, and then that programs, which most clients are, have sent no origin.
    add_fields = app.on_response_prepare.pop()

    async def answer_sites(request: web.Request, response: web.StreamResponse) -> None:
        if hdrs.ORIGIN in request.headers:
            await add_fields(request, response)

    app.on_response_prepare.append(answer_sites)
