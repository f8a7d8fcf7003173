"""What a repository holds, asked for in its dearest forms."""

import asyncio
from collections import Counter

from scripts.abuse import repositories
from scripts.abuse.place import Place, again_and_again, connect, fetch_by_turns, head, status_of

SLOW_READERS = 100
PIECE = 4096


async def large_files(place: Place, answers: "Counter[str]") -> None:
    """A file of 200 MB, whole, in every way that there is."""
    file = f"{place.project(place.public)}/repository/files/{repositories.LARGE_FILE}"
    raw = f"{place.public}/-/raw/main/{repositories.LARGE_FILE}"
    urls = [
        f"{file}?ref=main",
        f"{file}/raw?ref=main",
        f"{place.edge_url}/{raw}",
    ]
    await fetch_by_turns(urls, len(urls) * 2, answers, place.as_attacker)


async def slow_readers(place: Place, answers: "Counter[str]") -> None:
    """Readers of 9 MB who take 4 KiB a second."""
    url = f"{place.project(place.public)}/repository/files/{repositories.MEDIUM_FILE}/raw?ref=main"

    async def read(_number: int) -> str:
        reader, writer = await connect(url)
        writer.write(head("GET", url, private_token=place.attacker))
        answers[await status_of(reader)] += 1
        while not reader.at_eof():
            await reader.read(PIECE)
            await asyncio.sleep(1)
        writer.close()
        return "ended"

    await again_and_again(SLOW_READERS, read, answers, rest=0.5)


async def large_changes(place: Place, answers: "Counter[str]") -> None:
    """A commit of very many lines: its statistics, its diff, a comparison."""
    repository = f"{place.project(place.public)}/repository"
    sha = place.large_change
    urls = [
        f"{repository}/commits/{sha}",
        f"{repository}/commits/{sha}/diff",
        f"{repository}/compare?from=start&to=main",
    ]
    await fetch_by_turns(urls, 8, answers, place.as_attacker)


async def git_bomb(place: Place, answers: "Counter[str]") -> None:
    """Pages out of a tree of a million paths that is ten objects."""
    tree = f"{place.project(place.public)}/repository/tree?ref=bomb&recursive=true&per_page=20"
    urls = [tree, f"{tree}&page=20000", f"{tree}&pagination=keyset", f"{tree}&path=d9"]
    await fetch_by_turns(urls, 8, answers, place.as_attacker)
