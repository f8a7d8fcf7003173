"""Git over HTTP, by clients that are not git."""

import asyncio
import base64
from collections import Counter

from scripts.abuse import packs
from scripts.abuse.place import Place, again_and_again, connect, head, read_all, session, status_of

CLIENTS = 80


async def silent_fetches(place: Place, answers: "Counter[str]") -> None:
    """Strangers who begin to fetch and then say nothing."""
    url = f"{place.api_url}/{place.public}.git/git-upload-pack"

    async def fetch(_number: int) -> str:
        reader, writer = await connect(url)
        answers["opened"] += 1
        try:
            writer.write(
                head(
                    "POST",
                    url,
                    content_type="application/x-git-upload-pack-request",
                    transfer_encoding="chunked",
                )
            )
            heard = await reader.read(100)
            return heard.split()[1].decode() if heard else "closed"
        finally:
            writer.close()

    await again_and_again(CLIENTS, fetch, answers, rest=0.2)


async def unread_clones(place: Place, answers: "Counter[str]") -> None:
    """Strangers who ask for a whole clone and take none of it."""
    url = f"{place.api_url}/{place.public}.git/git-upload-pack"
    want = f"want {place.large_change} ofs-delta side-band-64k\n"
    wanted = packs.packet(want.encode()) + b"0000" + packs.packet(b"done\n")

    async def fetch(_number: int) -> str:
        reader, writer = await connect(url)
        try:
            content_type = "application/x-git-upload-pack-request"
            writer.write(
                head("POST", url, content_type=content_type, content_length=str(len(wanted))) + wanted
            )
            status = await status_of(reader)
            answers[status] += 1
            await asyncio.sleep(20 if status == "200" else 0.2)
            return "left"
        finally:
            writer.transport.abort()

    await again_and_again(CLIENTS, fetch, answers, rest=0.2)


async def delta_bomb(place: Place, answers: "Counter[str]") -> None:
    """Pushes of a pack of about a kilobyte that unpacks to gigabytes."""
    url = f"{place.api_url}/{place.mine}.git/git-receive-pack"
    body = packs.push("refs/heads/large", packs.delta_bomb())
    credentials = base64.b64encode(f"attacker:{place.attacker}".encode()).decode()
    headers = {
        "Authorization": f"Basic {credentials}",
        "Content-Type": "application/x-git-receive-pack-request",
    }
    async with session(headers) as http:

        async def push(_number: int) -> str:
            async with http.post(url, data=body) as answer:
                return await read_all(answer)

        await again_and_again(4, push, answers)
