"""Cheap counters and histograms for hot paths, which Prometheus' client can collect."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

#: Upper bounds in seconds.
BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0)


class Durations(Collector):
    """A histogram of seconds, by labels. Only one event loop counts; collectors only read."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = BOUNDS,
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        self._bounds = tuple(bounds)
        self._buckets = (*(f"{bound:g}" for bound in bounds), "+Inf")
        #: The count of each bucket, and last the sum of all seconds, by labels.
        self._counts: dict[tuple[str, ...], list[float]] = {}
        if not labels:
            self._new(())

    def observe(self, seconds: float, labels: tuple[str, ...] = ()) -> None:
        """Record a duration."""
        counts = self._counts.get(labels) or self._new(labels)
        counts[bisect_left(self._bounds, seconds)] += 1
        counts[-1] += seconds

    def count(self, over: float = 0.0) -> int:
        """Return the number of durations of all labels, or of those longer than `over`, which is one of the bounds."""
        first = bisect_left(self._bounds, over) + 1 if over else 0
        return round(sum(sum(counts[first:-1]) for counts in self._counts.values()))

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, counts in list(self._counts.items()):
            total, buckets = 0.0, []
            for bound, count in zip(self._buckets, counts, strict=False):
                total += count
                buckets.append((bound, total))
            family.add_metric(labels, buckets, counts[-1])
        yield family

    def _new(self, labels: tuple[str, ...]) -> list[float]:
        counts = self._counts[labels] = [0.0] * (len(self._bounds) + 2)
        return counts


class Tally(Collector):
    """A counter without labels. Add to `value` to count."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name, self._documentation = name, documentation
        self.value = 0

    def describe(self) -> Iterable[CounterMetricFamily]:
        return self.collect()

    def collect(self) -> Iterable[CounterMetricFamily]:
        return [CounterMetricFamily(self._name, self._documentation, value=self.value)]
