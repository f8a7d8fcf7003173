"""Bodies that flow to the client as fast as it takes them: the whole, or the part that it asked for."""

from collections.abc import AsyncIterator, Mapping

from aiohttp import web

from api_server.web.ranges import Part


async def send_part(
    request: web.Request, chunks: AsyncIterator[bytes], part: Part, headers: Mapping[str, str]
) -> web.StreamResponse:
    """`chunks` are that part's bytes, of which HEAD takes none; `headers` are those of the whole."""
    response = web.StreamResponse(status=part.status, headers={**headers, **part.headers})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    async for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


async def cut(chunks: AsyncIterator[bytes], part: Part) -> AsyncIterator[bytes]:
    """That part of what `chunks` are together, which are read no further than to its end."""
    position = 0
    async for chunk in chunks:
        wanted = chunk[max(0, part.start - position) : max(0, part.end - position)]
        position += len(chunk)
        if wanted:
            yield wanted
        if position >= part.end:
            break
