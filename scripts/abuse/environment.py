"""The attacked service, in a temporary folder, and how attackers connect to it."""

import asyncio
import contextlib
import functools
import json
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
import attrs

from forgelet.local.data_directory import DataDirectory
from forgelet.local.supervisor import Forgelet, Plan
from forgelet.local.variables import Addresses
from forgelet.testing.api import Api
from scripts.harness.contents import commit_head, data, git, new_user
from scripts.harness.processes import Usage, WatchedProcess, server_in
from tests.support.ports import free_port

#: Attackers have an address of their own, so that limits by address do not affect the control client.
ATTACKER = "127.0.0.66"


@attrs.frozen(kw_only=True)
class AttackTarget:
    """The service under attack. `attacker` is the token of an ordinary user who is Owner of the project `mine`; the
    project `public` belongs to another user and everybody can read it."""

    api_url: str
    edge_url: str
    attacker: str
    public: str
    mine: str
    #: Full SHA of a large commit of `public`.
    large_change: str

    def project(self, path: str) -> str:
        """Return the URL of a project of that path in the API."""
        return f"{self.api_url}/api/v4/projects/{quote(path, safe='')}"

    @property
    def as_attacker(self) -> dict[str, str]:
        return {"PRIVATE-TOKEN": self.attacker}

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "AttackTarget":
        return cls(**json.loads(text))


