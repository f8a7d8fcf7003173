"""The edge, asked so that it cannot help the origin."""

from collections import Counter

from scripts.abuse.place import Place, again_and_again, read_all, session


async def uncollapsed(place: Place, answers: "Counter[str]") -> None:
    """Requests that may not be answered from the store, all for the same file."""
    url = f"{place.edge_url}/{place.public}/-/raw/main/medium.bin"
    async with session({"Cache-Control": "no-store, no-cache"}) as http:

        async def fetch(_number: int) -> str:
            async with http.get(url) as answer:
                return await read_all(answer)

        await again_and_again(100, fetch, answers)
