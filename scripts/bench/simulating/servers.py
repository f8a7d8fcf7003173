"""API processes on machines, and the PostgreSQL that they share."""

from random import Random

import attrs
import simpy

from scripts.bench.simulating.stations import Station, Steps
from scripts.bench.simulating.times import Times, drawn

POOL = 10  # connections of a process to the database


@attrs.define
class Process:
    """It does one thing at a time, on one of its machine's processors."""

    loop: Station
    processors: Station
    connections: Station


@attrs.define
class Servers:
    """`processes` on `machines`; `database` are PostgreSQL's processors, which may be a machine's own."""

    environment: simpy.Environment
    random: Random
    processes: list[Process]
    machines: list[Station]
    database: Station

    def request(self, process: Process, times: Times) -> Steps:
        """Parsed, asked of the database, answered."""
        half = drawn(self.random, times.api) / 2
        yield from process.loop.hold(process.processors.work(half))
        if times.database:
            yield from process.connections.hold(self.database.work(drawn(self.random, times.database)))
        yield from process.loop.hold(process.processors.work(half))
        if times.other:
            yield self.environment.timeout(times.other / 1000)

    def any(self) -> Process:
        """As a balancer that knows nothing chooses."""
        return self.random.choice(self.processes)


def many(
    environment: simpy.Environment, random: Random, *, machines: int, processors: int, database: int
) -> Servers:
    """So many machines with a process for each processor, and a machine of its own for PostgreSQL."""
    places = [Station(environment, processors) for _ in range(machines)]
    processes = [_process(environment, place) for place in places for _ in range(processors)]
    return Servers(environment, random, processes, places, Station(environment, database))


def on_one_machine(
    environment: simpy.Environment, random: Random, *, processes: int, processors: int
) -> Servers:
    """With PostgreSQL, on the same processors."""
    place = Station(environment, processors)
    return Servers(
        environment, random, [_process(environment, place) for _ in range(processes)], [place], place
    )


def _process(environment: simpy.Environment, place: Station) -> Process:
    return Process(Station(environment, 1), place, Station(environment, POOL))
