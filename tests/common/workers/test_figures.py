"""Metrics of several processes, as one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from common import workers
from common.operations import _Added


def registry(requests: int, seconds: float, connections: int) -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("requests", "Asked.", ["route"], registry=made).labels(f"/{requests}").inc(requests)
    Counter("all", "Asked.", registry=made).inc(requests)
    Histogram("seconds", "Took.", buckets=(1, 5), registry=made).observe(seconds)
    Gauge("connections", "Open.", registry=made).set(connections)
    Gauge("jobs", "In the database.", registry=made).set(7)
    return made


def test_counters_and_histograms_are_added_up_and_of_gauges_those_that_are_named() -> None:
    own = list(registry(2, 0.5, 10).collect())
    others = [workers.addable_figures(registry(3, 2.0, 20).collect(), ["connections"])]
    others.append(
        workers.without_gauges(workers.addable_figures(registry(4, 9.0, 40).collect(), ["connections"]))
    )  # has ended
    total = workers.sum_figures([workers.addable_figures(own, ["connections"]), *others])
    text = generate_latest(_Added(own, total)).decode()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert values == {
        ("requests_total", "/2"): 2,
        ("requests_total", "/3"): 3,
        ("requests_total", "/4"): 4,
        ("all_total",): 9,
        ("seconds_bucket", "1.0"): 1,
        ("seconds_bucket", "5.0"): 2,
        ("seconds_bucket", "+Inf"): 3,
        ("seconds_count",): 3,
        ("seconds_sum",): 11.5,
        ("connections",): 30,
        ("jobs",): 7,
    }
