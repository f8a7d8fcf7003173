"""What the edge counts for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.static_paths import Kind
from storage_edge.rules.cache_status import Outcome


class Metrics:
    """Counters of one edge process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests = Counter(
            "edge_requests",
            "Requests for static objects by kind and by what the cache did.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self._requests = {
            (kind, outcome): requests.labels(kind.value, outcome.name.lower())
            for kind in Kind
            for outcome in Outcome
        }
        refusals = Counter(
            "edge_refusals", "Requests answered without cache or origin.", ["status"], registry=self.registry
        )
        self._refusals = {status: refusals.labels(str(status)) for status in (400, 405)}
        failures = Counter(
            "edge_failures", "Requests that failed, by status.", ["status"], registry=self.registry
        )
        self._failure = failures.labels
        self.sent = Counter("edge_sent_bytes", "Bytes of answers sent to clients.", registry=self.registry)
        self.purged = Counter(
            "edge_purged", "Responses dropped or made stale by purges.", registry=self.registry
        )
        shared = Counter("edge_shared", "Use of the shared tier.", ["result"], registry=self.registry)
        self._shared = shared.labels
        self.origin_seconds = Histogram(
            "edge_origin_seconds", "Seconds until the head of the origin's answer.", registry=self.registry
        )

    def answered(self, kind: Kind, outcome: Outcome) -> None:
        """One request got an answer."""
        self._requests[kind, outcome].inc()

    def refused(self, status: int) -> None:
        """One request was no request for a static object."""
        self._refusals[status].inc()

    def failed(self, status: int) -> None:
        """One request failed."""
        self._failure(str(status)).inc()

    def shared(self, result: str) -> None:
        """The shared tier had an object, or not, or failed, or was given one."""
        self._shared(result).inc()

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that asks `value` whenever it is read."""
        Gauge(f"edge_{name}", text, registry=self.registry).set_function(value)
