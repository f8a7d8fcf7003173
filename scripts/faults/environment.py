"""The service under test with all that is around it: disks, names, databases, an object store."""

import abc
import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import attrs

from forgelet.local.data_directory import DataDirectory
from forgelet.testing.api import Api, Connections, answers
from scripts.faults import surroundings
from scripts.faults.client import TIMEOUT, Client, Ledger
from scripts.faults.databases import Databases, running_databases
from scripts.faults.surroundings import (
    ALONE,
    NAME,
    NameServer,
    Outside,
    Proxy,
    Shape,
    balanced,
    name_server,
    object_store,
    object_store_settings,
    running_outside,
)
from scripts.harness.contents import new_user
from scripts.harness.processes import KeptProcess, KeptProgram, retry_until
from tests.support.ports import free_port

#: After which a job whose runner never came back goes to another; a minute is long to wait for at the end of a run.
HAND_OUT_SECONDS = 15


@attrs.frozen
class Ports:
    """Ports of loopback. Everybody reaches the servers by the balancer, the edges too."""

    balancer: int
    apis: Sequence[int]
    edges: Sequence[int]

    @classmethod
    def free(cls, shape: Shape) -> "Ports":
        return cls(
            free_port(), [free_port() for _ in shape.api_names], [free_port() for _ in shape.edge_names]
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.balancer}"


def programs_of(
    data: DataDirectory, shape: Shape, ports: Ports, databases: Databases
) -> tuple[list[KeptProgram], list[KeptProgram]]:
    """Return the servers and the edges, none of which has been started."""
    purging = data.file_with_secret("edge-purge-token")
    api = {
        "DATA_DIR": str(data.part("api")),
        **databases.settings,
        "ROOT_TOKEN_FILE": data.file_with_secret("root-token", prefix="flpat-"),
        "EXTERNAL_URL": ports.url,
        "EDGE_URLS": ",".join(f"http://127.0.0.1:{port}" for port in ports.edges),
        "EDGE_PURGE_TOKEN_FILE": purging,
        "ALLOW_LOCAL_REQUESTS": "true",
        "DISK_RESERVE": str(surroundings.RESERVE),
        # The load is one user's, from one address, and nobody's patience is tried.
        **dict.fromkeys(("PIPELINE_RATE_LIMIT", "JOBS_RATE_LIMIT", "RAW_RATE_LIMIT", "VARIABLES_LIMIT"), "0"),
        "RUNNER_POLL_TIMEOUT": "2",
        "HAND_OUT_TIMEOUT": str(HAND_OUT_SECONDS),
    }
    edge = {
        "ORIGIN": ports.url,
        "STORAGE_TOKEN_FILE": data.file_with_secret("edge-storage-token"),
        "PURGE_TOKEN_FILE": purging,
        "DISK_BYTES": str(surroundings.EDGE_BYTES),
        "MEMORY_OBJECT_BYTES": str(surroundings.EDGE_MEMORY_OBJECT_BYTES),
    }
    servers = [
        _program(data, name, "api_server", "API", port, api)
        for name, port in zip(shape.api_names, ports.apis, strict=True)
    ]
    edges = [
        _program(data, name, "storage_edge", "EDGE", port, {"DATA_DIR": str(data.part(name)), **edge})
        for name, port in zip(shape.edge_names, ports.edges, strict=True)
    ]
    return servers, edges


def _program(
    data: DataDirectory, name: str, module: str, prefix: str, port: int, settings: Mapping[str, str]
) -> KeptProgram:
    values = {"PORT": str(port), "LOG_FORMAT": "json", **settings}
    others = {name: value for name, value in os.environ.items() if not name.startswith("FORGELET_")}
    return KeptProgram(
        name,
        data.part("logs"),
        [sys.executable, "-P", "-m", module],
        environment={
            **others,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **{f"FORGELET_{prefix}_{setting}": value for setting, value in values.items()},
        },
        cwd=data.path,
    )


READY_SECONDS = 60.0
OWNER = "alice"


@attrs.frozen
class Environment:
    """What faults break and the load asks. `owner` has all projects; `stranger` at the edge is nobody."""

    folder: Path
    data: DataDirectory
    ledger: Ledger
    #: All of them on one folder and one database; a balancer spreads connections over those that listen.
    apis: Sequence[KeptProgram]
    edges: Sequence[KeptProgram]
    databases: Databases
    outside: Outside
    #: The API servers' own, where they could be given one.
    names: NameServer | None
    #: Between the API servers and S3; None where objects are files.
    object_store: Proxy | None
    root: Client
    owner: Client
    nobody: Client
    #: At each edge.
    strangers: Sequence[Client]
    #: Of each process that says whether it is ready.
    urls: Sequence[str]

    def git_url(self, project: str) -> str:
        """Return the URL of a project's repository for its owner."""
        host = urlsplit(self.owner.base).netloc
        return f"http://{OWNER}:{self.owner.token}@{host}/{OWNER}/{project}.git"

    @property
    def api(self) -> KeptProgram:
        """The first, or only, API server."""
        return self.apis[0]

    @property
    def edge(self) -> KeptProgram:
        return self.edges[0]

    @property
    def stranger(self) -> Client:
        return self.strangers[0]

    @property
    def kept(self) -> tuple[KeptProcess, ...]:
        return *self.apis, *self.edges, *self.databases.kept

    async def serve(self) -> bool:
        """Return whether all API servers become ready within a minute."""
        return await _are_ready(self.urls[: len(self.apis)])

    async def ready(self) -> bool:
        """Return whether the edges do, too."""
        return await _are_ready(self.urls)


