"""Jobs that wait for runners: who polls, who is called, who gets one, and what running jobs send. Every runner may
take every job."""

from collections import deque
from collections.abc import Generator
from random import Random
from typing import Any

import attrs
import simpy

from api_server.ci.runners.job_requests import TURNS_AT_A_TIME
from api_server.ci.runners.pending_jobs import CALLED_AT_A_TIME, FIRST_PAUSE, LONGEST_PAUSE
from scripts.bench.simulating.servers import Process, many
from scripts.bench.simulating.stations import Station, Steps
from scripts.bench.simulating.times import Times

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
    looked: int = 0  # processes, for one of their runners that may take a job
    asked: int = 0  # runners, whether there is a job
    waited: list[float] = attrs.Factory(list)
    read: list[float] = attrs.Factory(list)


class Line:
    """The runners that wait in one process: `PendingJobs` in api_server/ci/runners/pending_jobs.py."""

    def __init__(self, environment: simpy.Environment) -> None:
        self.turns = Station(environment, TURNS_AT_A_TIME)
        self.waiting: deque[Place] = deque()
        self.news = environment.event()
        self._environment = environment

    def announce(self) -> None:
        news, self.news = self.news, self._environment.event()
        news.succeed()


@attrs.frozen(eq=False)
class Place:
    """Of a runner that waits: it is called, and then has got a job or none."""

    called: simpy.Event
    outcome: simpy.Event


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
        self._lines = {id(process): Line(self.environment) for process in self.servers.processes}

    def run(self) -> Story:
        """All the time that is wanted, from a start at which as many runners are at work as will be."""
        working = min(self.wanted.runners, round(self.wanted.jobs * self.wanted.seconds))
        for number in range(self.wanted.runners):
            self.environment.process(self._runner(busy=number < working))
        for process in self.servers.processes:
            self.environment.process(self._calls(process))
        self.environment.process(self._pushes())
        self.environment.process(self._readers())
        self.environment.run(until=self.wanted.simulated)
        return self.story

    def _pushes(self) -> Steps:
        while True:
            yield self.environment.timeout(self.random.expovariate(self.wanted.jobs))
            self.story.made += 1
            self.story.pending.append(self.environment.now)
            for line in self._lines.values():  # each process hears the notice
                line.announce()

    def _calls(self, process: Process) -> Steps:
        """One runner after the other is called for a notice, and a few at a time while they get jobs."""
        line, size, pause = self._lines[id(process)], 1, 0.0
        yield line.news
        while True:
            news = line.news
            if not (line.waiting and (yield from self._looks(process))):
                size, pause = 1, 0.0
                yield news
                continue
            called = [line.waiting.popleft() for _ in range(min(size, len(line.waiting)))]
            for place in called:
                place.called.succeed()
            outcomes = yield self.environment.all_of([place.outcome for place in called])
            if all(outcomes.values()):
                size, pause = min(size + 1, CALLED_AT_A_TIME), 0.0
            else:
                size, pause = 1, min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
                yield line.news | self.environment.timeout(pause)

    def _looks(self, process: Process) -> Generator[simpy.Event, Any, bool]:
        """Whether there is a job for one of those who wait, as the database knows."""
        self.story.looked += 1
        yield from self.servers.request(process, self.times["look"])
        return bool(self.story.pending)

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
            got = yield from self._polls(self.servers.any())
            yield from self._job(self.random.expovariate(1 / self.wanted.seconds)) if got else self._rest()

    def _polls(self, process: Process) -> Generator[simpy.Event, Any, bool]:
        """Whether the runner has got a job, at once or after it has waited."""
        line, deadline = self._lines[id(process)], self.environment.now + PATIENCE
        if (yield from self._asks(process, line)):
            return True
        while (left := deadline - self.environment.now) > 0:
            place = Place(self.environment.event(), self.environment.event())
            line.waiting.append(place)
            yield place.called | self.environment.timeout(left)
            if not place.called.triggered:
                line.waiting.remove(place)
                return False
            got = yield from self._asks(process, line)
            place.outcome.succeed(got)
            if got:
                return True
        return False

    def _asks(self, process: Process, line: Line) -> Generator[simpy.Event, Any, bool]:
        self.story.asked += 1
        yield from line.turns.hold(self.servers.request(process, self.times["poll"]))
        if got := self._got():
            yield from self.servers.request(process, self.times["hand_out"])
        return got

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
