"""Archives that nobody wants."""

from collections import Counter
from itertools import count

from scripts.abuse.place import Place, again_and_again, connect, head, session, status_of

FORMATS = ("tar", "tar.gz", "zip", "tar.bz2")


async def abandoned_archives(place: Place, answers: "Counter[str]") -> None:
    """A stranger asks for everything in all forms, from the API and the edge, and leaves with the first bytes."""
    numbers = count()

    async def ask(_number: int) -> str:
        number = next(numbers)
        base = (place.api_url, place.edge_url)[number % 2]
        url = f"{base}/{place.public}/-/archive/main/app{number}.{FORMATS[number // 2 % len(FORMATS)]}"
        reader, writer = await connect(url)
        try:
            writer.write(head("GET", url))
            return await status_of(reader)
        finally:
            writer.transport.abort()

    await again_and_again(20, ask, answers, rest=0.1)


async def archives_of_a_bomb(place: Place, answers: "Counter[str]") -> None:
    """The archive of a tree of a million paths, and of each folder in it, by a user."""
    async with session(place.as_attacker) as http:

        async def ask(number: int) -> str:
            path = "/".join(["d1"] * (number % 4))
            url = f"{place.project(place.public)}/repository/archive.tar?sha=bomb&path={path}"
            async with http.get(url) as answer:
                await answer.content.read(1000)
                return str(answer.status)

        await again_and_again(8, ask, answers, rest=0.1)
