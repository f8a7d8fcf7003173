"""Where the attacks happen: a service of its own with users and repositories made for it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import aiohttp
import attrs

#: Attackers come from an address of their own, so that bounds by address tell them from the innocent.
ATTACKER = "127.0.0.66"


@attrs.frozen(kw_only=True)
class Place:
    """The service under attack. `attacker` is the token of an ordinary user who is Owner of the project `mine`; the
    project `public` belongs to somebody else and can be read by everybody."""

    api_url: str
    edge_url: str
    attacker: str
    public: str
    mine: str
    #: Full SHA of a commit of `public` that changes much.
    large_change: str

    def project(self, path: str) -> str:
        """The URL of a project of that path in the API."""
        return f"{self.api_url}/api/v4/projects/{quote(path, safe='')}"

    @property
    def as_attacker(self) -> dict[str, str]:
        return {"PRIVATE-TOKEN": self.attacker}

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Place":
        return cls(**json.loads(text))


@asynccontextmanager
async def session(headers: dict[str, str] | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """HTTP from the attacker's address, with as many connections as are asked for."""
    connector = aiohttp.TCPConnector(local_addr=(ATTACKER, 0), limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as made:
        yield made


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection from the attacker's address."""
    to = urlsplit(url)
    return await asyncio.open_connection(to.hostname, to.port, local_addr=(ATTACKER, 0))


def head(method: str, url: str, **headers: str) -> bytes:
    """The head of a request; `user_agent="x"` becomes `user-agent: x`."""
    to = urlsplit(url)
    target = f"{to.path}?{to.query}" if to.query else to.path
    lines = [f"{method} {target} HTTP/1.1", f"host: {to.netloc}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def again_and_again(
    many: int, once: Callable[[int], Awaitable[str]], answers: "Counter[str]", *, rest: float = 0.0
) -> None:
    """`many` loops side by side, each of which does `once(number)` until all are cancelled; counts what it says."""

    async def loop(number: int) -> None:
        while True:
            try:
                answers[await once(number)] += 1
            except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError):
                answers["cut"] += 1
                await asyncio.sleep(0.1)
            await asyncio.sleep(rest)

    await asyncio.gather(*(loop(number) for number in range(many)))


async def fetch_by_turns(
    urls: Sequence[str], many: int, answers: "Counter[str]", headers: dict[str, str]
) -> None:
    """`many` clients, each of which reads its one of the URLs again and again, until all are cancelled."""
    async with session(headers) as http:

        async def fetch(number: int) -> str:
            async with http.get(urls[number % len(urls)]) as answer:
                return await read_all(answer)

        await again_and_again(many, fetch, answers)


async def status_of(reader: asyncio.StreamReader) -> str:
    """The status of an answer, of which only the first line is read."""
    return (await reader.readuntil(b"\r\n")).split()[1].decode()


async def read_all(answer: aiohttp.ClientResponse) -> str:
    """Takes the whole body and throws it away; says the status."""
    async for _ in answer.content.iter_any():
        pass
    return str(answer.status)
