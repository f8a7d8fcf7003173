"""Measures attacks beside a control client, and the growing cost of single inputs."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import Counter

import aiohttp
import attrs

from scripts.abuse.environment import Environment, session
from scripts.abuse.inputs import INPUTS, Request
from scripts.harness.processes import (
    PeakUsage,
    Usage,
    WatchedProcess,
    longest_step,
    megabytes,
    processor_seconds_of,
    resident_bytes,
)

PAUSE_SECONDS = 0.02
TIMEOUT_SECONDS = 60.0


@attrs.define
class ClientStats:
    """How long answers took, in seconds, and how many there were that were none."""

    seconds: list[float] = attrs.field(factory=list)
    failed: int = 0

    @property
    def percentile_99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98] if len(self.seconds) > 1 else float("inf")

    @property
    def longest(self) -> float:
        return max(self.seconds, default=float("inf"))


async def run_control_client(urls: list[str], token: str, felt: ClientStats) -> None:
    """Asks for one after the other, and rests a little in between, until cancelled."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(headers={"PRIVATE-TOKEN": token}, timeout=timeout) as http:
        while True:
            for url in urls:
                begun = time.perf_counter()
                try:
                    async with http.get(url) as answer:
                        await answer.read()
                        felt.failed += answer.status != 200
                except (aiohttp.ClientError, OSError, TimeoutError):
                    felt.failed += 1
                felt.seconds.append(time.perf_counter() - begun)
                await asyncio.sleep(PAUSE_SECONDS)


#: The innocent client's 99th percentile may be this many times its quiet value.
SLOWER = 5
#: Bytes that the API process may hold at any moment.
API_MEMORY = 300 * 2**20
#: Bytes that each process may hold more after an attack than before the first one.
LEFT = 100 * 2**20
#: Descriptors that a process may have more of afterwards: connections that stay in the pool of the database.
KEPT = 4
ATTACK_HEADING = (
    f"{'attack':22}{'p99':>9}{'x quiet':>9}{'longest':>9}{'failed':>8}{'step ms':>9}{'API MB':>8}{'edge MB':>9}"
    f"{'MB left':>9}{'children':>10}{'their MB':>10}{'descriptors':>13}  answers"
)


@attrs.frozen(kw_only=True)
class AttackOutcome:
    """An attack, what it was answered, what an innocent client felt, and what both servers held: the most, before and
    after it."""

    name: str
    answers: "Counter[str]"
    quiet: ClientStats
    felt: ClientStats
    api: PeakUsage
    edge: PeakUsage
    before: tuple[Usage, Usage]
    after: tuple[Usage, Usage]

    @property
    def misses(self) -> list[str]:
        """The aims that were not met."""
        found = {
            "slow": self.felt.percentile_99 > SLOWER * self.quiet.percentile_99,
            "failures": self.felt.failed > 0,
            "memory": self.api.memory > API_MEMORY,
            "memory left": any(now.memory > then.memory + LEFT for now, then in self._pairs()),
            "children": any(now.children > then.children for now, then in self._pairs()),
            "descriptors": any(now.descriptors > then.descriptors + KEPT for now, then in self._pairs()),
            "no attack": not self.answers,
        }
        return [aim for aim, missed in found.items() if missed]

    @property
    def step(self) -> float:
        """The longest of both event loops, in seconds of the processor."""
        return max(self.api.step, self.edge.step)

    def _pairs(self) -> list[tuple[Usage, Usage]]:
        return list(zip(self.after, self.before, strict=True))

    def __str__(self) -> str:
        answers = ", ".join(f"{count} x {what}" for what, count in self.answers.most_common(6))
        descriptors = "+".join(f"{then.descriptors}>{now.descriptors}" for now, then in self._pairs())
        left = "+".join(megabytes(now.memory - then.memory) for now, then in self._pairs())
        missed = f"  MISSED {', '.join(self.misses)}" if self.misses else ""
        return (
            f"{self.name:22}{self.felt.percentile_99 * 1000:6.0f} ms"
            f"{self.felt.percentile_99 / self.quiet.percentile_99:9.1f}{self.felt.longest:7.1f} s{self.felt.failed:8}"
            f"{self.step * 1000:9.0f}{megabytes(self.api.memory):>8}{megabytes(self.edge.memory):>9}{left:>9}"
            f"{self.api.children:10}"
            f"{megabytes(self.api.children_memory):>10}{descriptors:>13}  {answers}{missed}"
        )


