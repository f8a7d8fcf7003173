"""Measurements of attacks beside a control client, and of how the cost of single inputs grows with their size."""

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
    processor_seconds,
    resident_bytes,
    retry_until,
    wait_until,
)
from scripts.harness.report import Table, counted, missed_aims, with_misses

PAUSE_SECONDS = 0.02
TIMEOUT_SECONDS = 60.0


@attrs.define
class ClientStats:
    """The seconds that a client waited for each answer, and the number of answers that were failures."""

    seconds: list[float] = attrs.field(factory=list)
    failed: int = 0

    @property
    def percentile_99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98] if len(self.seconds) > 1 else float("inf")

    @property
    def most_beside_others(self) -> float:
        """The longest acceptable 99th percentile, in seconds, while others attack."""
        return SLOWER * max(self.percentile_99, WAITS_ONCE)

    @property
    def longest(self) -> float:
        return max(self.seconds, default=float("inf"))


async def run_control_client(urls: list[str], token: str, stats: ClientStats) -> None:
    """Request one URL after the other until cancelled, as a client that works with the service while others attack
    it."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(headers={"PRIVATE-TOKEN": token}, timeout=timeout) as http:
        while True:
            for url in urls:
                start = time.perf_counter()
                try:
                    async with http.get(url) as answer:
                        await answer.read()
                        stats.failed += answer.status != 200
                except (aiohttp.ClientError, OSError, TimeoutError):
                    stats.failed += 1
                stats.seconds.append(time.perf_counter() - start)
                await asyncio.sleep(PAUSE_SECONDS)


# --- attacks --------------------------------------------------------------------------------------------------------

#: The control client's 99th percentile may be this many times its quiet value, or that of a quiet client whose answers
#: wait once for a processor: client, attacker, PostgreSQL, edge and API share two of them here. A process that finds
#: both busy waits for a slice or two of the scheduler (3 ms each and more), whatever the service does.
SLOWER = 5
WAITS_ONCE = 0.010
#: Maximum number of bytes that the API process may hold at any moment.
API_MEMORY = 300 * 2**20
#: Maximum number of bytes by which a process may have grown after an attack, compared with the time before the first
#: one. Caches that its settings allow (the memory tier of the edge) do not count.
GROWTH = 100 * 2**20
#: Maximum number of additional descriptors of a process after an attack: connections that stay in the pool of the
#: database.
DESCRIPTORS = 4
#: Seconds within which memory, descriptors and children of an attack have to be released.
SETTLE_SECONDS = 60
END_SECONDS = 30
CROWD = 50
CROWD_SECONDS = 1

ATTACK_TABLE = Table(
    *(
        ("attack", 22),
        ("p99", 9),
        ("x quiet", 9),
        ("longest", 9),
        ("failed", 8),
        ("step ms", 9),
        ("API MB", 8),
    ),
    *(
        ("edge MB", 9),
        ("MB left", 9),
        ("MB cached", 11),
        ("children", 10),
        ("their MB", 10),
        ("descriptors", 13),
    ),
    last="answers",
)


def aims_after(after: tuple[Usage, Usage], before: tuple[Usage, Usage]) -> dict[str, bool]:
    """Return whether each aim for what an attack leaves behind is missed, given the usage of both servers."""
    pairs = list(zip(after, before, strict=True))
    return {
        "memory left": any(now.own_memory > past.own_memory + GROWTH for now, past in pairs),
        "children": any(now.children > past.children for now, past in pairs),
        "descriptors": any(now.descriptors > past.descriptors + DESCRIPTORS for now, past in pairs),
    }


@attrs.frozen(kw_only=True)
class AttackOutcome:
    """An attack, its answers, the control client's answers with and without it, the peak usage of both servers, and
    their usage before and after it."""

    name: str
    answers: "Counter[str]"
    quiet: ClientStats
    client: ClientStats
    api: PeakUsage
    edge: PeakUsage
    before: tuple[Usage, Usage]
    after: tuple[Usage, Usage]

    @property
    def misses(self) -> list[str]:
        """The names of the aims that were missed."""
        return missed_aims(
            {
                "slow": self.client.percentile_99 > self.quiet.most_beside_others,
                "failures": self.client.failed > 0,
                "memory": self.api.memory > API_MEMORY,
                **aims_after(self.after, self.before),
                "no attack": not self.answers,
            }
        )

    @property
    def step(self) -> float:
        """The longest step of both event loops, in seconds of the processor."""
        return max(self.api.step, self.edge.step)

    def _pairs(self) -> list[tuple[Usage, Usage]]:
        return list(zip(self.after, self.before, strict=True))

    def __str__(self) -> str:
        return ATTACK_TABLE.row(
            self.name,
            f"{self.client.percentile_99 * 1000:.0f} ms",
            f"{self.client.percentile_99 / self.quiet.percentile_99:.1f}",
            f"{self.client.longest:.1f} s",
            self.client.failed,
            f"{self.api.step * 1000:.0f}+{self.edge.step * 1000:.0f}",
            megabytes(self.api.memory),
            megabytes(self.edge.memory),
            "+".join(megabytes(now.own_memory - past.own_memory) for now, past in self._pairs()),
            "+".join(megabytes(now.cached) for now in self.after),
            self.api.children,
            megabytes(self.api.children_memory),
            "+".join(f"{past.descriptors}>{now.descriptors}" for now, past in self._pairs()),
            last=with_misses(counted(self.answers, 6), self.misses),
        )


def measure_quiet(environment: Environment, seconds: int) -> ClientStats:
    """Return the control client's statistics without an attack. Before, let both servers open the connections that
    they keep."""
    asyncio.run(_crowd(environment))
    return asyncio.run(_control_client_beside(environment, None, seconds))


async def _crowd(environment: Environment) -> None:
    """Run many clients for a moment, so that pools of connections grow to their size: this happens once and is no
    leak."""
    client = (environment.control_urls, environment.control_token, ClientStats())
    tasks = [asyncio.create_task(run_control_client(*client)) for _ in range(CROWD)]
    await asyncio.wait(tasks, timeout=CROWD_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def run_attack(
    name: str, environment: Environment, seconds: int, quiet: ClientStats, before: tuple[Usage, Usage]
) -> AttackOutcome:
    """Attack from a process of its own for this long, and wait until the usage that it has caused is released.
    `before` is the usage of the servers before the first attack."""
    command = [sys.executable, "-P", "-m", "scripts.abuse.attacks", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None
        attacker.stdin.write(environment.target.to_json())
        attacker.stdin.close()
        attacker.stdin = None
        assert attacker.stdout is not None
        attacker.stdout.readline()  # the attack has begun
        with environment.api, environment.edge:
            client = asyncio.run(_control_client_beside(environment, attacker, seconds))
        attacker.terminate()
        try:
            printed, _ = attacker.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            attacker.kill()
            printed, _ = attacker.communicate()

    def has_settled() -> bool:
        return not any(aims_after(environment.usage(), before).values())

    asyncio.run(wait_until(has_settled, SETTLE_SECONDS, pause=0.5))
    return AttackOutcome(
        name=name,
        answers=Counter(json.loads(printed)) if printed else Counter({"the attack itself failed": 1}),
        quiet=quiet,
        client=client,
        api=environment.api.peak,
        edge=environment.edge.peak,
        before=before,
        after=environment.usage(),
    )


async def _control_client_beside(
    environment: Environment, attacker: "subprocess.Popen[str] | None", seconds: int
) -> ClientStats:
    """Return the control client's statistics over this many seconds, or until the attacker has failed."""
    stats = ClientStats()
    client = run_control_client(environment.control_urls, environment.control_token, stats)
    work = asyncio.create_task(client)
    servers = {environment.target.api_url: environment.api, environment.target.edge_url: environment.edge}
    async with aiohttp.ClientSession() as http:
        measuring = [
            asyncio.create_task(longest_step(http, f"{url}/-/liveness", server.pid))
            for url, server in servers.items()
        ]
        for _ in range(seconds * 10):
            await asyncio.sleep(0.1)
            if attacker is not None and attacker.poll() is not None:
                break
        # The time of an unfinished answer counts too.
        await asyncio.wait({work}, timeout=0.1)
        for task in (work, *measuring):
            task.cancel()
        await asyncio.wait({work})
        for server, task in zip(servers.values(), measuring, strict=True):
            server.peak.step = await task
    return stats


