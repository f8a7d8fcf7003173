"""How what an input costs grows with it: the server's processor time, and the memory that it takes."""

import asyncio

import aiohttp
import attrs

from scripts.abuse.ground import Ground
from scripts.abuse.inputs import INPUTS
from scripts.abuse.jobs import Request
from scripts.abuse.place import session
from scripts.abuse.watching import Watched, longest_step, megabytes, resident, seconds

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
MEMORY = 100 * 2**20
#: The longest that is waited for the end of what a request has begun, in seconds.
REST_SECONDS = 30.0
#: The time in which background tasks have begun.
LATER_SECONDS = 2.0
_LOOK_SECONDS = 0.1

HEADING = f"{'input':22}{'kB':>9}{'n ms':>9}{'2n ms':>9}{'4n ms':>9}{'step ms':>9}{'MB more':>9}  status"


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
            "memory": max(cost.memory for cost in self.costs) > MEMORY,
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


def grown(name: str, ground: Ground) -> Growth:
    """Send the input in three sizes; of each the cheapest of three times counts."""
    return asyncio.run(_grown(name, ground))


async def _grown(name: str, ground: Ground) -> Growth:
    given, costs = INPUTS[name], []
    async with session() as http:
        for share in SHARES:
            tried = []
            for _ in range(TIMES):
                request = await given.make(ground.place, http, given.largest // share)
                to_edge = request.url.startswith(ground.place.edge_url)
                server = ground.edge if to_edge else ground.api
                tried.append(await _cost(http, request, server, ground, later=given.once))
            costs.append(min(tried, key=lambda cost: (cost.cpu, cost.memory)))
    return Growth(name, costs)


async def _cost(
    http: aiohttp.ClientSession, request: Request, server: Watched, ground: Ground, *, later: bool
) -> Cost:
    """`later`, background tasks work on what the request has ended."""
    base = ground.place.edge_url if server is ground.edge else ground.place.api_url
    before, used = resident(server.pid), seconds(server.pid)
    with server:
        pinging = asyncio.create_task(longest_step(http, f"{base}/-/liveness", server.pid))
        await asyncio.sleep(_LOOK_SECONDS)
        status = await request.send(http)
        await asyncio.sleep(LATER_SECONDS if later else 0)
        await _at_rest(server.pid)
        pinging.cancel()
        step = await pinging
    cpu = seconds(server.pid) - used
    return Cost(request.size, cpu, step, max(server.peak.memory - before, 0), status)


async def _at_rest(pid: int) -> None:
    """Wait until the server does next to nothing: it may work on after its answer."""
    for _ in range(round(REST_SECONDS / _LOOK_SECONDS)):
        before = seconds(pid)
        await asyncio.sleep(_LOOK_SECONDS)
        if seconds(pid) - before < _LOOK_SECONDS / 4:
            return
