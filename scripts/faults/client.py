"""The HTTP client of the load, and the ledger of all answers: an answer that is not allowed becomes a finding."""

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import attrs

#: `unknown`: it is not known whether the operation was done (connection cut, 503). `refused`: the service has answered
#: that it was not done.
Outcome = Literal["acknowledged", "unknown", "refused"]


@attrs.frozen
class Operation:
    """One write. `identity` is searched for afterwards; `fault` is the number of the newest fault at that time."""

    kind: str
    identity: str
    outcome: Outcome
    fault: int


@attrs.define
class Ledger:
    """Operations by kind, answers by fault, and findings about both."""

    #: Number of the newest fault, from 1 on; 0 before the first.
    fault: int = 0
    operations: list[Operation] = attrs.field(factory=list)
    answers: "Counter[tuple[int, str]]" = attrs.field(factory=Counter)
    #: The number of the fault and a text for each answer that is not allowed and each violated invariant.
    findings: list[tuple[int, str]] = attrs.field(factory=list)
    #: For each kind, how often each identity was present at the end.
    present: dict[str, "Counter[str]"] = attrs.field(factory=dict)
    #: For each kind, the beginnings and ends of successes on the monotonic clock.
    _successes: dict[str, list[tuple[float, float]]] = attrs.field(factory=lambda: defaultdict(list))

    def record(self, kind: str, identity: object, outcome: Outcome) -> None:
        self.operations.append(Operation(kind, str(identity), outcome, self.fault))

    def succeeded(self, kind: str, start: float) -> None:
        """Record that an operation of this kind, which began at this time, has just succeeded."""
        self._successes[kind].append((start, time.monotonic()))

    def find(self, text: str) -> None:
        """Record a violation under the newest fault."""
        self.findings.append((self.fault, text))

    def first_success(self, kind: str, since: float) -> float | None:
        """Return the end of the first success of this kind that began after `since`, or None."""
        ended = None
        for start, end in reversed(self._successes[kind]):
            if end < since:
                break
            if start >= since:
                ended = end
        return ended

    def lost(self) -> list[Operation]:
        """Return the operations that were acknowledged and are missing."""
        return [
            operation
            for operation in self._judged()
            if operation.outcome == "acknowledged" and self._times(operation) == 0
        ]

    def doubled(self) -> list[Operation]:
        """Return the operations that were done more than once."""
        return [operation for operation in self._judged() if self._times(operation) > 1]

    def _judged(self) -> list[Operation]:
        return [operation for operation in self.operations if operation.kind in self.present]

    def _times(self, operation: Operation) -> int:
        return self.present[operation.kind][operation.identity]


#: Seconds to wait after a failed request, so that the load does not become an attack.
PAUSE_SECONDS = 0.1
TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=5)
_numbers = itertools.count(1)


@attrs.frozen
class Answer:
    """An answer with a status below 500, and its whole body."""

    status: int
    body: bytes
    headers: Any
    json: Any = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@attrs.frozen
class Client:
    """The requests of one user to one process, which findings call `name`."""

    http: aiohttp.ClientSession
    name: str
    base: str
    ledger: Ledger
    token: str = ""
    #: Other statuses that this process may answer with while a fault lasts.
    may_say: Collection[int] = ()

    async def ask(
        self, kind: str, method: str, path: str, *, expected: Collection[int] = (), **options: Any
    ) -> Answer | None:
        """Return the answer. Return None if the connection was cut or refused, or the service failed.

        Any 2xx counts as a success of this kind. A status other than 2xx, 503 and those `expected` is a finding.
        """
        number, start, fault = next(_numbers), time.monotonic(), self.ledger.fault
        headers = {"X-Request-Id": f"load-{number}"} | options.pop("headers", {})
        if self.token:
            headers.setdefault("PRIVATE-TOKEN", self.token)
        url = path if path.startswith("http") else self.base + path
        try:
            async with self.http.request(method, url, headers=headers, **options) as response:
                body = await response.read()
        except TimeoutError:
            self.ledger.answers[fault, "no answer"] += 1
            self.ledger.find(f"{self.name}: {_named(method, url)} was not answered in {TIMEOUT.total:.0f} s")
            return None
        except (aiohttp.ClientError, OSError):
            self.ledger.answers[fault, "cut"] += 1
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        self.ledger.answers[fault, str(response.status)] += 1
        status = response.status
        if (status == 503 and "Retry-After" in response.headers) or status in self.may_say:
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        if not 200 <= status < 300 and status not in expected:
            text = f"{status}{' without Retry-After' if status == 503 else ''} (load-{number})"
            excerpt = body[:300].decode(errors="replace")
            self.ledger.find(f"{self.name}: {_named(method, url)} was answered {text}: {excerpt}")
        if status >= 500:
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        json = await response.json() if response.content_type.endswith("json") and body else None
        if 200 <= status < 300:
            self.ledger.succeeded(kind, start)
        return Answer(status, body, response.headers, json)

    async def write(
        self, kind: str, identity: object, method: str, path: str, **options: Any
    ) -> Answer | None:
        """Send a request that changes something, as `ask` does, and record the outcome under its identity. Return None
        unless the status is 2xx."""
        answer = await self.ask(kind, method, path, **options)
        outcome: Outcome = "unknown" if answer is None else "acknowledged" if answer.ok else "refused"
        self.ledger.record(kind, identity, outcome)
        return answer if answer is not None and answer.ok else None

    async def all(self, path: str) -> list[Any]:
        """Return the entries of all pages of a list. Raise RuntimeError if a request fails, since all faults are
        over."""
        items: list[Any] = []
        for page in itertools.count(1):
            separator = "&" if "?" in path else "?"
            answer = await self.ask("list", "GET", f"{path}{separator}per_page=100&page={page}")
            if answer is None or not answer.ok:
                raise RuntimeError(f"{path} cannot be read when all faults are over.")
            items += answer.json
            if len(answer.json) < 100:
                return items
        raise AssertionError


def _named(method: str, url: str) -> str:
    return f"{method} {urlsplit(url).path}"
