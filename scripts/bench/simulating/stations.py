"""A station: some servers, and a line before them that is served in its order. It counts what goes through it."""

from collections.abc import Generator
from typing import Any

import simpy

#: A process of simpy's, as a part of another.
Steps = Generator[simpy.Event, Any, None]


class Station:
    """`waited`, `stayed` and `busy` are sums of seconds; `stayed` is waiting and being served."""

    def __init__(self, environment: simpy.Environment, servers: int) -> None:
        self.servers = servers
        self.arrived = self.done = 0
        self.waited = self.stayed = self.busy = 0.0
        self._environment = environment
        self._resource = simpy.Resource(environment, servers)
        self._area = self._since = 0.0

    @property
    def inside(self) -> int:
        """Who waits, or is served."""
        return self.arrived - self.done

    @property
    def mean_inside(self) -> float:
        """Over all the time until now."""
        self._count()
        until: float = self._environment.now
        return self._area / until

    @property
    def load(self) -> float:
        """The share of the time in which a server works."""
        until: float = self._environment.now
        return self.busy / (self.servers * until)

    def hold(self, steps: Steps) -> Steps:
        """A server is had while these steps are gone."""
        begun = self._environment.now
        self._count()
        self.arrived += 1
        with self._resource.request() as turn:
            yield turn
            served = self._environment.now
            self.waited += served - begun
            yield from steps
        self._count()
        self.done += 1
        self.busy += self._environment.now - served
        self.stayed += self._environment.now - begun

    def work(self, seconds: float) -> Steps:
        """A server is had for so long."""
        return self.hold(self._pass(seconds))

    def _pass(self, seconds: float) -> Steps:
        yield self._environment.timeout(seconds)

    def _count(self) -> None:
        """The area below the number of those inside."""
        now = self._environment.now
        self._area += self.inside * (now - self._since)
        self._since = now
