"""The service under test with its environment: disks, name server, databases, object store."""

import abc
import asyncio
import contextlib
import itertools
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
from forgelet.local.variables import API, EDGE, Program
from forgelet.testing.api import Api, Connections, answers
from scripts.faults import surroundings
from scripts.faults.client import TIMEOUT, Answer, Client, Ledger
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
from scripts.harness.contents import commit_values, new_user
from scripts.harness.processes import KeptProcess, KeptProgram, retry_until, server_variables
from tests.support.ports import free_port

#: Seconds after which a job without a sign of its runner goes to another one; the default of a minute would make the
#: end of a run long.
HAND_OUT_SECONDS = 15


class Server(KeptProgram):
    """An API server or an edge, on a port of loopback."""

    def __init__(
        self, data: DataDirectory, name: str, module: str, program: Program[Any], settings: Mapping[str, str]
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        values = {"PORT": str(self.port), "LOG_FORMAT": "json", **settings}
        super().__init__(
            name,
            data.part("logs"),
            [sys.executable, "-P", "-m", module],
            environment=server_variables(program, values) | {"PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=data.path,
        )


def new_edge(data: DataDirectory, name: str, url: str) -> Server:
    """Return an edge that has not been started. `url` is the balancer's address, through which everybody reaches the
    API servers."""
    settings = {
        "DATA_DIR": str(data.part(name)),
        "ORIGIN": url,
        "STORAGE_TOKEN_FILE": data.file_with_secret("edge-storage-token"),
        "PURGE_TOKEN_FILE": data.file_with_secret("edge-purge-token"),
        "DISK_BYTES": str(surroundings.EDGE_BYTES),
        "MEMORY_OBJECT_BYTES": str(surroundings.EDGE_MEMORY_OBJECT_BYTES),
    }
    return Server(data, name, "storage_edge", EDGE, settings)


def new_api(
    data: DataDirectory, name: str, url: str, databases: Databases, edges: Sequence[Server]
) -> Server:
    """Return an API server that has not been started."""
    settings = {
        "DATA_DIR": str(data.part("api")),
        **databases.settings,
        "ROOT_TOKEN_FILE": data.file_with_secret("root-token", prefix="flpat-"),
        "EXTERNAL_URL": url,
        "EDGE_URLS": ",".join(edge.url for edge in edges),
        "EDGE_PURGE_TOKEN_FILE": data.file_with_secret("edge-purge-token"),
        "ALLOW_LOCAL_REQUESTS": "true",
        "DISK_RESERVE": str(surroundings.RESERVE),
        # The load is one user's, from one address: no limit of requests may stop it.
        **dict.fromkeys(("PIPELINE_RATE_LIMIT", "JOBS_RATE_LIMIT", "RAW_RATE_LIMIT", "VARIABLES_LIMIT"), "0"),
        "RUNNER_POLL_TIMEOUT": "2",
        "HAND_OUT_TIMEOUT": str(HAND_OUT_SECONDS),
    }
    return Server(data, name, "api_server", API, settings)


READY_SECONDS = 60.0
OWNER = "alice"


@attrs.frozen
class Environment:
    """The targets of faults and of the load. `owner` owns all projects; `nobody` and the `strangers` at the edges are
    anonymous."""

    folder: Path
    data: DataDirectory
    ledger: Ledger
    #: API servers that share one folder and one database; a balancer spreads connections over those that listen.
    apis: Sequence[Server]
    edges: Sequence[Server]
    databases: Databases
    outside: Outside
    #: The API servers' own name server, or None if they cannot have one.
    names: NameServer | None
    #: The proxy between the API servers and S3; None if objects are files.
    object_store: Proxy | None
    root: Client
    owner: Client
    nobody: Client
    #: An anonymous client at each edge.
    strangers: Sequence[Client]

    def git_url(self, project: str) -> str:
        """Return the URL of a project's repository with the owner's credentials."""
        host = urlsplit(self.owner.base).netloc
        return f"http://{OWNER}:{self.owner.token}@{host}/{OWNER}/{project}.git"

    @property
    def api(self) -> Server:
        """The first or only API server."""
        return self.apis[0]

    @property
    def stranger(self) -> Client:
        return self.strangers[0]

    @property
    def kept(self) -> tuple[KeptProcess, ...]:
        return *self.apis, *self.edges, *self.databases.kept

    async def ready(self) -> bool:
        """Return whether all servers become ready within a minute."""
        return await _are_ready([*self.apis, *self.edges])


async def _are_ready(servers: Sequence[Server]) -> bool:
    async def look() -> bool:
        return all([await asyncio.to_thread(answers, f"{server.url}/-/readiness") for server in servers])

    return await retry_until(look, READY_SECONDS, pause=0.2)


@contextlib.asynccontextmanager
async def running_environment(
    report: Callable[[str], None], shape: Shape = ALONE
) -> AsyncIterator[Environment]:
    """Start everything, with a user and her token; end it with the block."""
    async with contextlib.AsyncExitStack() as stack:
        data = stack.enter_context(_folders(shape))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT)
        )
        http._retry_connection = False  # a PUT that was cut off may have been done: its repetition fails
        ledger = Ledger()
        names = await stack.enter_async_context(name_server())
        around = await stack.enter_async_context(running_outside(NAME if names else "127.0.0.1"))
        store = await stack.enter_async_context(object_store(data.part("logs"))) if shape.s3 else None
        report(f"Starting {shape.title} ...")
        databases = await stack.enter_async_context(running_databases(data, shape))
        balancer = free_port()
        url = f"http://127.0.0.1:{balancer}"
        edges = [new_edge(data, name, url) for name in shape.edge_names]
        apis = [new_api(data, name, url, databases, edges) for name in shape.api_names]
        for api in apis:
            if names is not None:
                api.command = names.command(data.path.parent, api.command)
            if store is not None:
                api.environment |= object_store_settings(store)
        for program in (*apis, *edges):
            await stack.enter_async_context(program)
        await stack.enter_async_context(Proxy(balancer, balanced([api.port for api in apis])))
        root = Client(http, "api", f"{url}/api/v4", ledger, data.secret("root-token", prefix="flpat-"))
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
            strangers=[Client(http, edge.name, edge.url, ledger, may_say={502, 504}) for edge in edges],
        )
        await _wait_for_start(apis)
        token = await asyncio.to_thread(_set_up, url, root.token, environment.stranger.base, data)
        await _wait_for_start(edges)  # the edges become ready once the service knows their token
        yield attrs.evolve(environment, owner=attrs.evolve(root, token=token))