async def _are_ready(urls: Sequence[str]) -> bool:
    async def look() -> bool:
        return all([await asyncio.to_thread(answers, f"{url}/-/readiness") for url in urls])

    return await retry_until(look, READY_SECONDS, pause=0.2)


@contextlib.asynccontextmanager
async def running_environment(
    report: Callable[[str], None], shape: Shape = ALONE
) -> AsyncIterator[Environment]:
    """Start everything, with a user and her token; end all of it."""
    async with contextlib.AsyncExitStack() as stack:
        data = stack.enter_context(_folders(shape))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT)
        )
        http._retry_connection = False  # a PUT that was cut off may have been done: who asks twice is refused
        ledger = Ledger()
        names = await stack.enter_async_context(name_server())
        around = await stack.enter_async_context(running_outside(NAME if names else "127.0.0.1"))
        store = await stack.enter_async_context(object_store(data.part("logs"))) if shape.s3 else None
        report(f"Starting {shape} ...")
        databases = await stack.enter_async_context(running_databases(data, shape))
        ports = Ports.free(shape)
        apis, edges = programs_of(data, shape, ports, databases)
        for api in apis:
            if names is not None:
                api.command = names.command(data.path.parent, api.command)
            if store is not None:
                api.environment |= object_store_settings(store)
        for program in (*apis, *edges):
            await stack.enter_async_context(program)
        await stack.enter_async_context(Proxy(ports.balancer, balanced(ports.apis)))
        root = Client(http, "api", f"{ports.url}/api/v4", ledger, data.secret("root-token", prefix="flpat-"))
        environment = Environment(
            folder=data.path.parent,
            data=data,
            ledger=ledger,
            apis=apis,
            edges=edges,
            databases=databases,
            outside=around,
            names=names,
            object_store=store,
            root=root,
            owner=root,
            nobody=attrs.evolve(root, token=""),
            strangers=[
                Client(http, edge.name, f"http://127.0.0.1:{port}", ledger, may_say={502, 504})
                for edge, port in zip(edges, ports.edges, strict=True)
            ],
            urls=[f"http://127.0.0.1:{port}" for port in (*ports.apis, *ports.edges)],
        )
        _started(apis, await environment.serve())
        token = await asyncio.to_thread(_set_up, ports.url, root.token, environment.stranger.base, data)
        _started(edges, await environment.ready())  # which they are once the service knows their token
        yield attrs.evolve(environment, owner=attrs.evolve(root, token=token))


def _started(kept: Sequence[KeptProcess], are_ready: bool) -> None:
    if not are_ready:
        logs = "\n".join(program.newest_log().read_text()[-3000:] for program in kept)
        raise RuntimeError(f"The service did not start: {logs}")


@contextlib.contextmanager
def _folders(shape: Shape) -> Iterator[DataDirectory]:
    """Make the data directory, on small disks of its own if we are root."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fgl-faults-", dir="/tmp")))
        folder.chmod(0o711)  # PostgreSQL may have to run as another account
        data = DataDirectory(folder / "data")
        stack.enter_context(data.opened())
        stack.enter_context(surroundings.mounted(data.part("api"), surroundings.API_SIZE))
        for name in shape.edge_names:
            stack.enter_context(surroundings.mounted(data.part(name), surroundings.EDGE_SIZE))
        yield data


def _set_up(url: str, token: str, edge_url: str, data: DataDirectory) -> str:
    """Make the owner and join the edge; return her token."""
    with contextlib.closing(Connections(url)) as connections:
        root = Api(connections, token)
        root.put(
            "application/settings",
            {
                "static_objects_external_storage_url": edge_url,
                "static_objects_external_storage_auth_token": data.secret("edge-storage-token"),
            },
        )
        return new_user(root, OWNER).token


#: By kind, how often each identity is there.
Present = Mapping[str, "Counter[str]"]


class Worker(abc.ABC):
    """Somebody who uses the service all day and does one thing after the other. Every write has an identity, under
    which its outcome is recorded; when all is over, `present` counts how often each is found, whole and unchanged."""

    #: Seconds between two things that it does.
    rest: float
    #: Kinds of which each fault has to be followed by a success.
    pulse: tuple[str, ...] = ()

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.owner = environment.owner
        self.ledger = environment.ledger
        self.numbers = itertools.count(1)

    async def prepare(self) -> None:  # noqa: B027, most need nothing
        """Make what is needed before the first fault."""

    @abc.abstractmethod
    async def once(self) -> None:
        """Do the next thing. Never raises for what a fault can do to it."""

    async def present(self) -> Present:
        """Count what is there after the last fault, when nobody else works any more."""
        return {}

    async def create_project(self, name: str, **values: object) -> Any:
        answer = await self.owner.ask("prepare", "POST", "/projects", json={"name": name, **values})
        assert answer is not None
        return answer.json