#: How long is waited for what an attack has left behind to go away.
SETTLE_SECONDS = 60
END_SECONDS = 30
CROWD = 50
CROWD_SECONDS = 1


def measure_quiet(ground: Environment, seconds: int) -> ClientStats:
    """What the innocent client feels while nobody attacks; afterwards both servers hold what they keep open."""
    asyncio.run(_crowd(ground))
    return asyncio.run(_beside(ground, None, seconds))


async def _crowd(ground: Environment) -> None:
    """Many clients for a moment: pools of connections grow to their size once, and that is no leak."""
    felt = ClientStats()
    tasks = [
        asyncio.create_task(run_control_client(ground.innocent_urls, ground.innocent, felt))
        for _ in range(CROWD)
    ]
    await asyncio.wait(tasks, timeout=CROWD_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def run_attack(
    name: str, ground: Environment, seconds: int, quiet: ClientStats, before: tuple[Usage, Usage]
) -> AttackOutcome:
    """Makes the attack for this long; `before` is what the servers held when nobody had attacked yet."""
    command = [sys.executable, "-P", "-m", "scripts.abuse.attacks", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None
        attacker.stdin.write(ground.place.to_json())
        attacker.stdin.close()
        attacker.stdin = None
        with ground.api, ground.edge:
            felt = asyncio.run(_beside(ground, attacker, seconds))
        attacker.terminate()
        try:
            said, _ = attacker.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            attacker.kill()
            said, _ = attacker.communicate()
    after = asyncio.run(_settled(ground, before))
    return AttackOutcome(
        name=name,
        answers=Counter(json.loads(said)) if said else Counter({"the attack itself failed": 1}),
        quiet=quiet,
        felt=felt,
        api=ground.api.peak,
        edge=ground.edge.peak,
        before=before,
        after=after,
    )


async def _beside(ground: Environment, attacker: "subprocess.Popen[str] | None", seconds: int) -> ClientStats:
    """What the innocent client feels for this long, or until the attacker has failed."""
    felt = ClientStats()
    work = asyncio.create_task(run_control_client(ground.innocent_urls, ground.innocent, felt))
    servers = {ground.place.api_url: ground.api, ground.place.edge_url: ground.edge}
    async with aiohttp.ClientSession() as http:
        looking = [
            asyncio.create_task(longest_step(http, f"{url}/-/liveness", server.pid))
            for url, server in servers.items()
        ]
        for _ in range(seconds * 10):
            await asyncio.sleep(0.1)
            if attacker is not None and attacker.poll() is not None:
                break
        # An answer that is waited for is part of what was felt.
        await asyncio.wait({work}, timeout=0.1)
        for task in (work, *looking):
            task.cancel()
        await asyncio.wait({work})
        for server, task in zip(servers.values(), looking, strict=True):
            server.peak.step = await task
    return felt


async def _settled(ground: Environment, before: tuple[Usage, Usage]) -> tuple[Usage, Usage]:
    """What the servers hold when what the attack has left has had its time to go."""
    for _ in range(SETTLE_SECONDS * 2):
        after = ground.held()
        if all(
            now.children <= then.children
            and now.descriptors <= then.descriptors
            and now.memory <= then.memory + LEFT
            for now, then in zip(after, before, strict=True)
        ):
            break
        await asyncio.sleep(0.5)
    return after


#: The parts of the largest input that are sent, and how often each.
SHARES = (4, 2, 1)
TIMES = 3
#: Seconds of the processor that one step of the event loop may take.
STEP_SECONDS = 0.05
#: What costs less is not looked at, in seconds of the processor.
LEAST_SECONDS = 0.01
#: By how much the cost of a byte may grow from the smallest to the largest input.
GROWS = 2.0
#: Bytes by which the server may be larger afterwards.
INPUT_MEMORY = 100 * 2**20
#: The longest that is waited for the end of what a request has begun, in seconds.
REST_SECONDS = 30.0
#: The time in which background tasks have begun.
LATER_SECONDS = 2.0
_LOOK_SECONDS = 0.1

INPUT_HEADING = (
    f"{'input':22}{'kB':>9}{'n ms':>9}{'2n ms':>9}{'4n ms':>9}{'step ms':>9}{'MB more':>9}  status"
)


@attrs.frozen
class Cost:
    """Of one request: its bytes, seconds of the processor of the server, the longest step of its event loop, bytes of
    memory that it had more, and the answer."""

    size: int
    cpu: float
    step: float
    memory: int
    status: str


@attrs.frozen
class Growth:
    """Costs of an input, the smallest first."""

    name: str
    costs: list[Cost]

    @property
    def step(self) -> float:
        """The longest of the event loop, in seconds of the processor."""
        return max(cost.step for cost in self.costs)

    @property
    def misses(self) -> list[str]:
        """The aims that were not met."""
        first, last = self.costs[0], self.costs[-1]
        most = max(LEAST_SECONDS, GROWS * first.cpu * last.size / first.size)
        found = {
            "grows faster than its bytes": last.cpu > most,
            "step": self.step > STEP_SECONDS,
            "memory": max(cost.memory for cost in self.costs) > INPUT_MEMORY,
        }
        return [aim for aim, missed in found.items() if missed]

    def __str__(self) -> str:
        last = self.costs[-1]
        times = "".join(f"{cost.cpu * 1000:9.1f}" for cost in self.costs)
        missed = f"  MISSED {', '.join(self.misses)}" if self.misses else ""
        return (
            f"{self.name:22}{last.size / 1000:9.1f}{times}{self.step * 1000:9.1f}"
            f"{megabytes(max(cost.memory for cost in self.costs)):>9}  {last.status}{missed}"
        )


def measure_growth(name: str, ground: Environment) -> Growth:
    """Send the input in three sizes; of each the cheapest of three times counts."""
    return asyncio.run(_measure_growth(name, ground))


async def _measure_growth(name: str, ground: Environment) -> Growth:
    given, costs = INPUTS[name], []
    async with session() as http:
        for share in SHARES:
            tried = []
            for _ in range(TIMES):
                request = await given.make(ground.place, http, given.largest // share)
                to_edge = request.url.startswith(ground.place.edge_url)
                server = ground.edge if to_edge else ground.api
                tried.append(await _measure_cost(http, request, server, ground, later=given.once))
            costs.append(min(tried, key=lambda cost: (cost.cpu, cost.memory)))
    return Growth(name, costs)


async def _measure_cost(
    http: aiohttp.ClientSession, request: Request, server: WatchedProcess, ground: Environment, *, later: bool
) -> Cost:
    """`later`, background tasks work on what the request has ended."""
    base = ground.place.edge_url if server is ground.edge else ground.place.api_url
    before, used = resident_bytes(server.pid), processor_seconds_of(server.pid)
    with server:
        pinging = asyncio.create_task(longest_step(http, f"{base}/-/liveness", server.pid))
        await asyncio.sleep(_LOOK_SECONDS)
        status = await request.send(http)
        await asyncio.sleep(LATER_SECONDS if later else 0)
        await _at_rest(server.pid)
        pinging.cancel()
        step = await pinging
    cpu = processor_seconds_of(server.pid) - used
    return Cost(request.size, cpu, step, max(server.peak.memory - before, 0), status)


async def _at_rest(pid: int) -> None:
    """Wait until the server does next to nothing: it may work on after its answer."""
    for _ in range(round(REST_SECONDS / _LOOK_SECONDS)):
        before = processor_seconds_of(pid)
        await asyncio.sleep(_LOOK_SECONDS)
        if processor_seconds_of(pid) - before < _LOOK_SECONDS / 4:
            return
