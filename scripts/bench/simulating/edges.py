"""Edges before an origin: what they answer themselves, what they ask for, and what purges and validation cost."""

from bisect import bisect
from itertools import accumulate
from random import Random

import attrs
import simpy

from scripts.bench.simulating.servers import Servers, many
from scripts.bench.simulating.stations import Steps
from scripts.bench.simulating.times import Times

NEVER = float("-inf")


@attrs.frozen
class Wanted:
    """Edges, what is asked of each (`rate`, a second), of how many objects, the n-th of which is asked for in
    proportion to 1 / n ** `skew`; `private` is the share of requests that the origin has to allow one by one.
    Objects are fresh for `lifetime` seconds, then validated; `purges` a second take one object away everywhere."""

    edges: int = 100
    rate: float = 50.0
    objects: int = 100_000
    skew: float = 0.9
    private: float = 0.1
    lifetime: float = 60.0
    purges: float = 1.0
    machines: int = 4
    processors: int = 4
    database: int = 8
    simulated: float = 60.0


@attrs.define
class Story:
    """`joined` are requests that waited for a flight under way. `waited` are seconds at the origin."""

    asked: int = 0
    hits: int = 0
    joined: int = 0
    fetched: int = 0
    validated: int = 0
    allowed: int = 0
    purged: int = 0
    under_way: int = 0
    waited: list[float] = attrs.Factory(list)

    @property
    def hit_ratio(self) -> float:
        """Of requests that were answered without the origin."""
        return (self.hits + self.joined) / max(self.asked, 1)


class Edges:
    """`run` lets the time pass."""

    def __init__(self, wanted: Wanted, times: dict[str, Times], seed: int = 1) -> None:
        self.wanted, self.times, self.story = wanted, times, Story()
        self.environment = simpy.Environment()
        self.random = Random(seed)
        self.origin: Servers = many(
            self.environment,
            self.random,
            machines=wanted.machines,
            processors=wanted.processors,
            database=wanted.database,
        )
        self._sums = list(accumulate(1 / n**wanted.skew for n in range(1, wanted.objects + 1)))
        #: For each edge until when what it was asked for is fresh, and what it is asking for. What it was not asked for
        #: yet it has since long, and it is stale; what was taken away is fresh until NEVER.
        self._fresh: list[dict[int, float]] = [{} for _ in range(wanted.edges)]
        self._flights: list[dict[int, object]] = [{} for _ in range(wanted.edges)]

    def run(self) -> Story:
        """All the time that is wanted, and only what happens in it: after a lifetime in which the edges get used to
        what is asked of them."""
        self.environment.process(self._clients())
        self.environment.process(self._purges())
        self.environment.run(until=self.wanted.lifetime)
        self.story = Story(under_way=self.story.under_way)
        self.environment.run(until=self.wanted.lifetime + self.wanted.simulated)
        return self.story

    def _clients(self) -> Steps:
        whole = self.wanted.rate * self.wanted.edges
        while True:
            yield self.environment.timeout(self.random.expovariate(whole))
            self._request(self.random.randrange(self.wanted.edges), self._object())

    def _purges(self) -> Steps:
        while self.wanted.purges:
            yield self.environment.timeout(self.random.expovariate(self.wanted.purges))
            self.story.purged += 1
            one = self._object()
            for fresh, flights in zip(self._fresh, self._flights, strict=True):
                fresh[one] = NEVER
                flights.pop(one, None)  # what arrives may be older than the purge, and is not kept

    def _object(self) -> int:
        return bisect(self._sums, self.random.random() * self._sums[-1])

    def _request(self, edge: int, one: int) -> None:
        self.story.asked += 1
        until = self._fresh[edge].get(one, 0.0)
        if self.random.random() < self.wanted.private:
            self.story.allowed += 1
            self.environment.process(self._ask("validate"))
        elif until > self.environment.now:
            self.story.hits += 1
        elif one in self._flights[edge]:
            self.story.joined += 1
        elif until != NEVER:
            self.story.validated += 1
            self.environment.process(self._flight(edge, one, "validate"))
        else:
            self.story.fetched += 1
            self.environment.process(self._flight(edge, one, "fetch"))

    def _flight(self, edge: int, one: int, what: str) -> Steps:
        self._flights[edge][one] = flight = object()
        yield from self._ask(what)
        if self._flights[edge].get(one) is flight:
            del self._flights[edge][one]
            self._fresh[edge][one] = self.environment.now + self.wanted.lifetime

    def _ask(self, what: str) -> Steps:
        self.story.under_way += 1
        begun = self.environment.now
        yield from self.origin.request(self.origin.any(), self.times[what])
        self.story.waited.append(self.environment.now - begun)
        self.story.under_way -= 1