# --- inputs ---------------------------------------------------------------------------------------------------------

#: The divisors of the largest input's number, and how often each size is sent.
SHARES = (4, 2, 1)
TIMES = 3
#: Maximum of seconds of the processor for one step of the event loop.
STEP_SECONDS = 0.05
#: Costs below this many seconds of the processor are not compared.
LEAST_SECONDS = 0.01
#: Maximum factor by which the cost of a byte may grow from the smallest to the largest input.
GROWS = 2.0
#: Maximum number of bytes by which the server may have grown afterwards.
INPUT_MEMORY = 100 * 2**20
#: Maximum of seconds to wait for the end of the work that a request has begun.
REST_SECONDS = 30.0
#: Seconds within which background tasks have begun.
LATER_SECONDS = 2.0
_LOOK_SECONDS = 0.1

INPUT_TABLE = Table(
    *(("input", 22), ("kB", 9), ("n ms", 9), ("2n ms", 9), ("4n ms", 9), ("step ms", 9), ("MB more", 9)),
    last="status",
)


@attrs.frozen
class Cost:
    """The cost of one request: its bytes, seconds of the server's processor, the longest step of its event loop, the
    additional bytes of memory, and the status of the answer."""

    size: int
    cpu: float
    step: float
    memory: int
    status: str


