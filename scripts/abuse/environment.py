"""The service that is attacked, in a folder that goes away, and how attackers connect to it."""

import asyncio
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
import attrs

from forgelet.local.api_client import Api, encoded
from forgelet.local.data_directory import DataDirectory
from forgelet.local.supervisor import Forgelet, Plan
from forgelet.local.variables import Addresses
from scripts.abuse import repositories
from scripts.abuse.repositories import Sizes
from scripts.harness.processes import Usage, WatchedProcess, server_in
from tests.support.ports import free_port

#: Attackers come from an address of their own, so that bounds by address tell them from the innocent.
ATTACKER = "127.0.0.66"


@attrs.frozen(kw_only=True)
class AttackTarget:
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
    def from_json(cls, text: str) -> "AttackTarget":
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


def request_head(method: str, url: str, **headers: str) -> bytes:
    """The head of a request; `user_agent="x"` becomes `user-agent: x`."""
    to = urlsplit(url)
    target = f"{to.path}?{to.query}" if to.query else to.path
    lines = [f"{method} {target} HTTP/1.1", f"host: {to.netloc}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def repeat(
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


async def fetch_in_turn(
    urls: Sequence[str], many: int, answers: "Counter[str]", headers: dict[str, str]
) -> None:
    """`many` clients, each of which reads its one of the URLs again and again, until all are cancelled."""
    async with session(headers) as http:

        async def fetch(number: int) -> str:
            async with http.get(urls[number % len(urls)]) as answer:
                return await read_all(answer)

        await repeat(many, fetch, answers)


async def status_of(reader: asyncio.StreamReader) -> str:
    """The status of an answer, of which only the first line is read."""
    return (await reader.readuntil(b"\r\n")).split()[1].decode()


async def read_all(answer: aiohttp.ClientResponse) -> str:
    """Takes the whole body and throws it away; says the status."""
    async for _ in answer.content.iter_any():
        pass
    return str(answer.status)


CHECKOUT = Path(__file__).resolve().parents[2]


@attrs.frozen
class Environment:
    """The running service: where it is attacked, the token of somebody innocent, and its two processes."""

    place: AttackTarget
    innocent: str
    api: WatchedProcess
    edge: WatchedProcess

    def held(self) -> tuple[Usage, Usage]:
        """What both processes hold now."""
        return self.api.held(), self.edge.held()

    @property
    def innocent_urls(self) -> list[str]:
        """What the innocent client asks for, by turns."""
        project = self.place.project(self.place.public)
        file = "src/1/1.txt"
        return [
            project,
            f"{project}/pipelines",
            f"{project}/repository/files/{encoded(file)}?ref=main",
            f"{self.place.edge_url}/{self.place.public}/-/raw/main/{file}",
        ]


@contextlib.contextmanager
def running_environment(tell: Callable[[str], None], sizes: Sizes) -> Iterator[Environment]:
    """Starts everything and furnishes it; ends all of it."""
    with tempfile.TemporaryDirectory(prefix="forgelet-abuse-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL may have to run as another account
        data = DataDirectory(Path(folder, "data"))
        plan = Plan(data, Addresses(free_port(), free_port()))
        with data.opened(), Forgelet(plan, tell) as forgelet:
            tell("Making repositories ...")
            scratch = Path(folder, "scratch")
            scratch.mkdir()
            yield _environment(forgelet, scratch, sizes)


def _environment(forgelet: Forgelet, scratch: Path, sizes: Sizes) -> Environment:
    root, plan = forgelet.api(), forgelet.plan
    alice, bob = (Api(plan.api_url, new_user(root, name)) for name in ("alice", "bob"))
    public, mine = new_project(alice, "alice", "large"), new_project(bob, "bob", "mine")
    host = plan.api_url.partition("://")[2]
    large_change = repositories.make_repository(scratch, public, sizes, host=host, token=alice.token)
    place = AttackTarget(
        api_url=plan.api_url,
        edge_url=plan.edge_url or "",
        attacker=bob.token,
        public=public,
        mine=mine,
        large_change=large_change,
    )
    api, edge = (WatchedProcess(server_in(plan.data.part(name))) for name in ("api", "edge"))
    return Environment(place, alice.token, api, edge)


def new_user(root: Api, name: str) -> str:
    """Makes a user; her token."""
    user = {"username": name, "name": name, "email": f"{name}@example.org", "skip_confirmation": True}
    made = root.post("users", {**user, "force_random_password": True})
    token = {"name": "abuse", "scopes": ["api"], "expires_at": "2099-01-01"}
    return str(root.post(f"users/{made['id']}/personal_access_tokens", token)["token"])


def new_project(owner: Api, name: str, path: str) -> str:
    """Makes a public project; its full path."""
    owner.post("projects", {"name": path, "visibility": "public", "initialize_with_readme": path == "mine"})
    return f"{name}/{path}"
