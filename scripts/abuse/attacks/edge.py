"""The edge, asked so that it cannot help the origin."""

import asyncio
from collections import Counter
from itertools import count

from scripts.abuse import repositories
from scripts.abuse.place import Place, again_and_again, connect, fetch_by_turns, head


async def uncollapsed(place: Place, answers: "Counter[str]") -> None:
    """Requests that may not be answered from the store, all for the same file."""
    url = f"{place.edge_url}/{place.public}/-/raw/main/{repositories.MEDIUM_FILE}"
    await fetch_by_turns([url], 100, answers, {"Cache-Control": "no-store, no-cache"})


async def unawaited_archives(place: Place, answers: "Counter[str]") -> None:
    """Strangers ask for archives that take long to pack, each for another one, and leave before the first byte."""
    numbers = count()

    async def ask(_number: int) -> str:
        number = next(numbers)
        query = f"?path=src/{number % 100}" if number % 4 else ""
        url = f"{place.edge_url}/{place.public}/-/archive/main/app{number}.tar.bz2{query}"
        _, writer = await connect(url)
        try:
            writer.write(head("GET", url))
            await asyncio.sleep(0.5)
            return "left"
        finally:
            writer.close()

    await again_and_again(20, ask, answers)