@attrs.frozen
class Growth:
    """The costs of an input, from the smallest size to the largest."""

    name: str
    costs: list[Cost]

    @property
    def step(self) -> float:
        """The longest step of the event loop, in seconds of the processor."""
        return max(cost.step for cost in self.costs)

    @property
    def memory(self) -> int:
        return max(cost.memory for cost in self.costs)

    @property
    def misses(self) -> list[str]:
        """The names of the aims that were missed."""
        first, last = self.costs[0], self.costs[-1]
        allowed = max(LEAST_SECONDS, GROWS * first.cpu * last.size / first.size)
        return missed_aims(
            {
                "grows faster than its bytes": last.cpu > allowed,
                "step": self.step > STEP_SECONDS,
                "memory": self.memory > INPUT_MEMORY,
                "head refused unread": last.status in ("414", "431"),
            }
        )

    def __str__(self) -> str:
        last = self.costs[-1]
        figures = [last.size / 1000, *(cost.cpu * 1000 for cost in self.costs), self.step * 1000]
        cells = [f"{figure:.1f}" for figure in figures]
        status = with_misses(last.status, self.misses)
        return INPUT_TABLE.row(self.name, *cells, megabytes(self.memory), last=status)


async def measure_growth(name: str, environment: Environment) -> Growth:
    """Send the input three times in each of three sizes; return the lowest cost of each size."""
    source, costs = INPUTS[name], []
    async with session() as http:
        for share in SHARES:
            trials = []
            for _ in range(TIMES):
                request = await source.make(environment.target, http, source.largest // share)
                trials.append(await _measure_cost(http, request, environment, later=source.once))
            costs.append(min(trials, key=lambda cost: (cost.cpu, cost.memory)))
    return Growth(name, costs)


async def _measure_cost(
    http: aiohttp.ClientSession, request: Request, environment: Environment, *, later: bool
) -> Cost:
    """Send the request and wait until the server is idle; return the cost. With `later`, background tasks process what
    the request has ended, so wait until they have begun."""
    to_edge = request.url.startswith(environment.target.edge_url)
    server = environment.edge if to_edge else environment.api
    base = environment.target.edge_url if to_edge else environment.target.api_url
    before, cpu_before = resident_bytes(server.pid), processor_seconds(server.pid)
    with server:
        pinging = asyncio.create_task(longest_step(http, f"{base}/-/liveness", server.pid))
        await asyncio.sleep(_LOOK_SECONDS)
        status = await request.send(http)
        await asyncio.sleep(LATER_SECONDS if later else 0)
        await retry_until(lambda: _is_at_rest(server), REST_SECONDS, pause=0)
        pinging.cancel()
        step = await pinging
    cpu = processor_seconds(server.pid) - cpu_before
    return Cost(request.size, cpu, step, max(server.peak.memory - before, 0), status)


async def _is_at_rest(server: WatchedProcess) -> bool:
    """Return whether the server is nearly idle: it may work on after its answer."""
    before = processor_seconds(server.pid)
    await asyncio.sleep(_LOOK_SECONDS)
    return processor_seconds(server.pid) - before < _LOOK_SECONDS / 4
