"""Measures attacks beside a control client, and how the cost of single inputs grows with their size."""

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
    """How long a client waited for its answers, in seconds, and how many of them were failures."""

    seconds: list[float] = attrs.field(factory=list)
    failed: int = 0

    @property
    def percentile_99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98] if len(self.seconds) > 1 else float("inf")

    @property
    def most_beside_others(self) -> float:
        """What its 99th percentile may be while others attack, in seconds."""
        return SLOWER * max(self.percentile_99, WAITS_ONCE)

    @property
    def longest(self) -> float:
        return max(self.seconds, default=float("inf"))


async def run_control_client(urls: list[str], token: str, stats: ClientStats) -> None:
    """Work with the service while others attack it: ask for one URL after the other, until cancelled."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(headers={"PRIVATE-TOKEN": token}, timeout=timeout) as http:
        while True:
            for url in urls:
                begun = time.perf_counter()
                try:
                    async with http.get(url) as answer:
                        await answer.read()
                        stats.failed += answer.status != 200
                except (aiohttp.ClientError, OSError, TimeoutError):
                    stats.failed += 1
                stats.seconds.append(time.perf_counter() - begun)
                await asyncio.sleep(PAUSE_SECONDS)


# --- attacks --------------------------------------------------------------------------------------------------------

#: The control client's 99th percentile may be this many times its quiet value, or that of a quiet client whose answers
#: wait once for a processor: client, attacker, PostgreSQL, edge and API share two of them here, and whoever finds both
#: taken waits for a slice or two of the scheduler (3 ms each and more), whatever the service does.
SLOWER = 5
WAITS_ONCE = 0.010
#: Bytes that the API process may hold at any moment.
API_MEMORY = 300 * 2**20
#: Bytes that each process may hold more after an attack than before the first one, besides what its settings let it
#: keep (the memory tier of the edge).
LEFT = 100 * 2**20
#: Descriptors that a process may have more of afterwards: connections that stay in the pool of the database.
DESCRIPTORS = 4
#: How long to wait for what an attack has left behind to go away.
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


@attrs.frozen(kw_only=True)
class AttackOutcome:
    """An attack, how it was answered, the control client's answers with and without it, and what both servers held:
    the most, before and after it."""

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
        """The aims that were not met."""
        return missed_aims(
            {
                "slow": self.client.percentile_99 > self.quiet.most_beside_others,
                "failures": self.client.failed > 0,
                "memory": self.api.memory > API_MEMORY,
                "memory left": any(now.own_memory > then.own_memory + LEFT for now, then in self._pairs()),
                "children": any(now.children > then.children for now, then in self._pairs()),
                "descriptors": any(
                    now.descriptors > then.descriptors + DESCRIPTORS for now, then in self._pairs()
                ),
                "no attack": not self.answers,
            }
        )

    @property
    def step(self) -> float:
        """The longest of both event loops, in seconds of the processor."""
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
            "+".join(megabytes(now.own_memory - then.own_memory) for now, then in self._pairs()),
            "+".join(megabytes(now.cached) for now in self.after),
            self.api.children,
            megabytes(self.api.children_memory),
            "+".join(f"{then.descriptors}>{now.descriptors}" for now, then in self._pairs()),
            last=with_misses(counted(self.answers, 6), self.misses),
        )


def measure_quiet(environment: Environment, seconds: int) -> ClientStats:
    """Return the control client's statistics while nobody attacks. Afterwards both servers hold what they keep open."""
    asyncio.run(_crowd(environment))
    return asyncio.run(_control_client_beside(environment, None, seconds))


