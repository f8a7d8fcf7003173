"""Moving the log of a job that is over into the object store, and reading the coverage from it before."""

import asyncio
import re
import secrets

from api_server.ci.jobs.logs import queries
from api_server.ci.jobs.logs.storage import Logs
from api_server.ci.pipelines.job_queries import plan_of
from api_server.expressions import Allowance, Expression, TooCostly, allowed, compile_expression

#: Bytes of a log that are looked at for the coverage, from its end, so many at a time; and of one line, from its end.
_LOOKED_AT = 16 * 2**20
_WINDOW = 2**18
_LINE = 4096
#: Of the processor's time, for one log.
_SECONDS = 0.5
_FIGURE = re.compile(rb"\d+(?:\.\d+)?")
#: What has more digits is no figure.
_FIGURE_BYTES = 32


async def seal(logs: Logs, job_id: int) -> None:
    """Closes the log and makes one object of it. Does nothing for a job that runs, or has no log, or was sealed."""
    async with logs.database.transaction() as transaction:
        log = await queries.close(transaction, job_id)
        if log is None or log.object_key is not None:
            return
        if log.held is not None:
            await queries.add_last_chunk(transaction, job_id, logs.opened(log.held))
    key = f"projects/{log.project_id}/jobs/{job_id}/log-{secrets.token_hex(16)}"
    await logs.objects.put(key, logs.read(job_id, 0, log.size))
    expression = plan_of(log).coverage
    coverage = await coverage_of(logs, job_id, log.size, expression) if expression else None
    async with logs.database.transaction() as transaction:
        sealed = await queries.seal(transaction, job_id, key=key, coverage=coverage)
    if not sealed:  # erased meanwhile, or sealed by another worker
        await logs.objects.discard([key])


async def coverage_of(logs: Logs, job_id: int, size: int, text: str) -> float | None:
    """The last figure that a job's `coverage` expression matches in its log of `size` bytes.

    Return None where it matches none, is none, or takes too long; and where the figure stands too far from the end.
    """
    try:
        expression = compile_expression(text)
    except ValueError:
        return None
    position, rest = size, b""
    try:
        with allowed(Allowance(_SECONDS)):
            while position > max(0, size - _LOOKED_AT):
                start = max(0, position - _WINDOW)
                lines = b"".join([piece async for piece in logs.read(job_id, start, position)]) + rest
                rest, newline, whole = lines.partition(b"\n") if start else (b"", b"\n", lines)
                found = await asyncio.to_thread(last_figure, whole, expression) if newline else None
                if found is not None:
                    return found
                position, rest = start, rest[-_LINE:]
    except TooCostly:
        pass
    return None


def last_figure(lines: bytes, expression: Expression) -> float | None:
    """The first number in the last match that has one: `Covered 97.5 %` is 97.5. Raises `TooCostly`."""
    for line in reversed(lines.split(b"\n")):
        if _FIGURE.search(line, len(line) - _LINE) is None:
            continue
        text = line[-_LINE:].decode(errors="replace").encode()
        group = 1 if expression.groups else 0
        figures = [
            figure for match in expression.matches(text) if (figure := _FIGURE.search(match[group] or b""))
        ]
        if figures and len(figures[-1][0]) <= _FIGURE_BYTES:
            return float(figures[-1][0])
    return None
