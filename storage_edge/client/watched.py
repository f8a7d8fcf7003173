"""What of the edge's parts is read whenever its metrics are."""

from typing import TYPE_CHECKING

from storage_edge.cache.origin import Origin
from storage_edge.client.connections import Connections
from storage_edge.metrics import Metrics
from storage_edge.tiers.store import Store

if TYPE_CHECKING:
    from storage_edge.tiers.shared import SharedTier

#: Gauges of which those of all workers are added up.
SUMMED = frozenset(("edge_connections", "edge_origin_requests_active"))


def watch(
    metrics: Metrics, connections: Connections, origin: Origin, store: Store, shared: "SharedTier | None"
) -> None:
    """Adds the gauges and counters of these parts."""
    health = origin.health
    metrics.gauge("edge_connections", "Open connections of clients.", lambda: len(connections))
    metrics.total("edge_connections_accepted", "Connections of clients so far.", lambda: connections.accepted)
    metrics.total(
        "edge_connections_refused", "Connections that were one too many.", lambda: connections.turned_away
    )
    metrics.gauge("edge_origin_requests_active", "Requests at work at the origin.", lambda: origin.at_work)
    metrics.gauge("edge_origin_up", "1 while the origin answers, else 0.", lambda: health.reachable)
    metrics.gauge(
        "edge_origin_token_right",
        "1 where the origin knows the storage token, 0 where it does not, NaN while that is not known.",
        lambda: {"right": 1.0, "wrong": 0.0}.get(health.token, float("nan")),
    )
    _watch_tiers(metrics, store)
    if shared is not None:
        health_of_store = shared.health
        metrics.gauge(
            "edge_shared_usable",
            "1 while the shared tier can be used, else 0.",
            lambda: not health_of_store.problem,
        )


def _watch_tiers(metrics: Metrics, store: Store) -> None:
    memory, disk = store.memory, store.disk
    metrics.gauge(
        "edge_tier_bytes",
        "Bytes that a tier holds.",
        lambda: {"memory": memory.used, "disk": disk.size},
        "tier",
    )
    metrics.gauge(
        "edge_tier_limit_bytes",
        "Bytes that a tier may hold.",
        lambda: {"memory": memory.limit, "disk": disk.budget},
        "tier",
    )
    metrics.gauge(
        "edge_tier_responses",
        "Responses that a tier holds (memory: URLs).",
        lambda: {"memory": len(memory), "disk": disk.responses},
        "tier",
    )
    metrics.total(
        "edge_evictions",
        "What had to leave a tier for others.",
        lambda: {"memory": memory.evicted, "disk": disk.evicted},
        "tier",
    )
    metrics.gauge(
        "edge_purges_pending", "Purges that hold and are not in the index yet.", lambda: disk.pending_purges
    )
    metrics.gauge("edge_disk_usable", "1 while the disk tier can be used, else 0.", lambda: not disk.problem)
    metrics.total("edge_disk_failures", "Times that the disk tier could not be used.", lambda: disk.failures)
    metrics.total(
        "edge_disk_damaged_files", "Files of the disk tier found damaged.", lambda: disk.files.damaged
    )
