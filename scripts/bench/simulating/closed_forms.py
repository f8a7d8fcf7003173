"""What is known without simulating: M/M/c queues, and caches whose objects live for a time."""

from collections.abc import Iterable


def mean_wait(rate: float, service: float, servers: int) -> float:
    """Seconds that one waits before an M/M/c station: Poisson arrivals of `rate` a second, exponential times of mean
    `service` (Erlang's C). Raises `ValueError` where more comes than can be served."""
    offered = rate * service
    if offered >= servers:
        raise ValueError(f"{offered:.2f} servers are wanted, and there are {servers}.")
    blocked = 1.0  # Erlang's B, one server after the other
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    waits = blocked / (1 - offered / servers * (1 - blocked))
    return waits * service / (servers - offered)


def hit_ratio(rates: Iterable[float], lifetime: float) -> float:
    """Of a cache that has room for everything, each object of which is asked for by Poisson at its rate and kept for
    so long from when it was fetched."""
    asked = hits = 0.0
    for rate in rates:
        asked += rate
        hits += rate * (rate * lifetime) / (1 + rate * lifetime)
    return hits / asked
