"""Somebody who works with the service while others attack it."""

import asyncio
import statistics
import time

import aiohttp
import attrs

PAUSE_SECONDS = 0.02
TIMEOUT_SECONDS = 60.0


@attrs.define
class Felt:
    """How long answers took, in seconds, and how many there were that were none."""

    seconds: list[float] = attrs.field(factory=list)
    failed: int = 0

    @property
    def percentile_99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98] if len(self.seconds) > 1 else float("inf")

    @property
    def longest(self) -> float:
        return max(self.seconds, default=float("inf"))


async def work(urls: list[str], token: str, felt: Felt) -> None:
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
