"""Two real API processes under a small load, and the same simulated with the times of single requests."""

import asyncio
import time
from collections.abc import Iterator
from random import Random

import attrs
import simpy

from scripts.bench.harness import processor
from scripts.bench.simulating.clients import asked
from scripts.bench.simulating.scene import Scene
from scripts.bench.simulating.servers import on_one_machine
from scripts.bench.simulating.stations import Station, Steps
from scripts.bench.simulating.times import Times, drawn

#: What each client asks, any of them each time.
MIX = ("list", "poll")
#: How many ask at the same time, and the mean of the milliseconds that each pauses before.
LOADS = ((1, 0.0), (2, 0.0), (4, 0.0), (8, 0.0), (16, 0.0), (4, 10.0), (8, 10.0))
SIMULATED = 20.0  # seconds


@attrs.frozen
class Outcome:
    """Requests a second, and milliseconds of an answer on average."""

    rate: float
    mean: float


@attrs.frozen
class Compared:
    """One load. `others` are the processors that were taken by what has nothing to do with it: of these the simulation
    knows nothing."""

    clients: int
    pause: float
    measured: Outcome
    simulated: Outcome
    others: float


def compared(scene: Scene, times: dict[str, Times], processors: int, seconds: float) -> Iterator[Compared]:
    """Each load as it is, and as it should be by `times`."""
    for number, pause in LOADS:
        requests = [scene.requests[name] for name in MIX]
        whole, ours = processor.machine(), _ours(scene)
        begun = time.perf_counter()
        done = asyncio.run(asked(scene.ports, requests, number, pause / 1000, seconds))
        others = (processor.machine() - whole - (_ours(scene) - ours)) / (time.perf_counter() - begun)
        expected = simulated([times[name] for name in MIX], number, pause, processors)
        yield Compared(number, pause, Outcome(done.rate, done.mean), expected, max(0.0, others))


def _ours(scene: Scene) -> float:
    """Seconds of processors: both servers, PostgreSQL and this process."""
    pids = {pid for server in scene.servers for pid in server.pids}
    return processor.seconds(pids) + time.process_time()


def simulated(
    mix: list[Times], number: int, pause: float, processors: int, seconds: float = SIMULATED
) -> Outcome:
    """Two processes, PostgreSQL and who asks, all on these processors."""
    environment, random = simpy.Environment(), Random(1)
    servers = on_one_machine(environment, random, processes=2, processors=processors)
    asking = Station(environment, 1)  # the clients are one process
    taken: list[float] = []

    def client(place: int) -> Steps:
        while True:
            if pause:
                yield environment.timeout(random.expovariate(1000 / pause))
            one = random.choice(mix)
            begun = environment.now
            yield from asking.hold(servers.machines[0].work(drawn(random, one.client)))
            yield from servers.request(servers.processes[place % 2], one)
            taken.append(environment.now - begun)

    for place in range(number):
        environment.process(client(place))
    environment.run(until=seconds)
    return Outcome(len(taken) / seconds, sum(taken) / len(taken) * 1000)
