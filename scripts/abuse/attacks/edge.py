"""The edge, asked so that it cannot help the origin."""

from collections import Counter

from scripts.abuse import repositories
from scripts.abuse.place import Place, fetch_by_turns


async def uncollapsed(place: Place, answers: "Counter[str]") -> None:
    """Requests that may not be answered from the store, all for the same file."""
    url = f"{place.edge_url}/{place.public}/-/raw/main/{repositories.MEDIUM_FILE}"
    await fetch_by_turns([url], 100, answers, {"Cache-Control": "no-store, no-cache"})
