"""Jobs' logs: appended durably and without secrets while a job runs, and stored as one object afterwards.

A running job's log consists of rows of `job_log_chunks`. Each append is one transaction that stores the
bytes, the log's new size and its checksum together or not at all. So acknowledged bytes survive a crash and
are stored once, and any process can take the next append. When the job has ended, a task reads the coverage
from the log, moves it into the object store, where storage is cheap, and deletes the rows.

A secret is replaced by as many `x`, so that offsets in the log are those of the runner. A piece may end in
the middle of a secret: such an end is held back until the next piece completes or refutes it. Strangers
choose both the log and the secrets, so matching takes linear time, by the algorithm of Aho and Corasick.
"""

import asyncio
import re
import secrets
import zlib
from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from itertools import islice, product

import attrs
import orjson
import structlog
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from api_server.ci.jobs import log_queries
from api_server.ci.pipelines.job_queries import plan_of
from api_server.expressions import Allowance, Expression, TooCostly, allowed, compile_expression
from api_server.services import Services
from api_server.state.database import Database
from api_server.state.objects import Objects
from api_server.state.secrets import Vault
from common.concurrency import aside

#: Maximum bytes of all secrets of one job together.
MAX_SECRETS = 128 * 1024
#: Maximum bytes that are compared to find out whether the end of a piece begins a secret; an end that has not
#: been compared by then is held back as well.
_MAX_COMPARED = 4 * 1024 * 1024
#: Bytes that are compared first; they nearly always decide.
_HEAD = 16
_MASK = b"x"
#: Patterns of bytes that do not occur in UTF-8, so that they overlap no secret. With few patterns the library
#: would compare whole patterns at each place that looks like a beginning, which takes time proportional to
#: text times secret.
_FILLERS = [bytes(three) for three in islice(product(range(0xF8, 0x100), repeat=3), 65)]


def mask(text: bytes, secrets: Collection[bytes]) -> tuple[bytes, bytes]:
    """Return `text` with its secrets hidden, and the end of it (raw) that may be the beginning of a secret.

    `text` is the part of the last piece that was held back, followed by the new piece. The result does not
    depend on how a log is cut into pieces. If several secrets begin in one place, the longest counts.
    """
    ordered = sorted(filter(None, set(secrets)))
    if not ordered:
        return text, b""
    held = _first_beginning(text, ordered, 0)
    masked: list[bytes] = []
    position = 0
    for start, end in _matches(text, ordered):
        if held < position:
            held = _first_beginning(text, ordered, position)
        if held <= start:
            break
        masked += [text[position:start], _MASK * (end - start)]
        position = end
    if held < position:
        held = _first_beginning(text, ordered, position)
    return b"".join([*masked, text[position:held]]), text[held:]