async def _wait_for_start(servers: Sequence[Server]) -> None:
    """Wait until the servers are ready. Raise RuntimeError if they are not ready within a minute."""
    if not await _are_ready(servers):
        logs = "\n".join(server.newest_log().read_text()[-3000:] for server in servers)
        raise RuntimeError(f"The service did not start: {logs}")


@contextlib.contextmanager
def _folders(shape: Shape) -> Iterator[DataDirectory]:
    """Create the data directory, with small disks of its own if we are root."""
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
    """Create the owner and register the edge; return the owner's token."""
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


#: For each kind, how often each identity is present.
Present = Mapping[str, "Counter[str]"]


class Worker(abc.ABC):
    """A user of the service who repeats the same actions all the time. Each write has an identity, under which its
    outcome is recorded; at the end, `present` counts how often each identity is there, whole and unchanged."""

    #: Seconds between two actions.
    rest: float
    #: Kinds of operations that have to succeed after each fault.
    pulse: tuple[str, ...] = ()

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.owner = environment.owner
        self.ledger = environment.ledger
        self.numbers = itertools.count(1)

    async def prepare(self) -> None:  # noqa: B027, most need nothing
        """Create what the worker needs, before the first fault."""

    @abc.abstractmethod
    async def once(self) -> None:
        """Do the next action. Raise nothing that a fault can cause."""

    async def present(self) -> Present:
        """Count the identities that are there after the last fault, when no other worker runs any more."""
        return {}

    async def commit(
        self, project: str, branch: str, files: Mapping[str, str], kind: str = "prepare", **others: str
    ) -> Answer | None:
        """Create a commit with these files; the `others` are those of `commit_values`."""
        path = f"{project}/repository/commits"
        return await self.owner.ask(kind, "POST", path, json=commit_values(branch, files, **others))

    async def create_project(self, name: str, **values: object) -> Any:
        answer = await self.owner.ask("prepare", "POST", "/projects", json={"name": name, **values})
        assert answer is not None
        return answer.json
