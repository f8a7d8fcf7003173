"""Jobs that wait for runners: who polls, who is woken, who gets one, and what running jobs send."""

from collections import deque
from random import Random

import attrs
import simpy

from scripts.bench.simulating.servers import Process, many
from scripts.bench.simulating.stations import Station, Steps
from scripts.bench.simulating.times import Times

TURNS = 3  # hand-outs at a time in a process: `TURNS_AT_A_TIME` in api_server/ci/runners/job_requests.py
PATIENCE = 30.0  # seconds that a poll waits: the setting `runner_poll_timeout`
PAUSE = 3.0  # seconds of a runner after a poll without a job: gitlab-runner's `check_interval`
APPENDS = 3.0  # seconds between two pieces of a log: gitlab-runner's least interval


@attrs.frozen
class Wanted:
    """A fleet, and what it has to do. `jobs` and `reads` are a second; a job runs for `seconds`."""

    machines: int = 100
    processors: int = 4
    database: int = 16
    runners: int = 2_000
    jobs: float = 8.0
    seconds: float = 180.0
    reads: float = 2_000.0
    simulated: float = 60.0


@attrs.define
class Story:
    """What has happened. `waited` are the seconds that each job was pending, `read` those that each list took."""

    made: int = 0
    handed_out: int = 0
    pending: deque[float] = attrs.Factory(deque)
    asked: int = 0  # whether there is a job
    waited: list[float] = attrs.Factory(list)
    read: list[float] = attrs.Factory(list)


class Jobs:
    """The fleet at work; `run` lets the time pass."""

    def __init__(self, wanted: Wanted, times: dict[str, Times], seed: int = 1) -> None:
        self.wanted, self.times, self.story = wanted, times, Story()
        self.environment = simpy.Environment()
        self.random = Random(seed)
        self.servers = many(
            self.environment,
            self.random,
            machines=wanted.machines,
            processors=wanted.processors,
            database=wanted.database,
        )
        self._news = {id(process): self.environment.event() for process in self.servers.processes}
        self._turns = {id(process): Station(self.environment, TURNS) for process in self.servers.processes}

    def run(self) -> Story:
        """All the time that is wanted, from a start at which as many runners are at work as will be."""
        working = min(self.wanted.runners, round(self.wanted.jobs * self.wanted.seconds))
        for number in range(self.wanted.runners):
            self.environment.process(self._runner(busy=number < working))
        self.environment.process(self._pushes())
        self.environment.process(self._readers())
        self.environment.run(until=self.wanted.simulated)
        return self.story

    def _pushes(self) -> Steps:
        while True:
            yield self.environment.timeout(self.random.expovariate(self.wanted.jobs))
            self.story.made += 1
            self.story.pending.append(self.environment.now)
            for process in self.servers.processes:  # each hears the notice, and wakes all who wait with it
                news = self._news[id(process)]
                self._news[id(process)] = self.environment.event()
                news.succeed()

    def _readers(self) -> Steps:
        while self.wanted.reads:
            yield self.environment.timeout(self.random.expovariate(self.wanted.reads))
            self.environment.process(self._read())

    def _read(self) -> Steps:
        begun = self.environment.now
        yield from self.servers.request(self.servers.any(), self.times["list"])
        self.story.read.append(self.environment.now - begun)

    def _runner(self, *, busy: bool) -> Steps:
        if busy:
            yield from self._job(self.random.random() * self.wanted.seconds)
        else:
            yield self.environment.timeout(self.random.random() * PAUSE)
        while True:
            process = self.servers.any()
            deadline = self.environment.now + PATIENCE
            got, one = False, self.times["poll"]
            while not got and self.environment.now < deadline:
                news = self._news[id(process)]
                yield from self._turns[id(process)].hold(self._ask(process, one))
                if got := self._got():
                    yield from self.servers.request(process, self.times["hand_out"])
                elif self.environment.now < deadline:
                    one = self.times["woken"]
                    yield news | self.environment.timeout(deadline - self.environment.now)
            yield from self._job(self.random.expovariate(1 / self.wanted.seconds)) if got else self._rest()

    def _ask(self, process: Process, one: Times) -> Steps:
        self.story.asked += 1
        return self.servers.request(process, one)

    def _got(self) -> bool:
        """Whether a job was left: the oldest."""
        if not self.story.pending:
            return False
        self.story.handed_out += 1
        self.story.waited.append(self.environment.now - self.story.pending.popleft())
        return True

    def _rest(self) -> Steps:
        yield self.environment.timeout(PAUSE)

    def _job(self, seconds: float) -> Steps:
        """It runs, and sends its log, for so long."""
        end = self.environment.now + seconds
        while (left := end - self.environment.now) > 0:
            yield self.environment.timeout(min(APPENDS, left))
            yield from self.servers.request(self.servers.any(), self.times["append"])