def _matches(text: bytes, ordered: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return start and end of each secret, from left to right without overlaps; of those that begin in one
    place, the longest."""
    # with its default, the library may build a table that takes minutes for a long secret
    automaton = BytesAhoCorasick(
        [*ordered, *_FILLERS], MatchKind.LeftmostLongest, Implementation.ContiguousNFA
    )
    matches = automaton.find_matches_as_indexes(text)
    return [(start, end) for index, start, end in matches if index < len(ordered)]


def _first_beginning(text: bytes, ordered: Sequence[bytes], position: int) -> int:
    """Return the first position from `position` on at which the rest of `text` is a proper prefix of a
    secret.

    Return the end of `text` if there is none. `ordered` has the secrets sorted.
    """
    first_bytes = {secret[0] for secret in ordered}
    compared = 0
    for start in range(max(position, len(text) - max(map(len, ordered)) + 1), len(text)):
        if text[start] in first_bytes and _goes_on(text[start : start + _HEAD], ordered):
            compared += len(text) - start
            if compared > _MAX_COMPARED or _goes_on(text[start:], ordered):
                return start
    return len(text)


def _goes_on(beginning: bytes, ordered: Sequence[bytes]) -> bool:
    """Return whether a longer secret begins with this text: in sorted order, the first such secret directly
    follows it."""
    index = bisect_left(ordered, beginning + b"\0")
    return index < len(ordered) and ordered[index].startswith(beginning)


log = structlog.get_logger(__name__)

#: Maximum bytes stored as one piece; a statement that stores it takes a multiple of that memory.
CHUNK = 2**18
#: Small pieces are read together, up to about this many bytes.
_WINDOW = 2**18
#: Maximum bytes of a piece and of secrets that are masked in the event loop.
_MASKED_AT_ONCE = 2**13


@attrs.frozen
class Tail:
    """The state of a log before an append: its size, its CRC-32, and the bytes that were held back."""

    size: int
    checksum: int
    held: bytes


@attrs.frozen
class Logs:
    """The logs of all jobs."""

    database: Database
    objects: Objects
    vault: Vault

    def masked_values(self, sealed: bytes | None) -> tuple[bytes, ...]:
        """Return the values that a job's log must not show; they are encrypted in its row."""
        if sealed is None:
            return ()
        return tuple(text.encode() for text in orjson.loads(self.vault.decrypt(sealed)))

    async def append(self, job_id: int, end: Tail, text: bytes, secrets: tuple[bytes, ...]) -> Tail | None:
        """Append `text` durably to a log that has this end, and return its new end. Return None if the log
        has another end by now, or its job is not running."""
        bytes_compared = len(end.held) + len(text) + sum(map(len, secrets))
        stored, held = await aside(bytes_compared > _MASKED_AT_ONCE, mask, end.held + text, secrets)
        after = Tail(end.size + len(text), zlib.crc32(text, end.checksum), held)
        async with self.database.transaction() as transaction:
            added = await log_queries.append(
                transaction,
                job_id,
                size=end.size,
                received=len(text),
                start=end.size - len(end.held),
                text=stored,
                checksum=after.checksum,
                held=self.vault.encrypt(held.decode("latin-1")) if held else None,
                held_size=len(held),
            )
        return after if added else None

    async def size(self, job_id: int) -> int:
        """Return the number of bytes received; 0 without a log."""
        log = await log_queries.find_log(self.database, job_id)
        return 0 if log is None else log.size

    async def read(self, job_id: int, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes `start` to `end` (exclusive), a chunk at a time. Stop early if the log is erased
        meanwhile."""
        position = start
        while position < end:
            chunks = await log_queries.read_chunks(self.database, job_id, position, _WINDOW)
            if not chunks:
                break
            for chunk in chunks:
                piece = chunk.text[position - chunk.start : end - chunk.start]
                position += len(piece)
                yield piece
        if position < end:  # they have been moved to the object store
            log = await log_queries.find_log(self.database, job_id)
            if log is not None and log.object_key is not None:
                try:
                    async with aclosing(self.objects.read(log.object_key, position, end)) as stream:
                        async for piece in stream:
                            yield piece
                except FileNotFoundError:
                    await self._report_if_lost(job_id, log.object_key)

    async def _report_if_lost(self, job_id: int, key: str) -> None:
        """Log an error if the object is lost, which is the case if a row still names it: rows are deleted
        first."""
        log_now = await log_queries.find_log(self.database, job_id)
        if log_now is not None and log_now.object_key == key:
            log.error("the log of a job is gone from the object store", job_id=job_id, key=key)

    def opened(self, held: bytes | None) -> bytes:
        """Return the decrypted end of a log that may be the beginning of a secret."""
        return b"" if held is None else self.vault.decrypt(held).encode("latin-1")


def logs_of(services: Services) -> Logs:
    return Logs(services.database, services.objects, services.vault)


#: Maximum bytes at the end of a log that are searched for the coverage, bytes read at a time, and maximum
#: bytes at the end of a line.
_COVERAGE_BYTES = 16 * 2**20
_COVERAGE_WINDOW = 2**18
_LINE_BYTES = 4096
#: Maximum seconds of processor time for one log.
_COVERAGE_SECONDS = 0.5
_FIGURE = re.compile(rb"\d+(?:\.\d+)?")
#: A longer number is not a coverage value.
_FIGURE_BYTES = 32


async def seal(logs: Logs, job_id: int) -> None:
    """Close the log and store it as one object. Do nothing if the job is running, has no log, or its log is
    stored already."""
    async with logs.database.transaction() as transaction:
        log = await log_queries.close(transaction, job_id)
        if log is None or log.object_key is not None:
            return
        if log.held is not None:
            await log_queries.add_last_chunk(transaction, job_id, logs.opened(log.held))
    key = f"projects/{log.project_id}/jobs/{job_id}/log-{secrets.token_hex(16)}"
    await logs.objects.put(key, logs.read(job_id, 0, log.size))
    expression = plan_of(log).coverage
    coverage = await coverage_of(logs, job_id, log.size, expression) if expression else None
    async with logs.database.transaction() as transaction:
        sealed = await log_queries.seal(transaction, job_id, key=key, coverage=coverage)
    if not sealed:  # erased meanwhile, or stored by another worker
        await logs.objects.discard([key])


async def coverage_of(logs: Logs, job_id: int, size: int, text: str) -> float | None:
    """Return the last number that a job's `coverage` expression matches in its log of `size` bytes.

    Return None if the expression matches nothing, is invalid or takes too long, or if the number is too far
    from the end.
    """
    try:
        expression = compile_expression(text)
    except ValueError:
        return None
    position, rest = size, b""
    try:
        with allowed(Allowance(_COVERAGE_SECONDS)):
            while position > max(0, size - _COVERAGE_BYTES):
                start = max(0, position - _COVERAGE_WINDOW)
                lines = b"".join([chunk async for chunk in logs.read(job_id, start, position)]) + rest
                rest, newline, complete = lines.partition(b"\n") if start else (b"", b"\n", lines)
                figure = await asyncio.to_thread(last_figure, complete, expression) if newline else None
                if figure is not None:
                    return figure
                position, rest = start, rest[-_LINE_BYTES:]
    except TooCostly:
        pass
    return None


def last_figure(lines: bytes, expression: Expression) -> float | None:
    """Return the first number in the last match that has one: `Covered 97.5 %` gives 97.5. Raise
    `TooCostly`."""
    for line in reversed(lines.split(b"\n")):
        if _FIGURE.search(line, len(line) - _LINE_BYTES) is None:
            continue
        text = line[-_LINE_BYTES:].decode(errors="replace").encode()
        group = 1 if expression.groups else 0
        figures = [
            figure for match in expression.matches(text) if (figure := _FIGURE.search(match[group] or b""))
        ]
        if figures and len(figures[-1][0]) <= _FIGURE_BYTES:
            return float(figures[-1][0])
    return None