@contextlib.asynccontextmanager
async def session(headers: dict[str, str] | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """Open an HTTP session from the attacker's address, without a limit of connections."""
    connector = aiohttp.TCPConnector(local_addr=(ATTACKER, 0), limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        yield http


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a bare connection from the attacker's address; reset it at the end of the block."""
    to = urlsplit(url)
    reader, writer = await asyncio.open_connection(to.hostname, to.port, local_addr=(ATTACKER, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request_head(method: str, url: str, **headers: str) -> bytes:
    """Return the head of a request; `user_agent="x"` becomes `user-agent: x`."""
    to = urlsplit(url)
    target = f"{to.path}?{to.query}" if to.query else to.path
    lines = [f"{method} {target} HTTP/1.1", f"host: {to.netloc}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@functools.cache
def begin() -> None:
    """Notify the process that has started this attacker that the attack begins after its preparation. The result is
    cached, so that this happens only once."""
    print("attacking", flush=True)


async def repeat(
    clients: int, once: Callable[[int], Awaitable[str]], answers: "Counter[str]", *, pause: float = 0.0
) -> None:
    """Run `clients` loops that call `once(number)` again and again until cancelled; count the returned values."""
    begin()

    async def loop(number: int) -> None:
        while True:
            try:
                answers[await once(number)] += 1
            except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError):
                answers["cut"] += 1
                await asyncio.sleep(0.1)
            await asyncio.sleep(pause)

    await asyncio.gather(*(loop(number) for number in range(clients)))


async def fetch_in_turn(
    urls: Sequence[str],
    clients: int,
    answers: "Counter[str]",
    headers: dict[str, str],
    body: Callable[[], object] | None = None,
) -> None:
    """Have `clients` clients GET one of the URLs each (or POST a body to it), again and again until cancelled."""
    async with session(headers) as http:

        async def fetch(number: int) -> str:
            url = urls[number % len(urls)]
            async with http.post(url, data=body()) if body else http.get(url) as answer:
                return await read_all(answer)

        await repeat(clients, fetch, answers)


async def status_of(reader: asyncio.StreamReader) -> str:
    """Read the first line of an answer; return its status."""
    return (await reader.readuntil(b"\r\n")).split()[1].decode()


async def read_all(answer: aiohttp.ClientResponse) -> str:
    """Read the whole body and throw it away; return the status."""
    async for _ in answer.content.iter_any():
        pass
    return str(answer.status)


# --- the service ----------------------------------------------------------------------------------------------------

LARGE_FILE = "large.bin"
MEDIUM_FILE = "medium.bin"
CHANGED_LINES = 400
#: Depth of a tree in which each folder has ten folders: a million paths made of a few objects.
BOMB_DEPTH = 6


@attrs.frozen
class Sizes:
    """Bytes of the file that is read whole and of the one that is read slowly, and the number of files of the large
    change."""

    large: int = 200 * 2**20
    medium: int = 9 * 2**20
    changed_files: int = 3000


def make_repository(folder: Path, project: str, sizes: Sizes, *, host: str, token: str) -> str:
    """Create the branches `start`, `main` and `bomb` and push them to `project`; return the full SHA of the large
    change between the first two."""
    git(folder, "init", "--quiet", "--bare")
    git(folder, "fast-import", "--quiet", stdin=_stream(sizes))
    git(folder, "branch", "start", "main~1")
    git(folder, "branch", "bomb", _bomb(folder))
    git(folder, "push", "--quiet", f"http://attacker:{token}@{host}/{project}.git", "start", "main", "bomb")
    return git(folder, "rev-parse", "main").strip()


def _stream(sizes: Sizes) -> Iterator[bytes]:
    yield commit_head("main", "Large files")
    for name, size in ((LARGE_FILE, sizes.large), (MEDIUM_FILE, sizes.medium)):
        yield f"M 100644 inline {name}\n".encode() + data((bytes(range(256)) * (size // 256 + 1))[:size])
    yield commit_head("main", "A large change")
    for number in range(sizes.changed_files):
        text = b"".join(b"%d of %d\n" % (line, number) for line in range(CHANGED_LINES))
        yield b"M 100644 inline src/%d/%d.txt\n" % (number % 100, number) + data(text)


def _bomb(folder: Path) -> str:
    """Create the commit of a tree in which each folder holds the same folder ten times; return its SHA."""
    blob = git(folder, "hash-object", "-w", "--stdin", stdin=b"x").strip()
    tree = git(folder, "mktree", stdin=f"100644 blob {blob}\tleaf\n".encode()).strip()
    for _ in range(BOMB_DEPTH):
        entries = "".join(f"040000 tree {tree}\td{number}\n" for number in range(10))
        tree = git(folder, "mktree", stdin=entries.encode()).strip()
    return git(folder, "commit-tree", tree, "-m", "A bomb").strip()


@attrs.frozen
class Environment:
    """The running service: the target of attacks, the token of the control client, and the two server processes."""

    target: AttackTarget
    control_token: str
    api: WatchedProcess
    edge: WatchedProcess

    def usage(self) -> tuple[Usage, Usage]:
        """Return the current usage of both processes; the edge's has the bytes of its memory tier."""
        edge = HTTPConnection(urlsplit(self.target.edge_url).netloc, timeout=10)
        with contextlib.closing(edge):
            edge.request("GET", "/-/metrics")
            metrics = edge.getresponse().read().decode()
        match = re.search(r'edge_tier_bytes\{tier="memory"\} (\S+)', metrics)
        assert match is not None
        return self.api.usage(), attrs.evolve(self.edge.usage(), cached=round(float(match[1])))

    @property
    def control_urls(self) -> list[str]:
        """The URLs that the control client requests in turn."""
        project = self.target.project(self.target.public)
        return [
            project,
            f"{project}/pipelines",
            f"{project}/repository/files/src%2F1%2F1%2Etxt?ref=main",
            f"{self.target.edge_url}/{self.target.public}/-/raw/main/src/1/1.txt",
        ]


@contextlib.contextmanager
def running_environment(report: Callable[[str], None], sizes: Sizes) -> Iterator[Environment]:
    """Start a service as `scripts/up` does, and fill it; stop it and delete its data at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="forgelet-abuse-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL may have to run as another account
        directory = DataDirectory(Path(folder, "data"))
        plan = Plan(directory, Addresses(free_port(), free_port()))
        with directory.opened(), Forgelet(plan, report) as forgelet:
            report("Creating repositories ...")
            yield _environment(forgelet, Path(folder, "scratch.git"), sizes)


def _environment(forgelet: Forgelet, scratch: Path, sizes: Sizes) -> Environment:
    root, plan = forgelet.api(), forgelet.plan
    with contextlib.closing(root.connections) as connections:
        alice, bob = (new_user(root, name).token for name in ("alice", "bob"))
        for token, path in ((alice, "large"), (bob, "mine")):
            values = {"name": path, "visibility": "public", "initialize_with_readme": path == "mine"}
            Api(connections, token).post("projects", values)
    host = plan.api_url.partition("://")[2]
    target = AttackTarget(
        api_url=plan.api_url,
        edge_url=plan.edge_url or "",
        attacker=bob,
        public="alice/large",
        mine="bob/mine",
        large_change=make_repository(scratch, "alice/large", sizes, host=host, token=alice),
    )
    api, edge = (WatchedProcess(server_in(plan.data.part(name))) for name in ("api", "edge"))
    return Environment(target, alice, api, edge)
