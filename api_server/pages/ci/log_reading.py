"""Which part of a job's log a page shows, read and rendered: the end of it, and then what is added."""

import asyncio

import attrs
from aiohttp import web

from api_server.ci.jobs.handlers import watched_log
from api_server.ci.jobs.logs import Logs, logs_of
from api_server.pages.ci.log_text import Rendered, State, render

#: Bytes and lines that are shown at once; a browser has some hundred bytes of its own for each line.
WINDOW = 256 * 1024
MOST_LINES = 5_000
#: Bytes whose lines are counted; further on lines have no numbers.
COUNTED = 32 * 2**20
#: Bytes that are rendered here and now; more takes a thread.
_AT_ONCE = 8 * 1024


@attrs.frozen
class LogPart:
    """Bytes `start` to `end` (exclusive) of a log of `size`, as HTML. The next part begins at `next`, in `state`."""

    start: int
    next: int
    end: int
    size: int
    html: str
    state: State


async def last_part(request: web.Request, job_id: int) -> LogPart:
    """The end of the log, from a line's beginning on, as much as is shown at once; of size 0 without a log."""
    size = await _size(request, job_id)
    logs = logs_of(request.config_dict)
    start = max(0, size - WINDOW)
    text = await _read(logs, job_id, start, size)
    skipped = text.find(b"\n") + 1 if start else 0
    for _ in range(text.count(b"\n", skipped) - MOST_LINES):
        skipped = text.find(b"\n", skipped) + 1
    state = State(await _lines_before(logs, job_id, start, text[:skipped]))
    rendered = await _rendered(text[skipped:], state)
    return _part(start + skipped, start + len(text), size, rendered)


async def part_from(request: web.Request, job_id: int, start: int, state: State) -> LogPart | None:
    """What follows `start`, where a line begins, as much as is shown at once. None where the log is not that long (any
    more)."""
    size = await _size(request, job_id)
    if start > size:
        return None
    text = await _read(logs_of(request.config_dict), job_id, start, min(size, start + WINDOW))
    lines = text.split(b"\n", MOST_LINES)
    if len(lines) > MOST_LINES:
        text = text[: len(text) - len(lines[-1])]
    return _part(start, start + len(text), size, await _rendered(text, state))


def _part(start: int, end: int, size: int, rendered: Rendered) -> LogPart:
    return LogPart(start, start + rendered.read, end, size, rendered.html, rendered.state)


async def _size(request: web.Request, job_id: int) -> int:
    """Bytes that may be shown; the runner is told that somebody looks."""
    log = await watched_log(request, job_id)
    return 0 if log is None else log.size - log.held_size


async def _read(logs: Logs, job_id: int, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in logs.read(job_id, start, end)])


async def _lines_before(logs: Logs, job_id: int, start: int, skipped: bytes) -> int:
    """The number of the line behind the first `start` bytes and what is `skipped`; 0 where counting would take long."""
    if start > COUNTED:
        return 0
    number = 1 + skipped.count(b"\n")
    async for piece in logs.read(job_id, 0, start):
        number += piece.count(b"\n")
    return number


async def _rendered(text: bytes, state: State) -> Rendered:
    if len(text) <= _AT_ONCE:
        return render(text, state)
    return await asyncio.to_thread(render, text, state)