async def _crowd(environment: Environment) -> None:
    """Have many clients for a moment: pools of connections grow to their size once, and that is no leak."""
    client = (environment.control_urls, environment.control_token, ClientStats())
    tasks = [asyncio.create_task(run_control_client(*client)) for _ in range(CROWD)]
    await asyncio.wait(tasks, timeout=CROWD_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def run_attack(
    name: str, environment: Environment, seconds: int, quiet: ClientStats, before: tuple[Usage, Usage]
) -> AttackOutcome:
    """Attack from a process of its own for this long, and wait until what it has left behind is gone. `before` is what
    the servers held when nobody had attacked yet."""
    command = [sys.executable, "-P", "-m", "scripts.abuse.attacks", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None
        attacker.stdin.write(environment.target.to_json())
        attacker.stdin.close()
        attacker.stdin = None
        assert attacker.stdout is not None
        attacker.stdout.readline()  # it has begun
        with environment.api, environment.edge:
            client = asyncio.run(_control_client_beside(environment, attacker, seconds))
        attacker.terminate()
        try:
            printed, _ = attacker.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            attacker.kill()
            printed, _ = attacker.communicate()

    def has_settled() -> bool:
        return all(
            now.children <= then.children
            and now.descriptors <= then.descriptors
            and now.own_memory <= then.own_memory + LEFT
            for now, then in zip(environment.usage(), before, strict=True)
        )

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
    """Return the control client's statistics of this long, or until the attacker has failed."""
    stats = ClientStats()
    client = run_control_client(environment.control_urls, environment.control_token, stats)
    work = asyncio.create_task(client)
    servers = {environment.target.api_url: environment.api, environment.target.edge_url: environment.edge}
    async with aiohttp.ClientSession() as http:
        looking = [
            asyncio.create_task(longest_step(http, f"{url}/-/liveness", server.pid))
            for url, server in servers.items()
        ]
        for _ in range(seconds * 10):
            await asyncio.sleep(0.1)
            if attacker is not None and attacker.poll() is not None:
                break
        # An answer that is still awaited is part of what the client felt.
        await asyncio.wait({work}, timeout=0.1)
        for task in (work, *looking):
            task.cancel()
        await asyncio.wait({work})
        for server, task in zip(servers.values(), looking, strict=True):
            server.peak.step = await task
    return stats


# --- inputs ---------------------------------------------------------------------------------------------------------

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
#: The longest wait for the end of what a request has begun, in seconds.
REST_SECONDS = 30.0
#: The time in which background tasks have begun.
LATER_SECONDS = 2.0
_LOOK_SECONDS = 0.1

INPUT_TABLE = Table(
    *(("input", 22), ("kB", 9), ("n ms", 9), ("2n ms", 9), ("4n ms", 9), ("step ms", 9), ("MB more", 9)),
    last="status",
)


@attrs.frozen
class Cost:
    """The cost of one request: its bytes, seconds of the processor of the server, the longest step of its event loop,
    bytes of memory that it had more, and the answer."""

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
    def memory(self) -> int:
        return max(cost.memory for cost in self.costs)

    @property
    def misses(self) -> list[str]:
        """The aims that were not met."""
        first, last = self.costs[0], self.costs[-1]
        most = max(LEAST_SECONDS, GROWS * first.cpu * last.size / first.size)
        return missed_aims(
            {
                "grows faster than its bytes": last.cpu > most,
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
    """Send the input in three sizes; of each the cheapest of three times counts."""
    source, costs = INPUTS[name], []
    async with session() as http:
        for share in SHARES:
            tried = []
            for _ in range(TIMES):
                request = await source.make(environment.target, http, source.largest // share)
                tried.append(await _measure_cost(http, request, environment, later=source.once))
            costs.append(min(tried, key=lambda cost: (cost.cpu, cost.memory)))
    return Growth(name, costs)


async def _measure_cost(
    http: aiohttp.ClientSession, request: Request, environment: Environment, *, later: bool
) -> Cost:
    """Send the request and wait until its server rests; `later`, background tasks work on what it has ended."""
    to_edge = request.url.startswith(environment.target.edge_url)
    server = environment.edge if to_edge else environment.api
    base = environment.target.edge_url if to_edge else environment.target.api_url
    before, used = resident_bytes(server.pid), processor_seconds(server.pid)
    with server:
        pinging = asyncio.create_task(longest_step(http, f"{base}/-/liveness", server.pid))
        await asyncio.sleep(_LOOK_SECONDS)
        status = await request.send(http)
        await asyncio.sleep(LATER_SECONDS if later else 0)
        await retry_until(lambda: _is_at_rest(server), REST_SECONDS, pause=0)
        pinging.cancel()
        step = await pinging
    cpu = processor_seconds(server.pid) - used
    return Cost(request.size, cpu, step, max(server.peak.memory - before, 0), status)


async def _is_at_rest(server: WatchedProcess) -> bool:
    """Return whether the server does next to nothing: it may work on after its answer."""
    before = processor_seconds(server.pid)
    await asyncio.sleep(_LOOK_SECONDS)
    return processor_seconds(server.pid) - before < _LOOK_SECONDS / 4
