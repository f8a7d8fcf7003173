"""The edge's metrics, for Prometheus and for `GET /-/status`."""

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from common.static_paths import Kind
from storage_edge.rules.fields import Outcome

#: The phases of a request to the origin: waiting for a place, connecting (name, TCP, TLS), the head of the answer, and
#: its body.
Phase = Literal["place", "connect", "head", "body"]
_PHASES: Final = ("place", "connect", "head", "body")
#: The reasons for an unusable or missing answer of the origin.
Failure = Literal["busy", "limited", "timeout", "unreachable", "unreadable", "mismatched", "stopped"]
_FAILURES: Final = ("busy", "limited", "timeout", "unreachable", "unreadable", "mismatched", "stopped")
#: The status that is counted if a client did not receive its whole answer.
CLIENT_GONE: Final = 499

PurgeResult = Literal["done", "failed", "refused"]
_PURGE_RESULTS: Final[tuple[PurgeResult, ...]] = ("done", "failed", "refused")

#: A function that returns a number, or one for each value of a label.
Values = Callable[[], float | dict[str, float]]
Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class Metrics:
    """The counters of one edge process, in a registry of their own. `clock` returns seconds since 1970.

    The counts of hits are plain numbers, which are read when metrics are requested, because a counter of
    prometheus_client takes a lock each time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self.requests: Counts[tuple[Kind, Outcome]] = Counts()
        self.responses: Counts[int] = Counts()
        self.purges: Counts[PurgeResult] = Counts()
        self.bytes_sent = self.bytes_from_origin = 0
        self._watched: list[tuple[Family, str, str, str, Values]] = []
        self._refusals = self._counter(
            "edge_refusals", "Requests answered without cache or origin.", "status"
        )
        self._failures = self._counter("edge_failures", "Requests that failed, by status.", "status")
        self._limited = self._counter(
            "edge_limited", "Requests refused because a client asks too much.", "limit"
        )
        self._compressions = self._counter(
            "edge_compressions", "Bodies that were to be compressed.", "result"
        )
        self._shared = self._counter("edge_shared", "Use of the shared tier.", "result")
        self.purged = Counter(
            "edge_purged_responses", "Responses dropped or made stale by purges.", registry=self.registry
        )
        self.purge_seconds = Histogram(
            "edge_purge_duration_seconds", "Seconds until a purge held.", registry=self.registry
        )
        self.last_purge: float | None = None
        self._origin_failures = self._counter(
            "edge_origin_failures", "Requests that the origin gave no usable answer to.", "reason"
        )
        seconds = Histogram(
            "edge_origin_duration_seconds",
            "Seconds of requests to the origin.",
            ["phase"],
            registry=self.registry,
        )
        self._origin_seconds = {phase: seconds.labels(phase) for phase in _PHASES}
        self.registry.register(self)
        for reason in _FAILURES:
            self._origin_failures.labels(reason)
        for limit in ("requests", "origin"):
            self._limited.labels(limit)
        for status in (400, 405):
            self._refusals.labels(str(status))

    def answered(self, kind: Kind, outcome: Outcome) -> None:
        """Count a request that was answered."""
        self.requests[kind, outcome] += 1

    def sent(self, status: int, size: int) -> None:
        """Count a sent answer for an object's path, and its bytes."""
        self.responses[status] += 1
        self.bytes_sent += size

    def refused(self, status: int) -> None:
        """Count a request that was not for a static object."""
        self._refusals.labels(str(status)).inc()

    def failed(self, status: int) -> None:
        """Count a request that failed."""
        self._failures.labels(str(status)).inc()

    def limited(self, limit: Literal["requests", "origin"]) -> None:
        """Count a request that exceeded a limit of its client."""
        self._limited.labels(limit).inc()

    def shared(self, result: str) -> None:
        """Count a use of the shared store by its result: a hit, a miss, a failure, or a written object."""
        self._shared.labels(result).inc()

    def purge_done(self, hit: int, seconds: float) -> None:
        """Count a purge and the responses that it hit."""
        self.purges["done"] += 1
        self.purged.inc(hit)
        self.purge_seconds.observe(seconds)
        self.last_purge = self._clock()

    def compressed(self, result: Literal["done", "useless", "busy"]) -> None:
        """Count an attempt to compress a body."""
        self._compressions.labels(result).inc()

    def origin_took(self, phase: Phase, seconds: float) -> None:
        """Record how long a phase of a request to the origin took."""
        self._origin_seconds[phase].observe(seconds)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Record the duration of the block as `origin_took`, however it ends."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.origin_took(phase, time.perf_counter() - start)

    def origin_failed(self, reason: Failure) -> None:
        """Count a request without a usable answer of the origin."""
        self._origin_failures.labels(reason).inc()

    def gauge(self, name: str, text: str, values: Values, label: str = "") -> None:
        """Add a gauge that calls `values` whenever it is read."""
        self._watched.append((GaugeMetricFamily, name, text, label, values))

    def total(self, name: str, text: str, values: Values, label: str = "") -> None:
        """Add a counter that calls `values` whenever it is read. `name` is without `_total`."""
        self._watched.append((CounterMetricFamily, name, text, label, values))

    def collect(self) -> Iterator[Metric]:
        """Yield, for the registry, the metrics that are no counters of prometheus_client."""
        requests = CounterMetricFamily(
            "edge_requests",
            "Requests for static objects by kind and by what the cache did.",
            labels=["kind", "outcome"],
        )
        for kind in Kind:
            for outcome in Outcome:
                labels = [kind.value, outcome.name.lower()]
                requests.add_metric(labels, self.requests[kind, outcome])
        yield requests
        responses = CounterMetricFamily(
            "edge_responses",
            "Answers for paths of objects by status; 499: the client had gone.",
            labels=["status"],
        )
        for status, number in sorted(self.responses.items()):
            responses.add_metric([str(status)], number)
        yield responses
        yield CounterMetricFamily("edge_sent_bytes", "Bytes sent to clients.", value=self.bytes_sent)
        yield CounterMetricFamily(
            "edge_origin_received_bytes", "Bytes of bodies from the origin.", value=self.bytes_from_origin
        )
        purges = CounterMetricFamily("edge_purges", "Requests to purge, by result.", labels=["result"])
        for result in _PURGE_RESULTS:
            purges.add_metric([result], self.purges[result])
        yield purges
        yield GaugeMetricFamily(
            "edge_last_purge_timestamp_seconds",
            "When the last purge came; 0: none yet.",
            value=self.last_purge or 0,
        )
        for family, name, text, label, values in self._watched:
            metric = family(name, text, labels=[label] if label else [])
            samples = values()
            for value, amount in samples.items() if isinstance(samples, dict) else [("", samples)]:
                metric.add_metric([value] if label else [], amount)
            yield metric

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, [label], registry=self.registry)
