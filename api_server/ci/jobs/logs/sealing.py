"""Moving the log of a job that is over into the object store, and reading the coverage from it on the way."""

import secrets
from collections.abc import AsyncIterator

import re2

from api_server.ci.jobs.logs import queries
from api_server.ci.jobs.logs.storage import Logs
from api_server.ci.pipelines.job_queries import plan_of

#: A line is looked at up to this length.
_LINE = 64 * 1024


async def seal(logs: Logs, job_id: int) -> None:
    """Closes the log and makes one object of it. Does nothing for a job that runs, or has no log, or was sealed."""
    async with logs.database.transaction() as transaction:
        log = await queries.close(transaction, job_id)
        if log is None or log.object_key is not None:
            return
        if log.held is not None:
            await queries.add_last_chunk(transaction, job_id, logs.opened(log.held))
    key = f"projects/{log.project_id}/jobs/{job_id}/log-{secrets.token_hex(16)}"
    coverage = Coverage(plan_of(log).coverage)
    await logs.objects.put(key, coverage.through(logs.read(job_id, 0, log.size)))
    async with logs.database.transaction() as transaction:
        sealed = await queries.seal(transaction, job_id, key=key, coverage=coverage.found)
    if not sealed:  # erased meanwhile, or sealed by another worker
        await logs.objects.discard([key])


class Coverage:
    """The last figure that a job's `coverage` expression matches in a log that goes by."""

    def __init__(self, expression: str | None) -> None:
        self.found: float | None = None
        self._expression = re2.compile(expression) if expression else None
        self._line = b""

    async def through(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if self._expression is not None:
                *lines, self._line = (self._line + piece).split(b"\n")
                for line in lines:
                    self._look_at(line)
                self._line = self._line[-_LINE:]
            yield piece
        self._look_at(self._line)

    def _look_at(self, line: bytes) -> None:
        if self._expression is None:
            return
        text = line[-_LINE:].decode(errors="replace")
        for match in self._expression.finditer(text):
            found = match.group(1) if match.re.groups else match.group(0)
            self.found = figure(found or "", self.found)


def figure(text: str, otherwise: float | None) -> float | None:
    """The first number in `text`: `Covered 97.5 %` is 97.5."""
    match = re2.search(r"\d+(?:\.\d+)?", text)
    return float(match.group(0)) if match else otherwise
